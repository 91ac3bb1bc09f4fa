"""The best layout on a software stack, with proof: bound, simulate in order of the bound.

Best-first branch and bound over the four steps of `choices`. A node's key is the bound of its
parent until it comes to the top and is priced itself; whole nodes go where not even their leanest
layout fits. The search ends when no key is below the best simulated step: nothing left can then be
better *under this model*.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import MAX_TIES, RUNNER_UP_SIMULATIONS, TOLERANCE, Progress
from shardwright.planner.stacks.bounds import SLACK, mean_bytes, work_bound_s
from shardwright.planner.stacks.choices import Cut, Grid, StackChoices
from shardwright.planner.stacks.dives import dives
from shardwright.planner.stacks.prices import Leaf, StackPrices
from shardwright.planner.stacks.space import StackSpace
from shardwright.specs import Candidate, Certificate, Layout

_LEVEL = 0.01
"""Bounds that differ by less (relative) are one level, within which the deepest node goes first."""
_RUNNER_UP_NODES = 2000
"""How many more nodes are opened for runners-up once the best is proven."""
_DIVES, _FITTING_DIVES = 1500, 12
"""How many guesses are looked at first, and how many of them that fit are enough."""
_PATIENCE, _LEAST_PATIENCE_S = 2.0, 10.0
"""Where nothing fits so far, a search goes on for so many times its limit, and so long at least."""


@dataclass(frozen=True, slots=True)
class StackPriced:
    """A simulated layout that fits."""

    choices: StackChoices
    layout: Layout
    step_s: float

    @property
    def key(self) -> tuple[object, ...]:
        """What orders equally fast layouts."""
        return self.choices.key


@dataclass(frozen=True, slots=True)
class StackResult:
    """What a search found and how sure it is."""

    ranking: tuple[Candidate, ...]
    """The best, then runners-up with other choices; empty where nothing fits."""
    ties: tuple[Candidate, ...]
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class _Node:
    """A partial choice: of the fields that are None, everything is still open."""

    grid: Grid
    next_cut: int = 0
    """Of `StackPrices.ordered_cuts`, the first that is still open; where ``cut`` is None."""
    cut: Cut | None = None
    zero: int | None = None
    recompute: str | None = None
    leaf: Leaf | None = None
    is_priced: bool = False


def search_stacks(
    problem: Problem,
    constraints: Constraints,
    pricer: StackModel,
    progress: Callable[[Progress], None] | None = None,
) -> StackResult:
    """The best layout that the constraints leave open, with its certificate and runners-up.

    Raises:
        InputError: constraints that leave no layout.
    """
    return _Search(problem, constraints, pricer, progress or (lambda _: None)).run()


@dataclass
class _Search:
    problem: Problem
    constraints: Constraints
    pricer: StackModel
    progress: Callable[[Progress], None]
    opened: int = 0
    """Nodes that came to the top."""
    simulated: int = 0
    broken: int = 0
    """Layouts that turned out to break a rule when their boundaries were known."""
    excluded_by_memory: int = 0
    excluded_by_dominance: int = 0
    found: list[StackPriced] = field(default_factory=list)
    best: StackPriced | None = None
    heap: list[tuple[float, int, float, int, _Node]] = field(default_factory=list)
    """The floor of the bound's level, less the depth, the bound, a counter."""

    def __post_init__(self) -> None:
        self.started_s = time.monotonic()
        self.space = StackSpace(self.problem, self.constraints)
        self.prices = StackPrices(self.problem, self.space, self.pricer)
        self.counter = itertools.count()
        self.done: set[tuple[object, ...]] = set()
        """Keys of what was simulated."""
        self.aside: list[tuple[float, _Node]] = []
        """What cannot become the best, for runners-up."""
        self.is_proving, self.is_diving = True, False

    # The books

    @property
    def best_step_s(self) -> float:
        return math.inf if self.best is None else self.best.step_s

    @property
    def least_bound_s(self) -> float:
        """Nothing that is left is faster: the floor of the first node's level."""
        return self.heap[0][0] if self.heap else math.inf

    def _count(self, node: _Node) -> int:
        """Layouts by the rules below a node whose cut is known."""
        grid, space = node.grid, self.space
        assert node.cut is not None
        if node.recompute is None:
            leaves = space.num_leaves(grid, space.valid_pipelines(grid))
            return leaves * len(space.valid_zeros(grid, node.cut))
        return sum(len(space.splits(p, grid.pp)) for p in space.valid_pipelines(grid))

    def _push(self, bound_s: float, node: _Node) -> None:
        """Into the heap, or aside where it cannot become the best."""
        bound_s = max(bound_s, 1e-12)
        if self.is_proving and bound_s >= self.best_step_s * (1 - TOLERANCE):
            self.aside.append((bound_s, node))
            return
        depth = sum(value is not None for value in (node.cut, node.recompute, node.leaf))
        floor_s = bound_s
        if self.is_proving:
            floor_s = math.exp(math.floor(math.log(bound_s) / _LEVEL) * _LEVEL) * (1 - 1e-12)
        entry = (floor_s, -depth - node.is_priced, bound_s, next(self.counter), node)
        heapq.heappush(self.heap, entry)

    # The search

    def run(self) -> StackResult:
        if self.space.valid:
            self._dive()
            self._push_grids()
        self._advance_until(lambda: self._is_proven() or self._is_late())
        optimal, least_bound_s = self._is_proven(), self.least_bound_s
        gap = 0.0 if optimal else (
            max(0.0, 1 - least_bound_s / self.best_step_s) if self.best else 1.0
        )  # fmt: skip
        if optimal:
            self._find_runners_up()
        ranking = self._distinct(self.found, self.constraints.top)
        return StackResult(
            tuple(map(self._candidate, ranking)), tuple(map(self._candidate, self._ties())),
            self._certificate(optimal, gap),
        )  # fmt: skip

    def _dive(self) -> None:
        """Simulate what looks best, so that there is an answer early; nothing is excluded here."""
        self.is_diving = True
        tested = fitting = 0
        for guess_s, grid, cut, recompute, zero in dives(self.space, self.prices):
            is_over = tested == _DIVES or fitting == _FITTING_DIVES or self._is_late()
            if is_over or guess_s >= self.best_step_s:
                break
            tested += 1
            self.progress(Progress(self.simulated, self.best_step_s, 0.0))
            held = self.prices.bytes(grid, cut, self.prices.policy(recompute), zero)
            if not self.prices.fits(mean_bytes(held, grid)):
                continue
            known = self.simulated
            leaves = [
                leaf for leaf in self.prices.leaves(grid, cut, recompute, zero)
                if self.prices.fits(leaf.needed_bytes)
            ]  # fmt: skip
            for leaf in sorted(leaves, key=lambda leaf: leaf.bound_s)[:2]:
                self._simulate(_Node(grid, cut=cut, zero=zero, recompute=recompute, leaf=leaf))
            fitting += self.simulated > known
        self.is_diving = False

    def _find_runners_up(self) -> None:
        """Go on in strict order of the bounds, for a while."""
        self.is_proving = False
        nodes = [*self.aside, *((entry[2], entry[4]) for entry in self.heap)]
        self.aside, self.heap = [], []
        for bound_s, node in nodes:
            self._push(bound_s, node)
        last, last_node = self.simulated + RUNNER_UP_SIMULATIONS, self.opened + _RUNNER_UP_NODES
        self._advance_until(
            lambda: (
                self.simulated >= last
                or self.opened >= last_node
                or self._runners_up_are_proven()
                or self._is_late()
            )
        )

    def _advance_until(self, is_done: Callable[[], bool]) -> None:
        while self.heap and not is_done():
            _, _, bound_s, _, node = heapq.heappop(self.heap)
            if self.is_proving and bound_s >= self.best_step_s * (1 - TOLERANCE):
                self.aside.append((bound_s, node))
                continue
            self.opened += 1
            least_s = min(bound_s, self.best_step_s)
            self.progress(Progress(self.simulated, self.best_step_s, least_s))
            if node.leaf is not None:
                self._simulate(node)
            elif node.cut is None:
                self._take_cut(bound_s, node)
            elif not node.is_priced:
                self._price(bound_s, node, node.cut)
            elif node.recompute is None:
                self._push_policies(bound_s, node, node.cut)
            else:
                self._open_pipelines(bound_s, node, node.cut)

    def _push_grids(self) -> None:
        """Every grid, at what the host has to launch on any; none where not even all devices
        together can hold the model."""
        kernels, state = self.prices.alone()
        if not self.prices.fits(state / self.problem.world):
            self.excluded_by_memory += self.space.num_by_the_rules
            return
        for grid in self.space.valid:
            host_s = self.pricer.at_host_pace_s(0.0, kernels, grid.tp)
            self._push(host_s * grid.num_microbatches / grid.pp, _Node(grid))

    def _take_cut(self, bound_s: float, node: _Node) -> None:
        """Open the next cut of a grid, and keep the others for later."""
        grid, tokens = node.grid, self.prices.tokens(node.grid)
        cuts = self.prices.ordered_cuts(grid)
        cut, least = cuts[node.next_cut]
        own_s = max(bound_s, least.work_s * tokens * grid.num_microbatches / grid.pp)
        if own_s > bound_s * (1 + SLACK):
            self._push(own_s, node)
            return
        if node.next_cut + 1 < len(cuts):
            self._push(bound_s, replace(node, next_cut=node.next_cut + 1))
        child = _Node(grid, cut=cut)
        held = tokens * max(least.saved_bytes / grid.pp, least.moment_bytes)
        if not self.prices.fits(held):
            self.excluded_by_memory += self._count(child)
            return
        self._push(own_s, child)

    def _price(self, bound_s: float, node: _Node, cut: Cut) -> None:
        """Bound a cut, or what is recomputed and sharded in it."""
        grid = node.grid
        if node.recompute is None:
            own_s = work_bound_s(self.prices.times(grid, cut, "none", 0), grid, self.pricer)
            self._push(max(bound_s, own_s), replace(node, is_priced=True))
            return
        assert node.zero is not None
        policy, zeros = self.prices.policy(node.recompute), self.space.valid_zeros(grid, cut)
        fewer = [zero for zero in zeros if zero < node.zero]
        held = self.prices.bytes(grid, cut, policy, node.zero)
        if not self.prices.fits(mean_bytes(held, grid)):
            # Where less is sharded, more is held.
            self.excluded_by_memory += self._count(node) * (1 + len(fewer))
            return
        if fewer:
            self._push(bound_s, replace(node, zero=fewer[-1]))
        times = self.prices.times(grid, cut, policy, node.zero)
        own_s = work_bound_s(times, grid, self.pricer, again=policy == node.recompute)
        self._push(max(bound_s, own_s), replace(node, is_priced=True))

    def _push_policies(self, bound_s: float, node: _Node, cut: Cut) -> None:
        """Every recompute policy with its own work, the most sharded first."""
        grid, zeros = node.grid, self.space.valid_zeros(node.grid, cut)
        for recompute in self.space.recomputes if zeros else ():
            policy = self.prices.policy(recompute)
            times = self.prices.times(grid, cut, policy, 0)
            own_s = work_bound_s(times, grid, self.pricer, again=policy == recompute)
            child = _Node(grid, cut=cut, zero=zeros[-1], recompute=recompute)
            self._push(max(bound_s, own_s), child)

    def _open_pipelines(self, bound_s: float, node: _Node, cut: Cut) -> None:
        """Bound every pipeline and split."""
        assert node.recompute is not None
        assert node.zero is not None
        leaves = list(self.prices.leaves(node.grid, cut, node.recompute, node.zero))
        self.excluded_by_dominance += self._count(node) - len(leaves)
        for leaf in leaves:
            if self.prices.fits(leaf.needed_bytes):
                self._push(max(bound_s, leaf.bound_s), replace(node, leaf=leaf))
            else:
                self.excluded_by_memory += 1

    def _simulate(self, node: _Node) -> None:
        assert node.leaf is not None
        assert node.cut is not None
        assert node.zero is not None
        assert node.recompute is not None
        leaf = node.leaf
        choices = StackChoices(
            node.grid, node.cut, node.zero, node.recompute, leaf.pipeline, leaf.split
        )
        if choices.key in self.done:
            return
        starts = tuple(unit - 1 for unit in leaf.starts)
        layout = choices.layout(self.problem, starts, self.prices.others)
        if any((one.num_layers or 0) > stage.num_layers
               for one, stage in zip(layout.recompute, layout.stages, strict=True)):  # fmt: skip
            self.broken += not self.is_diving
            return
        if self.pricer.verdict(self.pricer.memory(layout)) != "fits":
            self.excluded_by_memory += not self.is_diving
            return
        self.done.add(choices.key)
        self.simulated += 1
        priced = StackPriced(choices, layout, self.pricer.step_time_s(layout))
        self.found.append(priced)
        if self.best is None or _is_better(priced, self.best):
            self.best = priced

    # The answer

    def _is_proven(self) -> bool:
        return self.least_bound_s >= self.best_step_s * (1 - TOLERANCE)

    def _is_late(self) -> bool:
        limit_s = self.constraints.time_limit_s
        if limit_s is None:
            return False
        spent_s = time.monotonic() - self.started_s
        if self.best is None:
            limit_s = max(_PATIENCE * limit_s, _LEAST_PATIENCE_S)
        return spent_s > limit_s

    def _runners_up_are_proven(self) -> bool:
        ranking = self._distinct(self.found, self.constraints.top)
        if len(ranking) < self.constraints.top:
            return False
        return self.least_bound_s >= ranking[-1].step_s * (1 - TOLERANCE)

    def _distinct(self, priced: list[StackPriced], count: int) -> list[StackPriced]:
        """The best, then the fastest others whose choices differ in more than the split."""
        if self.best is None:
            return []
        ordered = sorted(priced, key=lambda one: (one.step_s, one.key))
        chosen = {self.best.key[:-1]: self.best}
        for one in ordered:
            if len(chosen) == count:
                break
            chosen.setdefault(one.key[:-1], one)
        return list(chosen.values())[:count]

    def _ties(self) -> list[StackPriced]:
        tie_end_s = self.best_step_s * self.problem.profile.tie_ratio
        within = [one for one in self.found if one.step_s <= tie_end_s]
        return self._distinct(within, MAX_TIES + 1)[1:]

    def _candidate(self, priced: StackPriced) -> Candidate:
        return Candidate(layout=priced.layout, prediction=self.pricer.predict(priced.layout))

    def _certificate(self, optimal: bool, gap: float) -> Certificate:
        considered = self.space.considered
        rules = considered - self.space.num_by_the_rules + self.broken
        known = rules + self.excluded_by_memory + self.excluded_by_dominance + self.simulated
        return Certificate(
            considered=considered,
            excluded_by_rules=rules,
            excluded_by_memory=self.excluded_by_memory,
            excluded_by_bound=considered - known,
            excluded_by_dominance=self.excluded_by_dominance,
            simulated=self.simulated,
            optimal=optimal,
            gap=gap,
            space=self.space.in_words,
            search_s=time.monotonic() - self.started_s,
        )


def _is_better(one: StackPriced, other: StackPriced) -> bool:
    """Faster beyond `TOLERANCE`, or as fast and with the smaller key."""
    if abs(one.step_s - other.step_s) <= TOLERANCE * other.step_s:
        return one.key < other.key
    return one.step_s < other.step_s
