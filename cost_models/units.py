"""What units and stages cost: their books, priced on the slowest tensor-parallel rank.

A unit (embedding, layer, head) is priced once for all its equals: `UnitPricer` keeps prices by the
identity of the unit's blocks, which equal layers share.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from shardwright.cost_models.blocks.operations import Collective, Operation
from shardwright.cost_models.blocks.stage import StageBooks, UnitBooks
from shardwright.cost_models.compute import ComputeModel
from shardwright.cost_models.groups import GroupName, GroupPrices
from shardwright.cost_models.job_books import TIED_UNIT, JobBooks
from shardwright.cost_models.shards import UnitShards
from shardwright.specs import ActionKind, Layout, ModelSpec, SoftwareSpec, TrainingSpec

Levels = tuple[int, ...]
"""Numbers of busy ranks of a node at which work is priced."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """One forward or backward pass of one micro-batch."""

    compute_s: float = 0.0
    recompute_s: float = 0.0
    """The forward that backward runs again, its communication apart."""
    tp_comm_s: float = 0.0
    dp_comm_s: float = 0.0
    """Gathering weights and reducing gradients of ZeRO 3."""

    @property
    def total_s(self) -> float:
        return self.compute_s + self.recompute_s + self.tp_comm_s + self.dp_comm_s

    def __add__(self, other: PassSeconds) -> PassSeconds:
        return PassSeconds(
            self.compute_s + other.compute_s,
            self.recompute_s + other.recompute_s,
            self.tp_comm_s + other.tp_comm_s,
            self.dp_comm_s + other.dp_comm_s,
        )

    def scaled(self, factor: float) -> PassSeconds:
        """Every part times ``factor``."""
        return PassSeconds(
            self.compute_s * factor,
            self.recompute_s * factor,
            self.tp_comm_s * factor,
            self.dp_comm_s * factor,
        )


@dataclass(frozen=True, slots=True)
class _ShardSeconds:
    """What ZeRO adds to a unit. Gathering and scattering have one entry per level of business."""

    gather_s: tuple[float, ...]
    scatter_s: tuple[float, ...]
    reduction_s: float
    norm_s: float
    update_s: float
    publish_s: float


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """A unit on one pipeline rank. Passes have one entry per level of business."""

    forward: tuple[PassSeconds, ...]
    backward: tuple[PassSeconds, ...]
    reduction_s: float
    """Bringing its gradients to their sum after the step's last backward."""
    norm_s: float
    """Squares of the own gradients."""
    update_s: float
    """Clearing the gradients, clipping, AdamW."""
    publish_s: float
    """Gathering the updated weights (ZeRO 1 and 2)."""


@dataclass(frozen=True, slots=True)
class StageCosts:
    """A virtual stage: the sums over its units, and its messages."""

    units: tuple[UnitCosts, ...]
    forward: tuple[PassSeconds, ...]
    backward: tuple[PassSeconds, ...]
    reduction_s: float
    norm_s: float
    update_s: float
    publish_s: float
    send_forward_s: float
    """Its output to the next stage; 0 for the last."""
    send_backward_s: float
    """The gradient of its input to the stage before; 0 for the first."""
    tied_sum_s: float
    """Sum of a tied weight's gradient over the first and last stage; 0 where it has none."""


