"""Where stages start: balanced by priced time, or as even as units can be.

The balanced split has the least possible busiest stage, and among those each boundary is as near as
can be to its even share of all work.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

_DIGITS = 3
"""Of a unit's seconds relative to the heaviest: below that, two splits are alike."""
_HALVINGS = 24


def num_ways(num_units: int, num_stages: int) -> int:
    """In which every stage has a unit."""
    return math.comb(num_units - 1, num_stages - 1)


def few_ways(unit_s: Sequence[float], num_stages: int, few: int) -> list[tuple[int, ...]]:
    """All ways where there are few; else the balanced one, and the most even one."""
    if num_ways(len(unit_s), num_stages) <= few:
        return list(itertools.combinations(range(1, len(unit_s)), num_stages - 1))
    ways = (balanced_split(unit_s, num_stages), even_split(len(unit_s), num_stages))
    return list(dict.fromkeys(ways))


def even_split(num_units: int, num_stages: int) -> tuple[int, ...]:
    """The first unit of stages 1, 2, ... whose units differ by one at most, larger first."""
    base, extra = divmod(num_units, num_stages)
    return tuple(stage * base + min(stage, extra) for stage in range(1, num_stages))


def balanced_split(unit_s: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """The first unit of stages 1, 2, ... such that the busiest stage has the least to do.

    Every stage holds a unit at least; there must be as many units.
    """
    heaviest = max(unit_s) or 1.0
    return _balanced(tuple(round(s / heaviest, _DIGITS) for s in unit_s), num_stages)


@lru_cache(maxsize=65536)
def _balanced(weights: tuple[float, ...], num_stages: int) -> tuple[int, ...]:
    sums = [0.0, *itertools.accumulate(weights)]
    units, total = len(weights), sums[-1]
    low, high = total / num_stages, total
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _latest_start(sums, num_stages, middle) is None:
            low = middle
        else:
            high = middle
    most = high * (1 + 1e-9)
    earliest = _latest_start(sums, num_stages, most)
    assert earliest is not None
    starts: list[int] = []
    start = 0
    for stage in range(1, num_stages):
        target = total * stage / num_stages
        wanted = bisect_left(sums, target)
        if wanted and target - sums[wanted - 1] < sums[wanted] - target:
            wanted -= 1
        reach = bisect_right(sums, sums[start] + most) - 1
        last = min(reach, units - (num_stages - stage))
        start = max(min(wanted, last), earliest[stage], start + 1)
        starts.append(start)
    return tuple(starts)


def _latest_start(sums: Sequence[float], num_stages: int, most: float) -> list[int] | None:
    """For each stage the first unit at which it may start so that it and all later ones fit.

    None where no split has all stages at ``most`` or less.
    """
    stop = len(sums) - 1
    starts = [0] * num_stages
    for stage in reversed(range(num_stages)):
        first = bisect_left(sums, sums[stop] - most * (1 + 1e-12))
        start = min(max(first, stage), stop - 1)
        if sums[stop] - sums[start] > most * (1 + 1e-9):
            return None
        starts[stage] = start
        stop = start
    return starts if starts[0] == 0 else None
