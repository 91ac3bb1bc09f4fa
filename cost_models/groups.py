"""Which ranks a collective of a layout joins, and what it costs on the slowest such group.

Ranks follow the order tp, cp, dp, pp (`shardwright.specs.world`), so all ranks of a pipeline stage
are neighbours. Groups of one axis that lie equally in their link domains cost the same; only one of
each kind is priced.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property
from typing import Literal

from shardwright.cost_models.blocks.operations import Collective
from shardwright.cost_models.communication import CommunicationModel, GroupPath
from shardwright.specs import ClusterSpec, WorldSize

GroupName = Literal["tp", "dp", "shard", "replica", "world", "embedding", "next"]
"""``dp``: all ranks with other data; ``shard``: those of them that share a ZeRO copy; ``replica``:
equal slices of the copies; ``embedding``: first and last stage; ``next``: a rank and its peer on
the following pipeline rank."""


class GroupPrices:
    """Seconds of collectives for one grid of ranks on one cluster."""

    def __init__(
        self,
        communication: CommunicationModel,
        cluster: ClusterSpec,
        world: WorldSize,
        zero_shard_degree: int,
    ) -> None:
        self.world = world
        self._communication = communication
        self._cluster = cluster
        self._shard_degree = zero_shard_degree
        self._paths: dict[tuple[GroupName, Hashable], tuple[GroupPath, ...]] = {}
        self._keys: dict[int, Hashable] = {}
        self._places: dict[int, Hashable] = {}

    def key(self, pp_rank: int) -> Hashable:
        """Equal for pipeline ranks on which every collective inside the stage costs the same."""
        found = self._keys.get(pp_rank)
        if found is None:
            inside: tuple[GroupName, ...] = ("tp", "shard", "replica")
            paths = (self.paths(name, pp_rank) for name in inside)
            found = self._keys[pp_rank] = (self.world, self._shard_degree, *paths)
        return found

    @cached_property
    def ranks_per_node(self) -> int:
        """How many ranks of this world the fullest node runs."""
        return min(self.world.world, max(g.devices_per_node for g in self._cluster.groups))

    def size(self, group: GroupName) -> int:
        """Ranks in a group."""
        return group_size(self.world, self._shard_degree, group)

    def seconds(
        self, collective: Collective, group: GroupName, pp_rank: int, busy_ranks: int | None = None
    ) -> float:
        """Wall time on the slowest group that has ranks of a pipeline rank.

        ``busy_ranks``: how many ranks of a node take part in such calls at once; default all.
        """
        if self.size(group) == 1:
            return 0.0
        busy = min(busy_ranks or self.ranks_per_node, self.ranks_per_node)
        return max(
            self._communication.seconds_on(collective, path, max(1, busy // path.shape[0]))
            for path in self.paths(group, pp_rank)
        )

    def paths(self, group: GroupName, pp_rank: int) -> tuple[GroupPath, ...]:
        """The distinct paths of the groups of a pipeline rank."""
        key = group, self._place(pp_rank)
        found = self._paths.get(key)
        if found is None:
            paths = map(self._communication.path, self._distinct_groups(group, pp_rank))
            found = self._paths[key] = tuple(dict.fromkeys(paths))
        return found

    def _place(self, pp_rank: int) -> Hashable:
        """Equal for pipeline ranks whose ranks, and those that follow them, lie equally in their
        link domains; all that do not lie within one node group have places of their own."""
        found = self._places.get(pp_rank)
        if found is None:
            per_stage = self.world.ranks_per_stage
            first = pp_rank * per_stage
            last = min(first + 2 * per_stage, self.world.world) - 1
            node = self._cluster.group_of(first)
            is_alike = node is self._cluster.group_of(last)
            place = (id(node), first % node.scale_up_domain_gpus) if is_alike else pp_rank
            found = self._places[pp_rank] = place
        return found

    def _distinct_groups(self, group: GroupName, pp_rank: int) -> Iterator[tuple[int, ...]]:
        """One of the groups that start at the same place of a link domain."""
        seen = set()
        for ranks in self.groups(group, pp_rank):
            nodes = [self._cluster.group_of(ranks[end]) for end in (0, -1)]
            at = (nodes[0].name, nodes[1].name, ranks[0] % nodes[0].scale_up_domain_gpus)
            if at not in seen:
                seen.add(at)
                yield tuple(ranks)

    def groups(self, group: GroupName, pp_rank: int) -> Iterator[range]:
        """The ranks of each group that has ranks of a pipeline rank."""
        return ranks_of_groups(self.world, self._shard_degree, group, pp_rank)


def ranks_of_groups(
    world: WorldSize, zero_shard_degree: int, group: GroupName, pp_rank: int
) -> Iterator[range]:
    """The ranks of each group of a layout's grid that has ranks of a pipeline rank.

    Those of ``embedding`` are of the first and last pipeline rank, whatever ``pp_rank`` is.
    """
    per_stage, tp = world.ranks_per_stage, world.tp
    first = pp_rank * per_stage
    if group == "world":
        yield range(world.world)
    elif group == "tp":
        for base in range(first, first + per_stage, tp):
            yield range(base, base + tp)
    elif group in ("embedding", "next"):
        start, stride = (0, (world.pp - 1) * per_stage) if group == "embedding" else (
            first, per_stage)  # fmt: skip
        for rank in range(start, start + per_stage):
            yield range(rank, rank + 2 * stride, stride) if stride else range(rank, rank + 1)
    else:
        yield from _replica_groups(world, zero_shard_degree, group, first)


def group_size(world: WorldSize, zero_shard_degree: int, group: GroupName) -> int:
    """Ranks in a group of a layout's grid."""
    replicas = world.dp * world.cp
    match group:
        case "tp":
            return world.tp
        case "dp":
            return replicas
        case "shard":
            return zero_shard_degree
        case "replica":
            return replicas // zero_shard_degree
        case "world":
            return world.world
        case "embedding" | "next":
            return min(world.pp, 2)


def _replica_groups(
    world: WorldSize, zero_shard_degree: int, group: GroupName, first: int
) -> Iterator[range]:
    """A shard group is a run of neighbouring replicas; equal places of the runs are a copy."""
    tp, replicas = world.tp, world.dp * world.cp
    size = group_size(world, zero_shard_degree, group)
    step = zero_shard_degree if group == "replica" else 1
    starts = range(step) if group == "replica" else range(0, replicas, size)
    for start in starts:
        for tp_rank in range(tp):
            base = first + tp_rank + tp * start
            yield range(base, base + tp * step * size, tp * step)
