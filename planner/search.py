"""The best layout of a space, with proof: bound, simulate in order of the bound, keep the books.

Best-first branch and bound. A node is one `Choices`. Its key is first a bound in a few additions,
then the least bound over its cuts, then that of the next cut which was not simulated yet. The node
with the least key goes on, until no key is below the best simulated step: nothing left can then be
better *under this model*, which is all that the certificate says.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardwright.planner.bounds import (
    Pricer,
    StageBounds,
    UnitBytes,
    UnitSeconds,
    quick_memory_bound_bytes,
    quick_step_bound_s,
    state_bound_bytes,
)
from shardwright.planner.choices import Choices
from shardwright.planner.partition import Cut, CutsInOrder, count_cuts
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.space import Space
from shardwright.specs import Candidate, Certificate, Layout, Prediction, ScheduleName

TOLERANCE = 1e-9
"""Relative: steps closer than this are equal, and then the plainer layout is better."""
MAX_TIES = 8
RUNNER_UP_SIMULATIONS = 48
"""How many more layouts are simulated for runners-up once the best is proven."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A simulated layout that fits."""

    choices: Choices
    cut: Cut
    layout: Layout
    prediction: Prediction

    @property
    def step_s(self) -> float:
        return self.prediction.step_time_s

    @property
    def key(self) -> tuple[tuple[int, ...], Cut]:
        """What orders equally fast layouts."""
        return self.choices.key, self.cut

    @property
    def candidate(self) -> Candidate:
        return Candidate(layout=self.layout, prediction=self.prediction)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands."""

    simulated: int
    best_step_s: float
    """Infinite until a layout was found that fits."""
    bound_s: float
    """Nothing left is faster than this."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found and how sure it is."""

    ranking: tuple[Priced, ...]
    """The best, then runners-up with other choices; empty where nothing fits."""
    ties: tuple[Priced, ...]
    """Others that the model cannot tell apart from the best (`HardwareProfile.tie_ratio`)."""
    certificate: Certificate


@dataclass(slots=True)
class _Node:
    """One `Choices` on its way through the tiers."""

    choices: Choices
    seconds: UnitSeconds
    unit_bytes: UnitBytes
    bounds: StageBounds | None = None
    cuts: CutsInOrder | None = None
    done: set[Cut] = field(default_factory=set)
    """Cuts that were simulated and fit."""
    best: Priced | None = None

    def improves(self, priced: Priced) -> bool:
        """Whether it is faster than the node's best, or as fast and plainer."""
        if self.best is None:
            return True
        return is_better(priced, self.best)


def is_better(one: Priced, other: Priced) -> bool:
    """Faster beyond `TOLERANCE`, or as fast and with the smaller key."""
    if abs(one.step_s - other.step_s) <= TOLERANCE * other.step_s:
        return one.key < other.key
    return one.step_s < other.step_s


