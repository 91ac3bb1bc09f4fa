"""Lower bounds on a pipeline of unequal stages, over all its boundaries, by dynamic programme.

t_r is what stage r takes for one micro-batch, forward and backward, M_r the message to the next
stage, m the count of micro-batches. 1F1B never ends before any of these:

    sum_{j<r} (t_j + 2 M_j) + m t_r                         r waits, works, and others work after it
    sum_{j<r} (t_j + 2 M_j) + ceil(m / (pp - r)) sum_{j>=r} (t_j + 2 M_j)

    sum_{j<r} (t_j + 2 M_j) + c (t_r + 2 M_r + t_{r+1}) + e M_r

The second: stage r starts micro-batch i + pp - r only when i is back. The third: the forward of
micro-batch i + pp - r in r follows the backward of i in r, and the backward of i + 2 in r + 1
follows that forward in r + 1: however many micro-batches are in flight, a slow link is passed to
and fro once for each two of them, c = floor((m - pp + r) / 2) + 1 times. Before that the first
pp - 1 - r forwards pass it, after that the last m - 2 c backwards, one behind the other: e
messages.
Where m < pp - r all forwards pass it and then all backwards. It matters where M_r is long, so
between groups.

All are a maximum over r of sums from the front, so that the least over all boundaries follows stage
by stage from the end. Where stages wait while messages are on the wire, messages are parts of their
stages instead.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Prices of the stages of one pipeline, by the units that they hold."""

    stage_s: Sequence[Floats]
    """For each stage [i, k]: seconds of the units i to k; infinite where that is not allowed."""
    link_s: Sequence[float]
    """Of the message after each stage but the last."""
    num_micro_batches: int
    slow_links: frozenset[int] = frozenset()
    """After these stages: links between groups."""


class Trips(NamedTuple):
    """How often a step waits for the link after a stage; see above."""

    pairs: int
    """With both stages: c."""
    messages: int
    """One behind the other: e."""


def trips(num_stages: int, stage: int, num_micro_batches: int) -> Trips:
    """Of the link after ``stage``, counted from 0."""
    warm, m = num_stages - 1 - stage, num_micro_batches
    if m <= warm:
        return Trips(1, 2 * (m - 1))
    pairs = (m - warm - 1) // 2 + 1
    return Trips(pairs, warm + m - 2 * pairs)


