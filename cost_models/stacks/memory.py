"""Bytes on one rank of each pipeline stage at its fullest moment.

What a stage always holds (weights, gradients, optimizer state), what its micro-batches in flight
keep, and the moment on top. Of three moments the fullest counts:

* the backward of a layer: all that it keeps, made again where it was dropped, and two gradients as
  large as its largest value;
* the loss: the logits in as many copies as the software makes;
* the optimizer's step: no activations, but gradients of the own shard in fp32 where they were
  accumulated in less.

Under ZeRO 3 two units are whole on top (one at work, one fetched ahead), and one unit's gradient,
before and after its cast to the dtype of the reduction.

Three readings of memory, as `MemoryKind` names them: what tensors take up; that and what the
allocator holds beyond it; that and what communicators and the process's context take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwright.cost_models.stacks.sharding import QUANTISED_BYTES
from shardwright.cost_models.stacks.stage import Holding
from shardwright.hardware_profiles.stack_memory import MemoryFacts, memory_facts
from shardwright.specs import Layout, MemoryParts, SoftwareSpec, TrainingSpec
from shardwright.specs.prediction import MemoryVerdict

MemoryKind = Literal["device", "reserved", "allocated_or_unknown"]

_BYTE_MOMENT = 1 + 4 / 256
"""A moment in one byte, with an fp32 scale for each block of 256 (arXiv 2110.02861)."""
_FP32_BYTES = 4
_RESIDENT_UNITS = 2
"""Of what is offloaded: one at work, one on its way."""


@dataclass(frozen=True, slots=True)
class StageBytes:
    """Bytes of a virtual stage on one rank."""

    weights: float
    gradients: float
    optimizer_state: float
    saved: float
    """By each micro-batch in flight."""
    working: float
    """On top while one of its units runs backward, or the loss."""
    gathered: float
    """Of units that ZeRO 3 makes whole for that."""
    wholes: tuple[float, ...]
    """Of these, what the weights of the largest take up, the largest first."""
    whole_gradient: float
    """The largest gradient of a unit that is whole."""
    step_copy: float
    """On top while the optimizer runs."""
    largest_unit: float
    """Weights of the largest unit."""
    largest_saved: float
    """By the unit that keeps most."""


class StackMemory:
    """Prices memory from the holdings of each virtual stage.

    Reads of ``parameters``: ``memory.context_bytes``; ``memory.first_communicator_bytes`` and
    ``memory.communicator_bytes``; ``memory.allocator_fraction`` and
    ``memory.most_allocator_fraction``, what the native allocator loses over what tensors take up
    (``expandable`` in place of ``allocator``: with expandable segments);
    ``memory.central_ratio`` and ``memory.high_ratio``, the median and the 90th percentile of
    measured over predicted peaks.
    """

    def __init__(
        self, training: TrainingSpec, software: SoftwareSpec, parameters: Mapping[str, float]
    ) -> None:
        self._training, self._parameters = training, parameters
        self._facts = memory_facts(software.framework)
        name = "allocator" if software.allocator == "native" else "expandable"
        self._margin = parameters.get(f"memory.{name}_fraction", 0.0)
        most = parameters.get(f"memory.most_{name}_fraction", self._margin)
        self._more_margin = max(0.0, most - self._margin)
        own_context = parameters.get("memory.context_bytes", 0.0)
        stated = self._facts.context_bytes
        self._more_context = 0.0 if stated is None else max(0.0, stated - own_context)

    def stage(self, layout: Layout, holdings: Sequence[Holding]) -> StageBytes:
        """One virtual stage."""
        state = _State(self._training, self._facts, layout)
        units = [(one, state.of(one)) for one in holdings]
        saved = working = largest_saved = 0.0
        for one, _ in units:
            kept, moment = _activations(one)
            saved += one.count * kept
            working = max(working, moment)
            largest_saved = max(largest_saved, kept)
        sizes = [unit.whole for one, unit in units for _ in range(min(one.count, _RESIDENT_UNITS))]
        wholes = tuple(sorted(sizes, reverse=True)[:_RESIDENT_UNITS])
        whole_gradient = max((unit.whole_gradient for _, unit in units), default=0.0)
        return StageBytes(
            weights=sum(one.count * unit.weights for one, unit in units),
            gradients=sum(one.count * unit.gradients for one, unit in units),
            optimizer_state=sum(one.count * unit.optimizer for one, unit in units),
            saved=saved,
            working=working,
            gathered=self.gathered_bytes(wholes, whole_gradient),
            wholes=wholes,
            whole_gradient=whole_gradient,
            step_copy=sum(one.count * unit.step_copy for one, unit in units),
            largest_unit=max((unit.weights for _, unit in units), default=0.0),
            largest_saved=largest_saved,
        )

    def gathered_bytes(self, wholes: Sequence[float], gradient_bytes: float) -> float:
        """Whole units under ZeRO, at work and fetched ahead, and the gradient of one.

        ``wholes``: of the stage's units, the largest first.
        """
        weights = sum(wholes[:_RESIDENT_UNITS])
        most = self._facts.most_gathered_parameters
        if most is not None:
            dtypes = self._training.dtypes
            weights = min(weights, most * dtypes.parameter_bytes)
            most_bytes = most / 2 * (dtypes.parameter_bytes + dtypes.gradient_bytes)
            gradient_bytes = min(gradient_bytes, most_bytes)
        return weights + gradient_bytes

    def parts(
        self,
        layout: Layout,
        stages: Sequence[StageBytes],
        in_flight: Sequence[Sequence[Sequence[int]]],
        message_bytes: float = 0.0,
    ) -> tuple[MemoryParts, ...]:
        """The peak of each pipeline rank.

        ``in_flight``: for each rank, counts by chunk of micro-batches that are held at once.
        ``message_bytes``: what a stage sends to the next. It keeps what it received, not what it
        sent.
        """
        own: list[list[StageBytes]] = [[] for _ in range(layout.pp)]
        saved: list[list[float]] = [[] for _ in range(layout.pp)]
        last = len(stages) - 1
        for index, (stage, size) in enumerate(zip(layout.stages, stages, strict=True)):
            messages = message_bytes * ((index > 0) - (index < last))
            own[stage.rank].append(size)
            saved[stage.rank].append(max(0.0, size.saved + messages))
        beside = self._beside_bytes(layout)
        return tuple(
            self._rank(layout, row, _most(kept, counts), beside)
            for row, kept, counts in zip(own, saved, in_flight, strict=True)
        )

    def _rank(
        self,
        layout: Layout,
        stages: Sequence[StageBytes],
        activations: float,
        beside: float,
    ) -> MemoryParts:
        offload = layout.offload
        if "activations" in offload:
            activations = resident_bytes(activations, max(one.largest_saved for one in stages))
        weights = sum(stage.weights for stage in stages)
        gradients = sum(stage.gradients for stage in stages)
        optimizer = sum(stage.optimizer_state for stage in stages)
        working = max(stage.working for stage in stages)
        gathered = max(stage.gathered for stage in stages)
        step_copy = sum(stage.step_copy for stage in stages)
        if "parameters" in offload:
            weights = resident_bytes(weights, max(stage.largest_unit for stage in stages))
        if "optimizer" in offload:
            optimizer = step_copy = 0.0
        if step_copy > activations + working + gathered:
            activations, working, gathered = 0.0, step_copy, 0.0
        live = weights + gradients + optimizer + activations + working + gathered
        return MemoryParts(
            weights=round(weights),
            gradients=round(gradients),
            optimizer_state=round(optimizer),
            activations=round(activations),
            gathered_weights=round(gathered),
            transient=round(working),
            fixed=round(live * self._margin + beside),
        )

    def host_bytes(self, layout: Layout, stages: Sequence[StageBytes]) -> tuple[int, ...]:
        """Host memory that a rank of each pipeline rank takes for what is offloaded, without the
        activations."""
        totals = [0.0] * layout.pp
        for stage, size in zip(layout.stages, stages, strict=True):
            totals[stage.rank] += size.optimizer_state * ("optimizer" in layout.offload)
            totals[stage.rank] += size.weights * ("parameters" in layout.offload)
        return tuple(round(total) for total in totals)

    def reading(self, rank: MemoryParts, kind: MemoryKind) -> int:
        """A pipeline rank's peak as a kind of measurement reads it."""
        live = rank.total_bytes - rank.fixed
        if kind == "allocated_or_unknown" and self._facts.reports_device_memory:
            kind = "device"
        if kind == "allocated_or_unknown":
            return live
        if kind == "reserved":
            return live + round(live * self._margin)
        return rank.total_bytes + round(self._parameters.get("memory.context_bytes", 0.0))

    def verdict(self, memory: Sequence[MemoryParts], capacity_bytes: int) -> MemoryVerdict:
        """``does_not_fit``: more is needed than there is, in the middle of what is expected.

        ``edge``: it may, at the upper end, with the most that an allocator loses to fragmentation.
        """
        fullest = max(memory, key=lambda rank: rank.total_bytes)
        peak = fullest.total_bytes
        if peak * self._parameters.get("memory.central_ratio", 1.0) > capacity_bytes:
            return "does_not_fit"
        most = peak + (peak - fullest.fixed) * self._more_margin
        high = most * self._parameters.get("memory.high_ratio", 1.0)
        return "edge" if high > capacity_bytes else "fits"

    def most_live_bytes(self, layout: Layout, capacity_bytes: int) -> float:
        """`verdict` the other way round: of what tensors take up the most that ``fits``."""
        beside = self._beside_bytes(layout)
        central = capacity_bytes / self._parameters.get("memory.central_ratio", 1.0)
        high = capacity_bytes / self._parameters.get("memory.high_ratio", 1.0)
        return min(
            (central - beside) / (1 + self._margin),
            (high - beside) / (1 + self._margin + self._more_margin),
        )

    def live_within_bytes(self, layout: Layout, total_bytes: float) -> float:
        """What tensors may take up so that a rank's whole memory, as it is stated, is no more."""
        rounding = len(MemoryParts.model_fields) / 2
        return (total_bytes + rounding - self._beside_bytes(layout)) / (1 + self._margin)

    def _beside_bytes(self, layout: Layout) -> float:
        """What a rank has beside its tensors: communicators, and more than the usual context."""
        return self._communicators(layout) + self._more_context

    def _communicators(self, layout: Layout) -> float:
        count = num_communicators(layout)
        if not count:
            return 0.0
        first = self._parameters.get("memory.first_communicator_bytes", 0.0)
        each = self._parameters.get("memory.communicator_bytes", 0.0)
        return first + (count - 1) * each


