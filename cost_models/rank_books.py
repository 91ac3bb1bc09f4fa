"""`RankBooks`: all that one rank of a layout does in a step and keeps, as exact numbers.

What a running program is held to, by tests on real ranks and by dry runs at any size. The blocks'
collectives and FLOPs of all micro-batches, the schedule's sends, the units' gathers, reductions and
publications, and the step's own two sums; what units keep between steps; the fullest moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from shardwright.cost_models.blocks.operations import (
    Attention,
    Collective,
    Matmul,
    Operation,
    ParameterBooks,
)
from shardwright.cost_models.blocks.stage import StageBooks, UnitBooks
from shardwright.cost_models.groups import GroupName, ranks_of_groups
from shardwright.cost_models.job_books import TIED_UNIT, JobBooks
from shardwright.cost_models.memory import MemoryModel
from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.cost_models.shards import UnitShards
from shardwright.specs import (
    ActionKind,
    Layout,
    MemoryParts,
    ModelSpec,
    Schedule,
    SoftwareSpec,
    TrainingSpec,
)

Call = tuple[str, int, tuple[int, ...]]
"""Kind, bytes of the tensor handed in, global ranks ascending."""

COUNT_BYTES = 8
"""One int64: valid tokens, summed over dp."""
LOSS_AND_NORM_BYTES = 16
"""Two float64: the loss and the squared gradient norm, summed over the world."""

_INSIDE: tuple[GroupName, ...] = ("tp", "dp", "shard", "replica")


@dataclass(frozen=True, slots=True)
class KeptUnit:
    """What one unit takes up between steps, in bytes."""

    name: str
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


class RankBooks:
    """The books of one rank of our own runtime.

    Attributes:
        at: its coordinates.
        groups: the global ranks of each group that it is in, by name; it alone where it has no
            peers. ``dp`` are all ranks with other data, ``shard`` those of them that share a ZeRO
            copy, ``replica`` those with the same slice of other copies, ``embedding`` the two that
            hold a tied weight or would.
        stages: of each virtual stage that it holds, in model order.
    """

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        layout: Layout,
        rank: int,
        schedule: Schedule | None = None,
    ) -> None:
        """``schedule``: the layout's, where that is a custom one."""
        self._layout, self._training = layout, training
        self._schedule = schedule or schedule_of(layout)
        self._job = JobBooks(model, training, SoftwareSpec())
        self.at = layout.world_size.coordinates(rank)
        self.groups = groups_of_rank(layout, rank)
        self.stages: tuple[StageBooks, ...] = tuple(
            self._job.books_of_rank(layout, stage.stage, self.at.tp)
            for stage in layout.stages
            if stage.rank == self.at.pp
        )

    @cached_property
    def _units(self) -> list[tuple[UnitBooks, UnitShards]]:
        """Of all stages: a tied weight of two stages of this rank comes twice."""
        units = (unit for stage in self.stages for unit in stage.units)
        return [(unit, self._job.shards(self._layout, unit)) for unit in units]

    @cached_property
    def _units_once(self) -> list[tuple[UnitBooks, UnitShards]]:
        return list({unit.name: (unit, shards) for unit, shards in self._units}.values())

    @property
    def layers(self) -> tuple[int, ...]:
        """Global numbers of its layers."""
        return tuple(layer for one in self.stages for layer in range(*one.stage.layers))

    @property
    def parameters(self) -> tuple[ParameterBooks, ...]:
        return tuple(parameter for unit, _ in self._units_once for parameter in unit.parameters)

    @property
    def parameter_bytes(self) -> int:
        """Of the parameters as they are built, before ZeRO cuts them."""
        numel = sum(parameter.numel for parameter in self.parameters)
        return numel * self._training.dtypes.parameter_bytes

    def kept(self) -> list[KeptUnit]:
        """Its units that have parameters."""
        return [
            KeptUnit(unit.name, shards.weight_bytes, shards.gradient_bytes, shards.optimizer_bytes)
            for unit, shards in self._units_once
            if unit.num_parameters
        ]

    def flops(self) -> int:
        """Of a step's products and attention cores, what is computed again included."""
        products = (
            operation.flops
            for unit, _ in self._units
            for operation in (*unit.forward, *unit.backward)
            if isinstance(operation, Matmul | Attention)
        )
        return self._layout.micro_batches * sum(products)

    def memory(self) -> MemoryParts:
        """Bytes of its tensors at the fullest moment of a step; the fixed part is 0."""
        model = MemoryModel(self._training, {}, self._job)
        return model.parts_of_rank(self._layout, self.at.pp, self.at.tp, self._schedule)

    def calls(self) -> Counter[Call]:
        """How often each collective and each send is called in a step."""
        found: Counter[Call] = Counter()
        for call, times in self._calls():
            if len(call[2]) > 1:
                found[call] += times
        return found

    def _calls(self) -> Iterator[tuple[Call, int]]:
        micro_batches = self._layout.micro_batches
        for unit, shards in self._units:
            every = (*_tensor_parallel(unit.forward), *_tensor_parallel(unit.backward))
            zero = (*shards.gathering(), *shards.gathering(), *shards.scattering())
            yield from self._placed((*every, *zero), micro_batches)
        for unit, shards in self._units_once:
            yield from self._placed((*shards.reduction(), *shards.publishing()), 1)
            if unit.name == TIED_UNIT:
                yield from self._placed(shards.tied_sum(), 1)
        yield from self._sends()
        yield ("all_reduce", COUNT_BYTES, self.groups["dp"]), 1
        yield ("all_reduce", LOSS_AND_NORM_BYTES, self.groups["world"]), 1

    def _placed(
        self, calls: Iterable[tuple[Collective, GroupName]], times: int
    ) -> Iterator[tuple[Call, int]]:
        for call, group in calls:
            yield (call.kind, call.input_bytes, self.groups[group]), times

    def _sends(self) -> Iterator[tuple[Call, int]]:
        stages = {stage.stage.stage: stage for stage in self.stages}
        for action in self._schedule.ranks[self.at.pp]:
            if action.kind is ActionKind.SEND_FORWARD:
                size = stages[action.stage].message_bytes
            elif action.kind is ActionKind.SEND_BACKWARD:
                size = stages[action.stage].input_bytes
            else:
                continue
            yield ("send_recv", size, self.groups["pp"]), 1


def groups_of_rank(layout: Layout, rank: int) -> dict[str, tuple[int, ...]]:
    """The ranks of each group that a rank is in, as they are priced (`cost_models.groups`)."""
    world, degree = layout.world_size, layout.zero_shard_degree
    pp_rank = world.coordinates(rank).pp
    found: dict[str, tuple[int, ...]] = {
        name: _own(ranks_of_groups(world, degree, name, pp_rank), rank) for name in _INSIDE
    }
    pipeline = range(rank % world.ranks_per_stage, world.world, world.ranks_per_stage)
    found["pp"] = tuple(pipeline)
    ends = sorted({layout.stages[0].rank, layout.stages[-1].rank})
    found["embedding"] = tuple(pipeline[end] for end in ends) if pp_rank in ends else (rank,)
    found["world"] = tuple(range(world.world))
    return found


def _own(groups: Iterable[range], rank: int) -> tuple[int, ...]:
    return tuple(next((ranks for ranks in groups if rank in ranks), range(rank, rank + 1)))


def _tensor_parallel(
    operations: Iterable[Operation],
) -> Iterator[tuple[Collective, GroupName]]:
    for operation in operations:
        if isinstance(operation, Collective):
            assert operation.axis == "tp"
            yield operation, "tp"
