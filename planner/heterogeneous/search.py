"""The best layout over several node groups, with proof: refine what could still be better.

Of every arrangement the shares of the batch are balanced exactly over its sets of replicas, on
bounds where steps are not known yet: the least maximum over all ways to divide the batch. The
arrangement with the least such maximum is refined where its bound is no step yet. When its shares
are all exact, it is the best of all: every other has a bound above it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.cost_models.stacks.mixed import MixedModel
from shardwright.planner.heterogeneous.bounds import Floats
from shardwright.planner.heterogeneous.layouts import ChosenSet, mixed_layout
from shardwright.planner.heterogeneous.sets import TOLERANCE, Books, Found, SetPricer, SetSearch
from shardwright.planner.heterogeneous.space import Arrangement, MixedSpace
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import Progress
from shardwright.specs import Candidate, Certificate

_DIVES = 12
"""Choices of each set of replicas that are tried first."""


@dataclass(frozen=True, slots=True)
class MixedResult:
    """What a search found and how sure it is."""

    ranking: tuple[Candidate, ...]
    """The best, then the best found of other arrangements; empty where nothing fits."""
    certificate: Certificate
    floor_s: float
    """No layout is faster, whether it was found or not."""


@dataclass
class _Open:
    """An arrangement with its sets."""

    arrangement: Arrangement
    sets: tuple[SetSearch, ...]
    bound_s: float = 0.0
    shares: tuple[int, ...] = ()
    """Of the batch, where the bound is least."""
    best_s: float = math.inf
    best: tuple[ChosenSet, ...] = field(default=())


def search_mixed(
    problem: Problem,
    constraints: Constraints,
    pricer: MixedModel,
    progress: Callable[[Progress], None] | None = None,
    known_s: float = math.inf,
) -> MixedResult:
    """The best layout over two groups or more that the constraints leave open.

    ``known_s``: a step that is to be had otherwise. What takes longer is not searched to its end;
    the ranking then has the best that was found.
    """
    return _Search(problem, constraints, pricer, progress or (lambda _: None), known_s).run()


class _Search:
    def __init__(
        self,
        problem: Problem,
        constraints: Constraints,
        pricer: MixedModel,
        progress: Callable[[Progress], None],
        known_s: float = math.inf,
    ) -> None:
        self._started_s = time.monotonic()
        self._problem, self._constraints, self._pricer = problem, constraints, pricer
        self._progress, self._books, self._known_s = progress, Books(), known_s
        self._space = MixedSpace(problem, constraints)
        self._sets = SetPricer(problem, pricer, self._books)
        self._known: dict[tuple[tuple[int, ...], float], SetSearch] = {}
        self._opened = [self._open(one) for one in self._space.arrangements]

    def _open(self, arrangement: Arrangement) -> _Open:
        exchange_s = self._exchange_s(arrangement)
        sets = []
        for groups in arrangement:
            key = (groups, exchange_s)
            if key not in self._known:
                self._known[key] = SetSearch(
                    self._space, self._sets, groups, exchange_s, self._is_late
                )
            sets.append(self._known[key])
        return _Open(arrangement, tuple(sets))

    def _exchange_s(self, arrangement: Arrangement) -> float:
        if len(arrangement) == 1:
            return 0.0
        groups = [group for part in arrangement for group in part]
        counts = {group: self._problem.cluster.groups[group].num_devices for group in groups}
        return self._pricer.exchange_over_s(counts, len(arrangement))

    def run(self) -> MixedResult:
        """Refine until the first arrangement is known exactly, or time is over."""
        optimal = True
        for one in self._opened:
            self._balance(one)
            self._dive(one)
        while self._opened:
            first = min(self._opened, key=lambda one: one.bound_s)
            incumbent_s = self._cutoff_s
            self._progress(Progress(self._books.simulated, incumbent_s,
                                    min(first.bound_s, incumbent_s)))  # fmt: skip
            if first.bound_s >= incumbent_s * (1 - TOLERANCE) or math.isinf(first.bound_s):
                break
            if self._is_late():
                optimal = False
                break
            self._refine(first, incumbent_s)
            for one in self._opened:
                if any(each is refined for each in one.sets for refined in first.sets):
                    self._balance(one)
        least_s = min((one.bound_s for one in self._opened), default=math.inf)
        return MixedResult(
            self._ranking(),
            self._certificate(optimal, least_s),
            self._cutoff_s if optimal else min(least_s, self._cutoff_s),
        )

    @property
    def _incumbent_s(self) -> float:
        return min((one.best_s for one in self._opened), default=math.inf)

    @property
    def _cutoff_s(self) -> float:
        """What a layout must beat to matter."""
        return min(self._incumbent_s, self._known_s)

    def _balance(self, one: _Open) -> None:
        """Divide the batch so that the slowest set has the least bound."""
        one.bound_s, one.shares = balanced([each.bounds_s for each in one.sets])

    def _refine(self, one: _Open, incumbent_s: float) -> None:
        for each, share in zip(one.sets, one.shares, strict=True):
            if not each.is_exact(share):
                each.refine(share, incumbent_s)
        self._take_best(one)

    def _dive(self, one: _Open) -> None:
        """A first layout of each arrangement, so that what takes longer is left out early."""
        if math.isinf(one.bound_s):
            return
        for each, share in zip(one.sets, one.shares, strict=True):
            each.dive(share, _DIVES)
        self._take_best(one)
        self._balance(one)

    def _take_best(self, one: _Open) -> None:
        found = [each.best(share) for each, share in zip(one.sets, one.shares, strict=True)]
        whole = [best for best in found if best is not None]
        if len(whole) == len(found):
            self._take(one, whole)

    def _take(self, one: _Open, found: Sequence[Found]) -> None:
        step_s = max(best.step_s for best in found)
        if step_s < one.best_s * (1 - TOLERANCE):
            one.best_s, one.best = step_s, tuple(best.chosen for best in found)

    def _is_late(self) -> bool:
        limit_s = self._constraints.time_limit_s
        return limit_s is not None and time.monotonic() - self._started_s > limit_s

    def _ranking(self) -> tuple[Candidate, ...]:
        found = sorted((one for one in self._opened if one.best), key=lambda one: one.best_s)
        layouts = [mixed_layout(self._problem, one.best) for one in found]
        return tuple(
            Candidate(layout=layout, prediction=self._pricer.predict(layout))
            for layout in layouts[: max(1, self._constraints.top)]
        )

    def _certificate(self, optimal: bool, least_s: float) -> Certificate:
        considered = sum(self._space.num_layouts(one) for one in self._space.arrangements)
        books = self._books
        incumbent_s = self._cutoff_s
        gap = 0.0
        if not optimal:
            gap = 1.0 if math.isinf(incumbent_s) else max(0.0, 1 - least_s / incumbent_s)
        simulated = min(considered, books.simulated)
        memory = min(considered - simulated, books.excluded_by_memory)
        if math.isinf(incumbent_s) and optimal:
            memory = considered - simulated
        return Certificate(
            considered=considered,
            excluded_by_rules=0,
            excluded_by_memory=memory,
            excluded_by_bound=considered - simulated - memory,
            excluded_by_dominance=0,
            simulated=simulated,
            optimal=optimal,
            gap=gap,
            space=self._space.in_words,
            search_s=time.monotonic() - self._started_s,
        )


def balanced(bounds_s: Sequence[Floats]) -> tuple[float, tuple[int, ...]]:
    """The shares of the batch whose largest bound is least, and that bound.

    ``bounds_s``: of each set by the sequences that it trains, infinite where it cannot train so
    many; the batch is the last index. Exact, by dynamic programme over the sets.
    """
    batch = len(bounds_s[0]) - 1
    reached, chosen = bounds_s[0], []
    for index, own in enumerate(bounds_s[1:], 2):
        totals = [batch] if index == len(bounds_s) else range(1, batch + 1)
        best, shares = np.full(batch + 1, np.inf), np.zeros(batch + 1, dtype=np.int64)
        for total in totals:
            worst = np.maximum(own[: total + 1], reached[total::-1])
            shares[total] = int(worst.argmin())
            best[total] = worst[shares[total]]
        reached = best
        chosen.append(shares)
    left, found = batch, []
    for shares in reversed(chosen):
        found.append(int(shares[left]))
        left -= int(shares[left])
    return float(reached[batch]), (left, *reversed(found))