def search(
    problem: Problem,
    constraints: Constraints,
    pricer: Pricer,
    progress: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """The best layout that the constraints leave open, with its certificate and runners-up.

    Raises:
        InputError: constraints that leave no layout.
    """
    return _Search(problem, constraints, pricer, progress or (lambda _: None)).run()


@dataclass
class _Search:
    problem: Problem
    constraints: Constraints
    pricer: Pricer
    progress: Callable[[Progress], None]
    simulated: int = 0
    excluded_by_memory: int = 0
    excluded_by_dominance: int = 0
    found: list[_Node] = field(default_factory=list)
    """Nodes with a simulated layout that fits."""
    best: Priced | None = None
    heap: list[tuple[float, tuple[int, ...], _Node]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started_s = time.monotonic()
        self.space = Space(self.problem, self.constraints)
        self.valid = frozenset(self.space.valid)

    @property
    def best_step_s(self) -> float:
        return math.inf if self.best is None else self.best.step_s

    @property
    def least_bound_s(self) -> float:
        return self.heap[0][0] if self.heap else math.inf

    def run(self) -> SearchResult:
        for choices in self.space.valid:
            self._admit(choices)
        heapq.heapify(self.heap)
        self._advance_until(lambda: self._is_proven() or self._is_late())
        optimal, least_bound_s = self._is_proven(), self.least_bound_s
        last = self.simulated + RUNNER_UP_SIMULATIONS
        self._advance_until(
            lambda: self.simulated >= last or self._runners_up_are_proven() or self._is_late()
        )
        gap = 0.0 if optimal else 1 - least_bound_s / self.best_step_s
        return SearchResult(self._ranking(), self._ties(), self._certificate(optimal, gap))

    def _admit(self, choices: Choices) -> None:
        """Put a choice into the heap unless it is dominated or cannot fit."""
        num_cuts = self.space.num_cuts(choices.pp)
        if dominator(choices) in self.valid:
            self.excluded_by_dominance += num_cuts
            return
        capacity_bytes = self.pricer.capacity_bytes
        if state_bound_bytes(choices, self.pricer.state_bytes(choices)) > capacity_bytes:
            self.excluded_by_memory += num_cuts
            return
        unit_bytes = self.pricer.unit_bytes(choices)
        if quick_memory_bound_bytes(choices, unit_bytes) > capacity_bytes:
            self.excluded_by_memory += num_cuts
            return
        seconds = self.pricer.unit_seconds(choices)
        bound_s = quick_step_bound_s(choices, seconds)
        self.heap.append((bound_s, choices.key, _Node(choices, seconds, unit_bytes)))

    def _advance_until(self, is_over: Callable[[], bool]) -> None:
        while self.heap and not is_over():
            bound_s, key, node = heapq.heappop(self.heap)
            self.progress(Progress(self.simulated, self.best_step_s, bound_s))
            if node.cuts is None:
                node.cuts = self._open(node)
            else:
                self._simulate(node, node.cuts.pop())
            next_s = node.cuts.next_bound_s
            if next_s < math.inf and not self._is_exhausted(node, next_s):
                heapq.heappush(self.heap, (max(bound_s, next_s), key, node))

    def _open(self, node: _Node) -> CutsInOrder:
        """Bound every stage of the node's cuts, and count the cuts that do not fit."""
        bounds = StageBounds(
            node.choices, node.seconds, node.unit_bytes, self.pricer.capacity_bytes
        )
        node.bounds = bounds
        num_cuts = self.space.num_cuts(node.choices.pp)
        fixed = self.space.fixed_boundaries
        if fixed is None:
            cuts = CutsInOrder(bounds)
            self.excluded_by_memory += num_cuts - count_cuts(bounds)
        else:
            cuts = CutsInOrder(bounds, only=tuple(layer + 1 for layer in fixed))
            self.excluded_by_memory += cuts.next_bound_s == math.inf
        return cuts

    def _simulate(self, node: _Node, cut: Cut) -> None:
        layout = node.choices.layout(self.problem, tuple(unit - 1 for unit in cut))
        prediction = self.pricer.predict(layout)
        if prediction.memory_verdict != "fits":
            self._exclude(node, cut, prediction)
            return
        self.simulated += 1
        node.done.add(cut)
        priced = Priced(node.choices, cut, layout, prediction)
        if node.best is None:
            self.found.append(node)
        if node.improves(priced):
            node.best = priced
        if self.best is None or is_better(priced, self.best):
            self.best = priced

    def _exclude(self, node: _Node, cut: Cut, prediction: Prediction) -> None:
        """Learn from a cut that does not fit although its bound does: no cut with the stages that
        are too big fits, nor with stages that hold all of them and more."""
        if self.space.fixed_boundaries is not None:
            self.excluded_by_memory += 1
            return
        assert node.bounds is not None
        fitting = count_cuts(node.bounds)
        edges = [0, *cut, node.bounds.num_units]
        for stage, peak_bytes in enumerate(prediction.peak_memory_bytes):
            if peak_bytes > self.pricer.capacity_bytes:
                node.bounds.exclude(stage, edges[stage], edges[stage + 1])
        self.excluded_by_memory += fitting - count_cuts(node.bounds)
        node.cuts = CutsInOrder(node.bounds, done=node.done)

    def _is_exhausted(self, node: _Node, next_s: float) -> bool:
        """Whether no cut that is left beats the node's own best."""
        return node.best is not None and next_s >= node.best.step_s * (1 - TOLERANCE)

    def _is_proven(self) -> bool:
        return self.least_bound_s >= self.best_step_s * (1 - TOLERANCE)

    def _is_late(self) -> bool:
        limit_s = self.constraints.time_limit_s
        if limit_s is None or self.best is None:
            return False
        return time.monotonic() - self.started_s > limit_s

    def _runners_up_are_proven(self) -> bool:
        ranking = self._ranking()
        if len(ranking) < self.constraints.top:
            return False
        return self.least_bound_s >= ranking[-1].step_s * (1 - TOLERANCE)

    def _ranking(self) -> tuple[Priced, ...]:
        if self.best is None:
            return ()
        bests = [node.best for node in self.found if node.best is not None]
        others = [priced for priced in bests if priced is not self.best]
        others.sort(key=lambda priced: (priced.step_s, priced.key))
        return (self.best, *others[: self.constraints.top - 1])

    def _ties(self) -> tuple[Priced, ...]:
        if self.best is None:
            return ()
        tie_end_s = self.best.step_s * self.problem.profile.tie_ratio
        bests = [node.best for node in self.found if node.best is not None]
        within = [p for p in bests if p is not self.best and p.step_s <= tie_end_s]
        within.sort(key=lambda priced: (priced.step_s, priced.key))
        return tuple(within[:MAX_TIES])

    def _certificate(self, optimal: bool, gap: float) -> Certificate:
        others = (
            self.space.excluded_by_rules
            + self.excluded_by_memory
            + self.excluded_by_dominance
            + self.simulated
        )
        return Certificate(
            considered=self.space.considered,
            excluded_by_rules=self.space.excluded_by_rules,
            excluded_by_memory=self.excluded_by_memory,
            excluded_by_bound=self.space.considered - others,
            excluded_by_dominance=self.excluded_by_dominance,
            simulated=self.simulated,
            optimal=optimal,
            gap=gap,
            space=self.space.in_words,
            search_s=time.monotonic() - self.started_s,
        )


def dominator(choices: Choices) -> Choices | None:
    """Other choices under which every cut is as good, and which have the smaller key.

    GPipe with one micro-batch is dominated by 1F1B. Proof: both let every rank run that forward and
    then that backward with the same messages between, so that they are the same schedule, with the
    same step and the same memory.
    """
    if choices.schedule == ScheduleName.GPIPE and choices.num_microbatches == 1:
        return replace(choices, schedule=str(ScheduleName.ONE_F_ONE_B))
    return None