class UnitPricer(JobBooks):
    """Prices units and stages of one training job."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        compute: ComputeModel,
        software: SoftwareSpec,
    ) -> None:
        super().__init__(model, training, software)
        self._compute = compute
        self._clips = training.optimizer.clip_norm is not None
        self._passes: dict[Hashable, tuple[PassSeconds, ...]] = {}
        self._shard_seconds: dict[Hashable, _ShardSeconds] = {}
        self._prices: dict[Hashable, UnitCosts] = {}

    def stage_costs(
        self, layout: Layout, stage: int, groups: GroupPrices, levels: Levels
    ) -> StageCosts:
        """A virtual stage on the pipeline rank that the layout puts it on."""
        books = self.books(layout, stage)
        units = tuple(
            self.unit_costs(layout, ranks, layout.stages[stage].rank, groups, levels)
            for ranks in zip(*(one.units for one in books), strict=True)
        )
        forward, backward = (
            tuple(
                functools.reduce(operator.add, passes, PassSeconds())
                for passes in zip(*(getattr(unit, name) for unit in units), strict=True)
            )
            for name in ("forward", "backward")
        )
        return StageCosts(
            units=units,
            forward=forward or _NOTHING * len(levels),
            backward=backward or _NOTHING * len(levels),
            reduction_s=sum(unit.reduction_s for unit in units),
            norm_s=sum(unit.norm_s for unit in units),
            update_s=sum(unit.update_s for unit in units),
            publish_s=sum(unit.publish_s for unit in units),
            send_forward_s=self.message_s(books[0].message_bytes, layout, stage, groups),
            send_backward_s=self.message_s(books[0].input_bytes, layout, stage - 1, groups),
            tied_sum_s=self._tied_sum_s(layout, books[0], groups),
        )

    def split_costs(
        self, layout: Layout, stage: int, groups: GroupPrices, levels: Levels
    ) -> dict[ActionKind, tuple[PassSeconds, ...]]:
        """The two halves of a virtual stage's backward, where that is split."""
        pp_rank = layout.stages[stage].rank
        totals = {kind: _NOTHING * len(levels) for kind in _HALVES}
        for unit in zip(*(one.units for one in self.books(layout, stage)), strict=True):
            shards = self.shards(layout, max(unit, key=lambda one: one.num_parameters))
            shared = self._price_shards(shards, pp_rank, groups, levels)
            zero_s = (shared.gather_s, shared.scatter_s)
            for (kind, name), added_s in zip(_HALVES.items(), zero_s, strict=True):
                own = self._price_pass(unit, name, pp_rank, groups, levels)
                totals[kind] = tuple(
                    total + one + PassSeconds(dp_comm_s=seconds)
                    for total, one, seconds in zip(totals[kind], own, added_s, strict=True)
                )
        return totals

    def message_s(
        self, num_bytes: int, layout: Layout, first_stage: int, groups: GroupPrices
    ) -> float:
        """One message between a stage and the next, in either direction."""
        if not num_bytes:
            return 0.0
        ranks = [layout.stages[first_stage + offset].rank for offset in (0, 1)]
        if ranks[0] == ranks[1]:
            return 0.0
        dtype = self._training.dtypes.parameter
        message = Collective("message", "send_recv", "pp", num_bytes, dtype)
        return groups.seconds(message, "next", min(ranks), layout.world_size.ranks_per_stage)

    def unit_costs(
        self,
        layout: Layout,
        unit: tuple[UnitBooks, ...],
        pp_rank: int,
        groups: GroupPrices,
        levels: Levels,
    ) -> UnitCosts:
        """A unit, given as its books on the distinct tensor-parallel ranks."""
        key = (
            self._identity(unit), unit[0].recompute, unit[0].num_parameters, unit[0].is_shared,
            layout.zero, levels, groups.key(pp_rank),
        )  # fmt: skip
        found = self._prices.get(key)
        if found is None:
            found = self._prices[key] = self._price(layout, unit, pp_rank, groups, levels)
        return found

    def _price(
        self,
        layout: Layout,
        unit: tuple[UnitBooks, ...],
        pp_rank: int,
        groups: GroupPrices,
        levels: Levels,
    ) -> UnitCosts:
        shards = self.shards(layout, max(unit, key=lambda one: one.num_parameters))
        shared = self._price_shards(shards, pp_rank, groups, levels)
        forward, backward = (
            self._price_pass(unit, name, pp_rank, groups, levels)
            for name in ("forward", "backward")
        )
        once = not unit[0].is_shared
        return UnitCosts(
            forward=tuple(
                own + PassSeconds(dp_comm_s=gather_s)
                for own, gather_s in zip(forward, shared.gather_s, strict=True)
            ),
            backward=tuple(
                own + PassSeconds(dp_comm_s=gather_s + scatter_s)
                for own, gather_s, scatter_s in zip(
                    backward, shared.gather_s, shared.scatter_s, strict=True
                )
            ),
            reduction_s=shared.reduction_s * once,
            norm_s=shared.norm_s * once,
            update_s=shared.update_s * once,
            publish_s=shared.publish_s * once,
        )

    def _price_shards(
        self, shards: UnitShards, pp_rank: int, groups: GroupPrices, levels: Levels
    ) -> _ShardSeconds:
        """The same whatever a micro-batch is and whether it is recomputed."""

        def collectives_s(calls: Iterable[tuple[Collective, GroupName]], busy: int) -> float:
            return sum(groups.seconds(call, group, pp_rank, busy) for call, group in calls)

        key = (shards, levels, groups.key(pp_rank))
        found = self._shard_seconds.get(key)
        if found is None:
            all_busy = groups.ranks_per_node
            found = self._shard_seconds[key] = _ShardSeconds(
                gather_s=tuple(collectives_s(shards.gathering(), busy) for busy in levels),
                scatter_s=tuple(collectives_s(shards.scattering(), busy) for busy in levels),
                reduction_s=collectives_s(shards.reduction(), all_busy),
                norm_s=self._seconds((shards.norm(),), all_busy),
                update_s=self._seconds(shards.update(clips=self._clips), all_busy),
                publish_s=collectives_s(shards.publishing(), all_busy),
            )
        return found

    def _price_pass(
        self,
        unit: tuple[UnitBooks, ...],
        name: str,
        pp_rank: int,
        groups: GroupPrices,
        levels: Levels,
    ) -> tuple[PassSeconds, ...]:
        """Of the slowest rank at each level, without ZeRO; the same for every dp."""
        key = (
            self._identity(unit), name, unit[0].recompute, levels, groups.paths("tp", pp_rank)
        )  # fmt: skip
        found = self._passes.get(key)
        if found is None:
            found = self._passes[key] = tuple(
                max(
                    (self._pass(one, name, pp_rank, groups, busy) for one in unit),
                    key=lambda seconds: seconds.total_s,
                )
                for busy in levels
            )
        return found

    def _pass(
        self, unit: UnitBooks, name: str, pp_rank: int, groups: GroupPrices, busy: int
    ) -> PassSeconds:
        operations: tuple[Operation, ...] = getattr(unit, name)
        again = unit.recomputed if name in ("backward", "backward_input") else ()
        whole_s = self._seconds(operations, busy)
        again_s = self._seconds(again, busy)
        tp_comm_s = sum(
            groups.seconds(operation, "tp", pp_rank, busy)
            for operation in operations
            if isinstance(operation, Collective)
        )
        return PassSeconds(whole_s - again_s, again_s, tp_comm_s)

    def _seconds(self, operations: Iterable[Operation], busy: int) -> float:
        """Everything but collectives, one after the other."""
        return sum(
            self._compute.seconds(operation, busy)
            for operation in operations
            if not isinstance(operation, Collective)
        )

    def _tied_sum_s(self, layout: Layout, books: StageBooks, groups: GroupPrices) -> float:
        """Nothing where one rank holds embedding and head."""
        tied = next((unit for unit in books.units if unit.name == TIED_UNIT), None)
        if tied is None or layout.stages[0].rank == layout.stages[-1].rank:
            return 0.0
        calls = self.shards(layout, tied).tied_sum()
        return sum(groups.seconds(call, group, books.stage.rank) for call, group in calls)


_NOTHING = (PassSeconds(),)
_HALVES = {
    ActionKind.BACKWARD_INPUT: "backward_input", ActionKind.BACKWARD_WEIGHT: "backward_weight",
}  # fmt: skip
