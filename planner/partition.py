"""Stage boundaries in increasing order of their bound, and how many of them fit.

A cut is the first unit of each stage but the first, which starts at unit 0. The bound of a cut
(`StageBounds.cut_step_s`) is made of three maxima over its stages, so the least bound of all cuts
that begin alike follows from three dynamic programmes over (stage, first unit), run backwards; and
best-first search over beginnings that are extended by one stage at a time yields cuts in exactly
the order of their bounds.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from shardwright.planner.bounds import (
    Floats,
    StageBounds,
    UnitBytes,
    place_of,
    stage_memory_bytes,
)
from shardwright.planner.choices import Choices

Cut = tuple[int, ...]
"""First units of stages 1, 2, ... pp - 1."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The first stages of a cut, and the largest entry of each kind over them."""

    cut: Cut
    path_s: float
    own_path_s: float
    optimizer_s: float


class CutsInOrder:
    """All cuts that fit, the least bound first, equal ones in lexicographic order where both were
    reached; made one at a time.

    ``only``: the one cut that is allowed, where the user fixed it. ``done``: cuts to leave out.
    """

    def __init__(
        self, bounds: StageBounds, only: Cut | None = None, done: AbstractSet[Cut] = frozenset()
    ) -> None:
        self._bounds = bounds
        self._done = done
        self._pp = bounds.choices.pp
        self._num_units = bounds.num_units
        self._heap: list[tuple[float, int, Cut, _Beginning]] = []
        if only is not None:
            self._push_whole(only)
            return
        self._path_to_go_s = _least_maximum(bounds.path_s)
        self._own_path_to_go_s = _least_maximum(bounds.own_path_s)
        self._optimizer_to_go_s = _least_maximum(bounds.optimizer_s)
        self._extend(_Beginning((), 0.0, 0.0, 0.0))
        self._settle()

    @property
    def next_bound_s(self) -> float:
        """The bound of the cut that `pop` returns next; infinite where none is left."""
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> Cut:
        """The cut with the least bound of those that are left."""
        cut = heapq.heappop(self._heap)[2]
        self._settle()
        return cut

    def _settle(self) -> None:
        """Extend beginnings until the first in the heap is a whole cut that is not done."""
        while self._heap:
            is_whole = len(self._heap[0][2]) == self._pp - 1
            if is_whole and self._heap[0][2] not in self._done:
                return
            beginning = heapq.heappop(self._heap)[3]
            if not is_whole:
                self._extend(beginning)

    def _push_whole(self, cut: Cut) -> None:
        bound_s = self._bounds.cut_step_s(cut)
        if bound_s < math.inf:
            whole = _Beginning(cut, 0.0, 0.0, 0.0)
            self._heap.append((bound_s, 1 - self._pp, cut, whole))

    def _extend(self, beginning: _Beginning) -> None:
        """Push every beginning with one stage more that some whole cut continues."""
        stage = len(beginning.cut)
        _, before, _ = place_of(stage, beginning.cut[-1] if beginning.cut else 0, 0)
        kinds = (self._bounds.path_s, self._bounds.own_path_s, self._bounds.optimizer_s)
        to_go = (self._path_to_go_s, self._own_path_to_go_s, self._optimizer_to_go_s)
        so_far = (beginning.path_s, beginning.own_path_s, beginning.optimizer_s)
        reached = [np.maximum(k[stage, before], s) for k, s in zip(kinds, so_far, strict=True)]
        whole = [np.maximum(r, t[stage + 1]) for r, t in zip(reached, to_go, strict=True)]
        possible = np.flatnonzero(np.isfinite(whole[0] + whole[1] + whole[2]))
        for until in possible.tolist():
            stop = stage + 1 + until
            extended = (*beginning.cut, stop) if stage < self._pp - 1 else beginning.cut
            path_s, own_path_s, optimizer_s = (float(kind[until]) for kind in whole)
            first_stop = extended[0] if extended else stop
            bound_s = self._bounds.step_s(path_s, own_path_s, optimizer_s, first_stop)
            path_s, own_path_s, optimizer_s = (float(kind[until]) for kind in reached)
            longer = _Beginning(extended, path_s, own_path_s, optimizer_s)
            heapq.heappush(self._heap, (bound_s, -len(extended), extended, longer))


def _least_maximum(stages_s: Floats) -> Floats:
    """[pp + 1, spare + 1] over (stage, spare units taken by the stages before it): over all ways to
    fill it and the stages after it, the least possible largest entry."""
    pp, size, _ = stages_s.shape
    to_go = np.full((pp + 1, size), np.inf)
    to_go[pp, -1] = -np.inf
    for stage in reversed(range(pp)):
        to_go[stage] = np.maximum(stages_s[stage], to_go[stage + 1]).min(axis=1)
    return to_go


def count_cuts(bounds: StageBounds) -> int:
    """Exactly how many cuts have stages that all fit.

    What a stage needs grows with its units, so that those which fit after the same stages before
    them are one run, whose ways to go on are a difference of two running sums.
    """
    pp, size, _ = bounds.fits.shape
    ways = [0] * (size - 1) + [1]
    for stage in reversed(range(pp)):
        fits = bounds.fits[stage]
        starts = fits.argmax(axis=1)
        stops = (starts + fits.sum(axis=1)).tolist()
        sums = list(itertools.accumulate(ways, initial=0))
        ways = [sums[b] - sums[a] for a, b in zip(starts.tolist(), stops, strict=True)]
    return ways[0]


def least_memory_cut(choices: Choices, unit_bytes: UnitBytes) -> tuple[float, Cut]:
    """The cut whose fullest stage needs least, and those bytes; whether or not they are there."""
    needed = stage_memory_bytes(choices, unit_bytes)
    to_go = _least_maximum(needed)
    cut: list[int] = []
    taken = 0
    for stage in range(choices.pp - 1):
        taken = int(np.maximum(needed[stage, taken], to_go[stage + 1]).argmin())
        cut.append(stage + 1 + taken)
    return float(to_go[0, 0]), tuple(cut)
