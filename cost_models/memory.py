"""Bytes alive on each pipeline rank over the schedule's own timeline.

A rank keeps its shards (weights, gradients, optimizer state), constants and the step's input. On
top, at each computation: what every other micro-batch in flight saved, its input, the messages that
it sent and that may not have arrived, the gradient that it received, and what the pass itself adds
while it goes from unit to unit, with the unit's gathered weights and full gradients under ZeRO 3.
The peak is the fullest such moment, or the update after the last.

Under a flight of several micro-batches only the one at work is inside a unit; the others hold what
`StageBooks.saved_bytes` says.

A stage without units passes on the very tensors that it receives; they are counted twice here.

Parameters of a profile, each 0 where it is absent: ``memory.first_communicator_bytes`` and
``memory.communicator_bytes`` (each further group), ``memory.fragmentation_fraction`` (of what the
allocator manages). The device's context is not counted: usable memory leaves it out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost_models.blocks.stage import StageBooks, UnitBooks
from shardwright.cost_models.job_books import TIED_UNIT, JobBooks
from shardwright.cost_models.pipeline.occupancy import Moment, moments, moments_of
from shardwright.cost_models.shards import UnitShards
from shardwright.specs import ActionKind, Layout, MemoryParts, Schedule, ScheduleName, TrainingSpec
from shardwright.specs.prediction import MemoryVerdict

_TOKEN_BYTES = 8
"""Tokens and labels are int64."""


@dataclass(frozen=True, slots=True)
class PassPeak:
    """Bytes at the fullest moment of one pass through a stage, beyond what was alive before."""

    saved: int
    """By the units that ran before; negative in backward, where they free what they saved."""
    transient: int
    gathered: int

    @property
    def total(self) -> int:
        return self.saved + self.transient + self.gathered


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes that a virtual stage holds on one tensor-parallel rank."""

    weights: int
    gradients: int
    optimizer_state: int
    constants: int
    saved: int
    """From forward to backward by each micro-batch, the stage's input included."""
    input: int
    """The part of ``saved`` that is there before the forward."""
    received_gradient: int
    deferred: int
    """From input gradient to weight gradient by each micro-batch, where backwards are split."""
    passes: Mapping[ActionKind, PassPeak]


@dataclass(frozen=True, slots=True)
class _Peak:
    """The activations, gathered weights and transients of one moment."""

    activations: int
    gathered: int
    transient: int

    @property
    def total(self) -> int:
        return self.activations + self.gathered + self.transient


