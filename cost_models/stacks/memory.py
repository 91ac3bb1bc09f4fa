"""Bytes on one rank of each pipeline stage at its fullest moment.

What a stage always holds (weights, gradients, optimizer state), what its micro-batches in flight
keep, and the moment on top: one layer whole while its backward runs, the logits, gathered units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost_models.stacks.stage import Holding
from shardwright.specs import Layout, MemoryParts, TrainingSpec

_QUANTISED_BYTES = 0.5625
"""4 bits and a scale of one byte (double-quantised) for 16 weights: NF4 of QLoRA."""
_MOMENTS = {"adamw": 2.0, "adamw-8bit": 2.0, "adafactor": 0.01, "muon": 1.0, "sgd": 1.0}
"""Full-size moments of each optimizer; Adafactor keeps rows and columns only."""


@dataclass(frozen=True, slots=True)
class StageBytes:
    """A virtual stage on one rank."""

    weights: float
    gradients: float
    optimizer_state: float
    saved: float
    """By each micro-batch in flight."""
    head_saved: float
    """Part of ``saved`` that only the micro-batch at work keeps."""
    transient: float
    gathered: float


class StackMemory:
    """Prices memory from the holdings of each virtual stage."""

    def __init__(self, training: TrainingSpec, parameters: Mapping[str, float]) -> None:
        self._training, self._parameters = training, parameters

    def stage(self, layout: Layout, holdings: Sequence[Holding]) -> StageBytes:
        """One virtual stage."""
        state = _State(self._training, layout)
        weights = gradients = optimizer = saved = head = transient = gathered = 0.0
        for one in holdings:
            work, count = one.work, one.count
            unit = state.of(one)
            weights += count * unit.weights
            gradients += count * unit.gradients
            optimizer += count * unit.optimizer
            if one.is_head:
                head += work.saved_bytes
            else:
                saved += count * work.saved_bytes
            extra = work.whole_bytes - work.saved_bytes * (not one.is_head)
            if one.is_head:
                extra = work.saved_bytes  # the gradient of the logits beside them
            transient = max(transient, extra + 2 * work.widest_bytes * (not one.is_head))
            gathered = max(gathered, unit.gathered)
        return StageBytes(
            weights, gradients, optimizer, saved + head, head, transient, 2 * gathered
        )

    def parts(
        self,
        layout: Layout,
        stages: Sequence[StageBytes],
        in_flight: Sequence[Sequence[Sequence[int]]],
    ) -> tuple[MemoryParts, ...]:
        """The peak of each pipeline rank.

        ``in_flight``: for each rank, counts by chunk of micro-batches that are held at once.
        """
        own: list[list[StageBytes]] = [[] for _ in range(layout.pp)]
        for stage, size in zip(layout.stages, stages, strict=True):
            own[stage.rank].append(size)
        return tuple(
            self._rank(layout, row, counts) for row, counts in zip(own, in_flight, strict=True)
        )

    def _rank(
        self, layout: Layout, stages: Sequence[StageBytes], flights: Sequence[Sequence[int]]
    ) -> MemoryParts:
        activations = 0.0
        for counts in flights:
            held = 0.0
            for count, stage in zip(counts, stages, strict=True):
                held += count * (stage.saved - stage.head_saved) + min(count, 1) * stage.head_saved
            activations = max(activations, held)
        offloaded = self._offloaded(layout)
        if "activations" in layout.offload:
            activations = min(activations, 2 * max(stage.saved for stage in stages))
        weights = sum(stage.weights for stage in stages) * offloaded["parameters"]
        gradients = sum(stage.gradients for stage in stages)
        optimizer = sum(stage.optimizer_state for stage in stages) * offloaded["optimizer"]
        transient = max(stage.transient for stage in stages)
        gathered = max(stage.gathered for stage in stages)
        live = weights + gradients + optimizer + activations + transient + gathered
        margin = live * self._parameters.get("memory.fragmentation_fraction", 0.0)
        return MemoryParts(
            weights=int(weights),
            gradients=int(gradients),
            optimizer_state=int(optimizer),
            activations=int(activations),
            gathered_weights=int(gathered),
            transient=int(transient),
            fixed=int(margin + self._communicators(layout)),
        )

    @staticmethod
    def _offloaded(layout: Layout) -> dict[str, float]:
        """Shares that stay on the device: a unit at a time where something is offloaded."""
        return {
            "parameters": 0.05 if "parameters" in layout.offload else 1.0,
            "optimizer": 0.0 if "optimizer" in layout.offload else 1.0,
        }

    def _communicators(self, layout: Layout) -> float:
        sizes = (layout.world, layout.tp, layout.dp * layout.cp, layout.pp, layout.ep, layout.cp)
        groups = sum(size > 1 for size in sizes)
        if not groups:
            return 0.0
        first = self._parameters.get("memory.first_communicator_bytes", 0.0)
        each = self._parameters.get("memory.communicator_bytes", 0.0)
        return first + (groups - 1) * each


@dataclass(frozen=True, slots=True)
class _UnitBytes:
    weights: float
    gradients: float
    optimizer: float
    gathered: float


class _State:
    """Weights, gradients and optimizer state of units under ZeRO."""

    def __init__(self, training: TrainingSpec, layout: Layout) -> None:
        dtypes = training.dtypes
        self._layout = layout
        self._item = dtypes.parameter_bytes
        self._gradient = dtypes.gradient_bytes
        optimizer = training.optimizer.name
        moment = 1.0 if optimizer == "adamw-8bit" else dtypes.moment_bytes
        self._state = dtypes.master_bytes + _MOMENTS[optimizer] * moment
        self._frozen_item = _QUANTISED_BYTES if training.trainable.startswith("q") else self._item

    def of(self, one: Holding) -> _UnitBytes:
        layout, work = self._layout, one.work
        total = [0.0, 0.0, 0.0, 0.0]
        frozen_item = self._frozen_item if one.frozen else self._item
        for count, shard in (
            (work.parameters, layout.zero_shard_degree),
            (work.expert_parameters, layout.expert_zero_shard_degree),
        ):
            trained = 0.0 if one.frozen else count
            parameters_shard = shard if layout.zero == 3 else 1
            total[0] += count * frozen_item / parameters_shard
            total[1] += trained * self._gradient / (shard if layout.zero >= 2 else 1)
            total[2] += trained * self._state / (shard if layout.zero >= 1 else 1)
            if layout.zero == 3 and shard > 1:
                total[3] += count * self._item + trained * self._gradient * 0.5
            elif layout.zero == 2 and shard > 1:
                total[3] += trained * self._gradient * 0.5
        adapters = work.adapters
        total[0] += adapters * self._item
        total[1] += adapters * self._gradient
        total[2] += adapters * self._state / (layout.zero_shard_degree if layout.zero else 1)
        return _UnitBytes(*total)