def resident_bytes(all_bytes: float, largest_bytes: float) -> float:
    """What of tensors in host memory is on the device at once: the unit at work and the next;
    ``largest_bytes``: of any unit."""
    return min(all_bytes, _RESIDENT_UNITS * largest_bytes)


def num_communicators(layout: Layout) -> int:
    """Groups of ranks that one rank talks to, as Megatron and PyTorch make them.

    The world, each axis, the model's ranks together (gradient norm); of a pipeline itself and two
    pairs: both neighbours, or one and the other end, with which a table is shared.
    """
    axes = (layout.world, layout.tp, layout.dp * layout.cp, layout.cp, layout.ep)
    model = layout.tp > 1 and layout.pp > 1
    return sum(size > 1 for size in axes) + model + 3 * (layout.pp > 1)


def _most(saved: Sequence[float], flights: Sequence[Sequence[int]]) -> float:
    """What the micro-batches in flight keep at the fullest of several moments."""
    if len(saved) == 1:
        return saved[0] * max(counts[0] for counts in flights)
    return max(
        sum(count * kept for count, kept in zip(counts, saved, strict=True)) for counts in flights
    )


def _activations(one: Holding) -> tuple[float, float]:
    """What each micro-batch in flight keeps of a unit, and what its backward has on top.

    Logits are kept by the micro-batch at work alone: its backward follows at once. A unit without a
    backward pass keeps nothing: neither its weights nor what is before it need gradients.
    """
    work = one.work
    if one.is_head:
        return 0.0, work.whole_bytes
    if one.frozen and not work.adapters and not work.backward_input:
        return 0.0, work.whole_bytes
    return work.saved_bytes, work.whole_bytes - work.saved_bytes + 2 * work.widest_bytes