class MemoryModel:
    """Prices the memory of layouts of one training job."""

    def __init__(
        self, training: TrainingSpec, parameters: Mapping[str, float], books: JobBooks
    ) -> None:
        """``parameters``: those of a profile, by name."""
        self._training, self._job = training, books
        self._first_group_bytes = parameters.get("memory.first_communicator_bytes", 0.0)
        self._group_bytes = parameters.get("memory.communicator_bytes", 0.0)
        self._fragmentation = parameters.get("memory.fragmentation_fraction", 0.0)
        self._stages: dict[Hashable, StageMemory] = {}

    def parts(self, layout: Layout) -> tuple[MemoryParts, ...]:
        """The peak of each pipeline rank, the fullest of its tensor-parallel ranks."""
        stages = [self.stage_memory(layout, stage) for stage in range(len(layout.stages))]
        of_ranks = moments_of(layout)
        found = []
        for rank in range(layout.pp):
            own = [stage.stage for stage in layout.stages if stage.rank == rank]
            variants = (
                self._rank_parts(layout, of_ranks[rank], {at: stages[at][tp] for at in own})
                for tp in range(len(stages[0]))
            )
            found.append(max(variants, key=lambda parts: parts.total_bytes))
        return tuple(found)

    def parts_of_rank(
        self, layout: Layout, pp_rank: int, tp_rank: int, schedule: Schedule
    ) -> MemoryParts:
        """The peak of one rank, which may be less than that of others on its pipeline rank."""
        stages = {
            stage.stage: self._stage_memory(
                layout, self._job.books_of_rank(layout, stage.stage, tp_rank)
            )
            for stage in layout.stages
            if stage.rank == pp_rank
        }
        if layout.schedule is not ScheduleName.CUSTOM:
            return self._rank_parts(layout, moments_of(layout)[pp_rank], stages)
        of_ranks = moments(schedule)
        return self._rank_parts(layout, of_ranks[pp_rank], stages)

    def verdict(self, parts: Iterable[MemoryParts], capacity_bytes: int) -> MemoryVerdict:
        """``edge``: it fits but for the margin for fragmentation."""
        ranks = list(parts)
        if all(rank.total_bytes <= capacity_bytes for rank in ranks):
            return "fits"
        least = (rank.total_bytes - self._margin_bytes(rank) for rank in ranks)
        return "edge" if all(size <= capacity_bytes for size in least) else "does_not_fit"

    def _margin_bytes(self, rank: MemoryParts) -> int:
        """The part of ``fixed`` that is the margin, which is one of all that tensors take up."""
        live = rank.total_bytes - rank.fixed
        return round(live * self._fragmentation)

    def stage_memory(self, layout: Layout, stage: int) -> tuple[StageMemory, ...]:
        """A virtual stage on each distinct tensor-parallel rank."""
        found = []
        for books in self._job.books(layout, stage):
            # The job keeps its books, so their identity cannot pass to others.
            key = (id(books), layout.zero, layout.zero_shard_degree)
            if key not in self._stages:
                self._stages[key] = self._stage_memory(layout, books)
            found.append(self._stages[key])
        return tuple(found)

    def _stage_memory(self, layout: Layout, books: StageBooks) -> StageMemory:
        shards = [self._job.shards(layout, unit) for unit in books.units]
        kept = [own for unit, own in zip(books.units, shards, strict=True) if not unit.is_shared]
        return StageMemory(
            weights=sum(unit.weight_bytes for unit in kept),
            gradients=sum(unit.gradient_bytes for unit in kept),
            optimizer_state=sum(unit.optimizer_bytes for unit in kept),
            constants=books.buffer_bytes,
            saved=books.saved_bytes + books.input_bytes,
            input=books.input_bytes,
            received_gradient=books.message_bytes,
            deferred=books.deferred_bytes,
            passes={
                ActionKind.FORWARD: _forward_peak(books, shards),
                ActionKind.BACKWARD: _backward_peak(books, shards),
                ActionKind.BACKWARD_INPUT: _input_peak(books, shards),
                ActionKind.BACKWARD_WEIGHT: _weight_peak(books, shards),
            },
        )

    def _rank_parts(
        self, layout: Layout, moments: Iterable[Moment], stages: Mapping[int, StageMemory]
    ) -> MemoryParts:
        hidden_bytes = max(max(stage.input, stage.received_gradient) for stage in stages.values())
        peak = max(
            (_moment_peak(moment, stages, hidden_bytes) for moment in moments),
            key=lambda moment: moment.total,
        )
        weights = sum(stage.weights for stage in stages.values())
        gradients = sum(stage.gradients for stage in stages.values())
        optimizer_state = sum(stage.optimizer_state for stage in stages.values())
        live = weights + gradients + optimizer_state + peak.total
        constants = sum(stage.constants for stage in stages.values())
        always = constants + self._input_bytes(layout)
        margin = round((live + always) * self._fragmentation)
        return MemoryParts(
            weights=weights,
            gradients=gradients,
            optimizer_state=optimizer_state,
            activations=peak.activations + always,
            gathered_weights=peak.gathered,
            transient=peak.transient,
            fixed=self._group_buffers_bytes(layout) + margin,
        )

    def _input_bytes(self, layout: Layout) -> int:
        """Tokens and labels of the whole step, which every rank is given."""
        positions = layout.micro_batches * layout.micro_batch * self._training.seq_len
        return 2 * positions * _TOKEN_BYTES

    def _group_buffers_bytes(self, layout: Layout) -> int:
        groups = num_groups(layout)
        if not groups:
            return 0
        return round(self._first_group_bytes + (groups - 1) * self._group_bytes)


def num_groups(layout: Layout) -> int:
    """Communicators of one rank: the world, and each axis along which it has peers."""
    replicas = layout.dp * layout.cp
    sharded = layout.zero_shard_degree not in (1, replicas)
    sizes = [layout.world, layout.tp, replicas, layout.pp]
    return sum(size > 1 for size in sizes) + (2 if sharded else 0)


def _moment_peak(moment: Moment, stages: Mapping[int, StageMemory], hidden_bytes: int) -> _Peak:
    """What is alive at the fullest point of one computation or exchange."""
    held = sum(count * stages[stage].saved for stage, count in moment.held)
    held += sum(count * stages[stage].deferred for stage, count in moment.deferred)
    messages = hidden_bytes * moment.messages
    if moment.work is None:
        return _Peak(held, 0, messages)
    index, kind = moment.work
    stage = stages[index]
    own, received = stage.saved, stage.received_gradient
    if kind is ActionKind.FORWARD:
        own, received = stage.input, 0
    elif kind is ActionKind.BACKWARD_WEIGHT:
        own, received = stage.deferred, 0
    peak = stage.passes[kind]
    return _Peak(
        activations=held + own + peak.saved,
        gathered=peak.gathered,
        transient=peak.transient + messages + received,
    )


