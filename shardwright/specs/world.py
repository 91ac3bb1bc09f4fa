"""The one place that does world-size arithmetic.

    world = tp x cp x dp x pp            (the dense grid; EP is never a factor of the world size)
    edp   = tp x cp x dp / (etp x ep)    (the expert grid folds over the same ranks of a stage)

Rank order, leftmost fastest: ``tp-cp-dp-pp``, that is
rank = tp + TP x (cp + CP x (dp + DP x pp)); the expert grid is ``etp-ep-edp-pp``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a rank stands in the dense grid."""

    tp: int
    cp: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True)
class WorldSize:
    """Degrees of each axis; `dp` is the number of ranks with different data, without cp."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def ranks_per_stage(self) -> int:
        return self.tp * self.cp * self.dp

    @property
    def edp(self) -> int | None:
        """Expert data parallelism; None where it is not an integer."""
        expert_ranks = self.etp * self.ep
        return None if self.ranks_per_stage % expert_ranks else self.ranks_per_stage // expert_ranks

    @property
    def smallest_world(self) -> int:
        """The fewest ranks on which these tp, cp, pp, ep and etp exist."""
        return self.pp * math.lcm(self.tp * self.cp, self.etp * self.ep)

    def coordinates(self, rank: int) -> Coordinates:
        tp, rest = rank % self.tp, rank // self.tp
        cp, rest = rest % self.cp, rest // self.cp
        dp, pp = rest % self.dp, rest // self.dp
        return Coordinates(tp=tp, cp=cp, dp=dp, pp=pp)

    def rank_of(self, at: Coordinates) -> int:
        return at.tp + self.tp * (at.cp + self.cp * (at.dp + self.dp * at.pp))

    def groups(self, *axes: str) -> list[list[int]]:
        """Ranks that share every coordinate but those of ``axes`` (of tp, cp, dp, pp).

        Groups are sorted by their first rank, and ranks within a group ascend.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world):
            at = self.coordinates(rank)
            key = tuple(getattr(at, axis) for axis in ("tp", "cp", "dp", "pp") if axis not in axes)
            groups.setdefault(key, []).append(rank)
        return sorted(groups.values())

    def expert_groups(self, *axes: str) -> list[list[int]]:
        """As `groups`, on the expert grid (axes etp, ep, edp, pp)."""
        assert self.edp is not None
        expert = WorldSize(tp=self.etp, cp=self.ep, dp=self.edp, pp=self.pp)
        names = {"etp": "tp", "ep": "cp", "edp": "dp", "pp": "pp"}
        return expert.groups(*(names[axis] for axis in axes))


def divisors(number: int) -> list[int]:
    """Every divisor of a positive integer, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def dense_grids(world: int) -> Iterator[WorldSize]:
    """Every (tp, cp, dp, pp) whose product is ``world``, in lexicographic order of tp, cp, pp."""
    for tp in divisors(world):
        for cp in divisors(world // tp):
            for pp in divisors(world // tp // cp):
                yield WorldSize(tp=tp, cp=cp, pp=pp, dp=world // tp // cp // pp)


def split_evenly(total: int, parts: int) -> list[range]:
    """``total`` items over ``parts`` owners in order; sizes differ by at most one, larger first.

    >>> [len(r) for r in split_evenly(10, 4)]
    [3, 3, 2, 2]
    """
    base, extra = divmod(total, parts)
    starts = [part * base + min(part, extra) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def nearest(values: list[int], wanted: int) -> list[int]:
    """The valid values next below and next above ``wanted``, for messages."""
    below = [v for v in values if v < wanted]
    above = [v for v in values if v > wanted]
    return ([max(below)] if below else []) + ([min(above)] if above else [])
