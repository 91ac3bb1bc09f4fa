"""`ParallelGroups`: the process groups of one rank, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from shardwright.specs.layout import Layout
from shardwright.specs.world import Coordinates, WorldSize


@dataclass(frozen=True, slots=True)
class ParallelGroups:
    """The groups that this rank belongs to; None where a group would have one member."""

    rank: int
    sizes: WorldSize
    coordinates: Coordinates
    world: dist.ProcessGroup | None = None
    tp: dist.ProcessGroup | None = None
    dp: dist.ProcessGroup | None = None
    pp: dist.ProcessGroup | None = None
    embedding: dist.ProcessGroup | None = None
    """The two ranks whose stages both hold a tied embedding; None on every other rank."""

    @classmethod
    def create(cls, layout: Layout, *, timeout: timedelta | None = None) -> ParallelGroups:
        """The groups of this rank, by a collective call of every rank of the initialised world."""
        sizes = layout.world_size
        if sizes.world == 1:
            return cls.alone()
        assert dist.get_world_size() == sizes.world, (dist.get_world_size(), sizes)
        rank = dist.get_rank()
        return cls(
            rank=rank, sizes=sizes, coordinates=sizes.coordinates(rank), world=dist.group.WORLD,
            tp=_own_group(sizes.groups("tp"), rank, timeout),
            dp=_own_group(sizes.groups("dp"), rank, timeout),
            pp=_own_group(sizes.groups("pp"), rank, timeout),
            embedding=_own_group(_embedding_groups(layout), rank, timeout),
        )  # fmt: skip

    @classmethod
    def alone(cls) -> ParallelGroups:
        """The groups of a world of one process, which needs no ``torch.distributed``."""
        return cls(0, WorldSize(), Coordinates(0, 0, 0, 0))

    def pipeline_rank(self, pp: int) -> int:
        """The global rank at another place of this rank's pipeline."""
        at = self.coordinates
        return self.sizes.rank_of(Coordinates(at.tp, at.cp, at.dp, pp % self.sizes.pp))

    @property
    def next_rank(self) -> int:
        """Global rank of the next pipeline rank, cyclic."""
        return self.pipeline_rank(self.coordinates.pp + 1)

    @property
    def previous_rank(self) -> int:
        """Global rank of the previous pipeline rank, cyclic."""
        return self.pipeline_rank(self.coordinates.pp - 1)


def _embedding_groups(layout: Layout) -> list[list[int]]:
    """Pairs of the pipeline's first and last stage's ranks, one for each tp, cp and dp."""
    ends = sorted({layout.stages[0].rank, layout.stages[-1].rank})
    pipelines = layout.world_size.groups("pp")
    return [[ranks[end] for end in ends] for ranks in pipelines]


def _own_group(
    groups: list[list[int]], rank: int, timeout: timedelta | None
) -> dist.ProcessGroup | None:
    """Create every group (each rank must take part, in the same order); return the own one."""
    own = None
    for ranks in groups:
        if len(ranks) > 1:
            group = dist.new_group(ranks, timeout=timeout)
            own = group if rank in ranks else own
    return own