def _forward_peak(books: StageBooks, shards: Sequence[UnitShards]) -> PassPeak:
    """The fullest unit, each with its weights gathered."""
    gathered = _gathered_bytes(books.units, shards)
    peaks = (
        PassPeak(saved, transient, weights)
        for (saved, transient), weights in zip(books.forward_moments, gathered, strict=True)
    )
    return max(peaks, key=lambda peak: peak.total, default=PassPeak(0, 0, 0))


def _backward_peak(books: StageBooks, shards: Sequence[UnitShards]) -> PassPeak:
    """The fullest unit, each with its weights gathered and its gradients arriving."""
    gathered = _gathered_bytes(books.units, shards)
    peaks = (
        PassPeak(change, _with_gradients(unit, transient, own), weights)
        for (change, transient), unit, own, weights in zip(
            books.backward_moments, books.units, shards, gathered, strict=True
        )
    )
    return max(peaks, key=lambda peak: peak.total, default=PassPeak(0, 0, 0))


def _input_peak(books: StageBooks, shards: Sequence[UnitShards]) -> PassPeak:
    """The first half of a split backward: weights gathered, no gradients arriving."""
    gathered = _gathered_bytes(books.units, shards)
    peaks = (
        PassPeak(change, transient, weights)
        for (change, transient), weights in zip(books.input_moments, gathered, strict=True)
    )
    return max(peaks, key=lambda peak: peak.total, default=PassPeak(0, 0, 0))


def _weight_peak(books: StageBooks, shards: Sequence[UnitShards]) -> PassPeak:
    """The second half: no weights are read, gradients arrive."""
    change = 0
    peaks = []
    for unit, own in zip(reversed(books.units), reversed(shards), strict=True):
        most = unit.weight_peak_bytes(own.arriving_bytes)
        if unit.name == TIED_UNIT and own.arriving_bytes:  # the gradient is its reader's
            most = own.arriving_bytes + own.full_weight_bytes
        peaks.append(PassPeak(change, most, 0))
        change -= unit.deferred_bytes
    return max(peaks, key=lambda peak: peak.total, default=PassPeak(0, 0, 0))


def _with_gradients(unit: UnitBooks, transient: int, shards: UnitShards) -> int:
    """The most alive in a unit's backward, where it fills a buffer of its full gradients.

    The buffer is made when the first gradient arrives: in a layer, right at the beginning; in the
    head, when the loss and the logits are done with; of an embedding, when its lookup is.
    """
    arriving = shards.arriving_bytes
    if not arriving:
        return transient
    if unit.name == TIED_UNIT:
        return arriving + unit.num_parameters * shards.dtypes.parameter_bytes
    if unit.name == "embedding":
        return _with_embedding_gradients(unit, transient, shards)
    if unit.name != "head":
        return transient + arriving
    norm, head = unit.blocks
    gradient = head.num_parameters * shards.dtypes.parameter_bytes
    later = arriving - head.saved_bytes + max(gradient, norm.backward_transient_bytes)
    return max(transient, later)


def _with_embedding_gradients(unit: UnitBooks, transient: int, shards: UnitShards) -> int:
    """The gradient of learned positions is there before the lookup's backward, that of the weight
    after it, when the gradient of the output is gone. Where both are the unit's own, the buffer is
    there all the while; where the weight is tied, it is gone before."""
    arriving = shards.arriving_bytes
    if len(unit.parameters) > 1:
        return transient + arriving
    gradient = unit.num_parameters * shards.dtypes.parameter_bytes
    has_positions = unit.parameters[0].name.endswith("positions")
    freed = 0 if has_positions else unit.output_bytes
    return max(transient, arriving + gradient - freed)


def _gathered_bytes(units: Sequence[UnitBooks], shards: Sequence[UnitShards]) -> list[int]:
    """Under ZeRO 3, the weights that are whole while each unit runs.

    A tied weight stays whole from its first reader to its last.
    """
    names = [unit.name for unit in units]
    whole = [
        0 if name == TIED_UNIT else own.gathered_bytes
        for name, own in zip(names, shards, strict=True)
    ]
    if TIED_UNIT in names:
        readers = [index for index, name in enumerate(names) if name in ("embedding", "head")]
        for index in range(readers[0], readers[-1] + 1):
            whole[index] += shards[names.index(TIED_UNIT)].gathered_bytes
    return whole