@dataclass(frozen=True, slots=True)
class _UnitBytes:
    weights: float
    gradients: float
    optimizer: float
    step_copy: float
    whole: float
    """Its weights gathered; 0 where they always are."""
    whole_gradient: float


class _State:
    """Weights, gradients and optimizer state of units under ZeRO."""

    def __init__(self, training: TrainingSpec, facts: MemoryFacts, layout: Layout) -> None:
        dtypes = training.dtypes
        self._layout, self._dtypes = layout, dtypes
        self._item, self._gradient = dtypes.parameter_bytes, dtypes.gradient_bytes
        self._optimizer = training.optimizer.name
        self._frozen_item = QUANTISED_BYTES if training.trainable.startswith("q") else self._item
        self._copies = facts.gradient_copy_bytes.get(training.precision, 0.0)
        is_narrow = dtypes.matmul in ("fp8", "fp4")
        self._narrow = facts.narrow_weight_bytes if is_narrow and layout.zero < 3 else 0.0
        is_sharded = layout.zero == 3 and layout.zero_shard_degree > 1
        in_pipeline = facts.pipeline_keeps_units and layout.pp > 1
        self._stays_whole = is_sharded and (in_pipeline or not layout.reshard_after_forward)
        self._sums_whole = is_sharded and in_pipeline
        self._has_master = dtypes.master_bytes > 0

    def of(self, one: Holding) -> _UnitBytes:
        """One unit."""
        layout, work = self._layout, one.work
        tied = work.tied_parameters * self._has_own_copy()
        matrices = work.matrices
        total = [0.0] * 6
        dense = work.parameters + tied
        for count, shard, matrix, sides in (
            (dense, layout.zero_shard_degree, matrices.dense, matrices.dense_sides),
            (work.expert_parameters, layout.expert_zero_shard_degree, matrices.expert,
             matrices.expert_sides),
        ):  # fmt: skip
            trained = 0.0 if one.frozen else count
            moments = self._moments(one, trained, matrix, sides)
            for index, value in enumerate(self._bytes(one, count, trained, moments, shard)):
                total[index] += value
        adapted = self._bytes(one, 0.0, work.adapters, self._moments(one, work.adapters, 0, 0),
                              layout.zero_shard_degree)  # fmt: skip
        total = [a + b for a, b in zip(total, adapted, strict=True)]
        total[0] += work.adapters * self._item
        return _UnitBytes(*total)

    def _bytes(
        self, one: Holding, count: float, trained: float, moments: float, shard: int
    ) -> tuple[float, ...]:
        """By field of `_UnitBytes`: ``count`` parameters, ``trained`` of them trained."""
        zero, item, gradient = self._layout.zero, self._item, self._gradient
        own = shard if zero >= 1 else 1
        kept_item = self._frozen_item if one.frozen else item
        master = trained * self._dtypes.master_bytes
        step_copy = trained * _FP32_BYTES if gradient < _FP32_BYTES and self._has_master else 0.0
        if zero < 3:
            weights = count * (kept_item + self._narrow)
            gradients = trained * (gradient / (shard if zero == 2 else 1) + self._copies)
            whole_gradient = trained * gradient if zero == 2 and shard > 1 else 0.0
            optimizer = (master + moments) / own
            return weights, gradients, optimizer, step_copy / own, 0.0, whole_gradient
        # The sharded weights are the master copy; the narrow one is made when a unit is gathered.
        frozen = (count - trained) * kept_item
        sharded = max(trained * item, master)
        weights = (frozen + sharded) / shard + count * item * self._stays_whole
        gradients = trained * (gradient / shard + gradient * self._sums_whole)
        whole = count * item * (shard > 1 and not self._stays_whole)
        reduced = trained * (item + gradient) * (shard > 1 and not self._sums_whole)
        return weights, gradients, moments / shard, step_copy / shard, whole, reduced

    def _moments(self, one: Holding, trained: float, matrix: float, sides: float) -> float:
        """Bytes of the optimizer's moments; ``matrix`` of the parameters in matrices with ``sides``
        rows and columns."""
        size = self._dtypes.moment_bytes
        if not trained:
            return 0.0
        matrix = min(matrix, trained)
        match self._optimizer:
            case "adamw":
                return 2 * size * trained
            case "adamw-8bit":
                return 2 * _BYTE_MOMENT * trained
            case "adafactor":
                table = one.work.matrices.table_sides
                return size * (table or sides + trained - matrix)
            case "muon":
                hidden = 0.0 if one.is_head else matrix
                return size * (hidden + 2 * (trained - hidden))
            case "sgd":
                return size * trained

    def _has_own_copy(self) -> bool:
        """Whether first and last stage, which share a table, are different ranks."""
        stages = self._layout.stages
        return stages[0].rank != stages[-1].rank