class Boundaries:
    """Ways to cut a model into the stages of one pipeline, in the order of their bound."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._stage_s, self._slow = pipeline.stage_s, pipeline.slow_links
        self._links = [2 * seconds for seconds in pipeline.link_s] + [0.0]
        self._m = pipeline.num_micro_batches
        self._pp = len(pipeline.stage_s)
        self._units = pipeline.stage_s[0].shape[0] - 1
        self._cycles = [math.ceil(self._m / (self._pp - r)) for r in range(self._pp)]
        self._trips = {r: trips(self._pp, r, self._m) for r in self._slow}
        self._sums, self._whole = self._tables()

    def _tables(self) -> tuple[list[Floats], list[Floats]]:
        """[r][i]: the least sum of stages r and later, of units i on. [r][i, k]: the least bound on
        them, where stage r has the units i to k."""
        ends = np.full(self._units + 1, np.inf)
        ends[-1] = 0.0
        sums, least = [ends], ends
        wholes: list[Floats] = []
        for r in reversed(range(self._pp)):
            own = self._stage_s[r]
            with_link = own + self._links[r]
            total = with_link + sums[0][None, :]
            bound = np.maximum(self._m * own, self._cycles[r] * total)
            if r in self._slow:
                bound = np.maximum(bound, self._over_link(r, wholes[0]))
            else:
                bound = np.maximum(bound, with_link + least[None, :])
            sums.insert(0, total.min(axis=1))
            wholes.insert(0, bound)
            least = bound.min(axis=1)
        return sums, wholes

    def _over_link(self, r: int, following: Floats) -> Floats:
        """[i, k]: of what follows stage r, and of the trips to its next stage together."""
        own, after, link = self._stage_s[r], self._stage_s[r + 1], self._links[r]
        found = np.full_like(own, np.inf)
        for k in range(self._units + 1):
            rows = np.flatnonzero(np.isfinite(own[:, k]))
            columns = np.flatnonzero(np.isfinite(following[k]))
            if rows.size and columns.size:
                mine = own[rows, k, None]
                waits = self._waits(r, mine + link + after[k, columns])
                found[rows, k] = np.maximum(mine + link + following[k, columns], waits).min(axis=1)
        return found

    def _waits(self, r: int, pair_s: Floats) -> Floats:
        """The third bound, from both stages with their link."""
        return self._trips[r].pairs * pair_s + self._trips[r].messages * self._links[r] / 2

    @property
    def least_s(self) -> float:
        """No boundaries do better; infinite where none are allowed."""
        return float(self._whole[0][0].min())

    def in_order(self) -> Iterator[tuple[float, tuple[int, ...] | None]]:
        """(bound, the first unit of each stage but the first), the least bound first.

        None for boundaries that are not all known yet: what follows has this bound or a higher one.
        """
        counter = itertools.count()
        heap: list[tuple[float, int, tuple[int, ...], tuple[float, ...], float]] = []
        heapq.heappush(heap, (self.least_s, next(counter), (0,), (0.0,), 0.0))
        while heap:
            bound, _, starts, befores, known = heapq.heappop(heap)
            if math.isinf(bound):
                return
            r = len(starts) - 1
            if r == self._pp:
                yield bound, starts[1:-1]
                continue
            yield bound, None
            for item in self._children(starts, befores, known):
                heapq.heappush(heap, (item[0], next(counter), *item[1:]))

    def _children(
        self, starts: tuple[int, ...], befores: tuple[float, ...], known: float
    ) -> Iterator[tuple[float, tuple[int, ...], tuple[float, ...], float]]:
        """Every end of the next stage, with its bound."""
        r, start, before = len(starts) - 1, starts[-1], befores[-1]
        own = self._stage_s[r][start]
        reached = before + own + self._links[r]
        work = np.maximum(known, before + self._m * own)
        if r - 1 in self._slow:
            # From the start of the stage before: its own time, the link, and this stage.
            earlier = befores[-2]
            work = np.maximum(work, earlier + self._waits(r - 1, before - earlier + own))
        bounds = np.maximum(work, before + self._whole[r][start])
        for j, earlier in enumerate(befores):
            back = reached - earlier + self._sums[r + 1]
            bounds = np.maximum(bounds, earlier + self._cycles[j] * back)
        for end in np.flatnonzero(np.isfinite(bounds)):
            yield (
                float(bounds[end]), (*starts, int(end)), (*befores, float(reached[end])),
                float(work[end]),
            )  # fmt: skip


def continuous_bound_s(
    segments: Sequence[Floats], stages: Sequence[int], link_s: Sequence[float], m: int
) -> float:
    """A bound before any stage is priced: each segment's work spread over its stages at will.

    A segment of work T on p stages needs T / (1 - (1 - 1 / m)^p) from the start of its first stage:
    the first bound above, where stages shorten so that all end together.

    ``segments``: of the first [k], of the last [i], of one between [i, k], or of a single one the
    last entry of [k] alone; infinite where units are too many for the memory. ``link_s``: between
    segments.
    """
    ratio = 1.0 - 1.0 / m
    shares = [1.0 / (1.0 - ratio**count) for count in stages]
    total = sum(stages)
    cycles = math.ceil(m / total)
    least_s = 0.0
    for count, seconds in zip(itertools.accumulate(stages), link_s, strict=False):
        waits = trips(total, count - 1, m)
        least_s = max(least_s, (2 * waits.pairs + waits.messages) * seconds)
    if len(segments) == 1:
        work = float(segments[0][-1])
        return max(work * shares[0], cycles * work)
    rest, sums = segments[-1] * shares[-1], segments[-1]
    for index in range(len(segments) - 2, 0, -1):
        own, link = segments[index], 2 * link_s[index]
        rest = np.maximum(own * shares[index], own + link + rest[None, :]).min(axis=1)
        sums = (own + link + sums[None, :]).min(axis=1)
    own, link = segments[0], 2 * link_s[0]
    bounds = np.maximum(own * shares[0], own + link + rest)
    bounds = np.maximum(bounds, cycles * (own + link + sums))
    return max(least_s, float(bounds.min()))
