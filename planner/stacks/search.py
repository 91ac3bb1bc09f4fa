"""The best layout on a software stack, with proof: bound, simulate in order of the bound.

Best-first branch and bound. A node is a family of shapes of layers on a rank, then one of these
with its micro-batch, then that with the ranks that share and repeat it, then a leaf: all but
boundaries and recomputation, which its solver gives in the order of a bound. A node's key is the
bound of its parent until it comes to the top and is bounded itself; whole nodes go where not even
their leanest layout fits. The search ends when no key is below the best simulated step: nothing
left can then be better *under this model*.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.host_memory import host_overflow_in_words
from shardwright.planner.layout_text import RANK_ORDERS
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import MAX_TIES, TOLERANCE, Progress
from shardwright.planner.stacks.bounds import (
    ShapeWork,
    StateRows,
    after_bound,
    leanest_rows,
    least_busy_s,
    path_kind,
    path_of,
    shape_work,
    state_rows,
    step_bound_s,
    whole_bound_s,
)
from shardwright.planner.stacks.choices import Cut, Grid, Leaf, Pipeline, StackChoices, State
from shardwright.planner.stacks.leaves import LeafSolver
from shardwright.planner.stacks.partition import Split
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.quick import quick_bounds_s
from shardwright.planner.stacks.rooms import SLACK, Path
from shardwright.planner.stacks.space import StackSpace
from shardwright.planner.stacks.stages import StagePricer
from shardwright.planner.stacks.units import ALONE
from shardwright.specs import Candidate, Certificate, Layout
from shardwright.specs.layout import V_SHAPED

_LEVEL = 0.01
"""Bounds that differ by less (relative) are one level, within which the deepest node goes first."""
_RUNNER_UP_NODES = 400
"""How many more nodes are opened for runners-up once the best is proven."""
_RUNNER_UP_SIMULATIONS = 24
_DIVES = 24
"""Simulations of plain layouts before the search proper."""
_PLUNGE_RATIO = 0.97
"""Dives simulate a layout out of turn whose bound is so far below the best."""
_DIVE_MICRO_BATCHES = 2
"""Dives look at so many of the smallest micro-batches."""
_LEAST_HELD = Pipeline("1f1b", 1)
"""Of all but the V-shaped pipelines, that whose ranks hold the fewest micro-batches."""
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
class _Family:
    """Shapes that differ in their micro-batch alone."""

    tp: int
    cp: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class _Shape:
    """Layers on a rank, and the grids that they may be part of."""

    cut: Cut
    grids: tuple[Grid, ...]
    work: ShapeWork | None = None
    """None until it is priced."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A shape on one grid; its leaves are listed when it comes to the top."""

    grid: Grid
    cut: Cut
    work: ShapeWork


@dataclass(slots=True)
class _Open:
    """A leaf with its solver, None until it comes to the top."""

    leaf: Leaf
    work: ShapeWork
    solver: LeafSolver | None = None


_Node = _Family | _Shape | _Pair | _Open
_DEPTH: dict[type, int] = {_Family: 0, _Shape: 1, _Pair: 2, _Open: 3}


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
    # Millions of small objects live as long as the search: to look for cycles among them is vain.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _Search(problem, constraints, pricer, progress or (lambda _: None)).run()
    finally:
        if was_enabled:
            gc.enable()


@dataclass
class _Search:
    problem: Problem
    constraints: Constraints
    pricer: StackModel
    progress: Callable[[Progress], None]
    opened: int = 0
    """Nodes that came to the top."""
    simulations: int = 0
    """Of leaves that were simulated, all boundaries and recomputations that were."""
    found: list[StackPriced] = field(default_factory=list)
    best: StackPriced | None = None
    heap: list[tuple[float, int, float, int, _Node]] = field(default_factory=list)
    """The floor of the bound's level, less the depth, the bound, a counter."""

    def __post_init__(self) -> None:
        self.started_s = time.monotonic()
        self.space = StackSpace(self.problem, self.constraints)
        self.prices = StackPrices(self.problem, self.space, self.pricer)
        self.counter = itertools.count()
        self.simulated: set[Leaf] = set()
        """Leaves with a layout that was simulated."""
        self.aside: list[tuple[float, _Node]] = []
        """What cannot become the best, for runners-up."""
        self._stages: dict[tuple[object, ...], StagePricer] = {}
        self.num_plunges = 0
        self._last_step_s = math.inf
        """Of as many as are asked for."""
        self._too_big: set[Leaf] = set()
        """Leaves of which no layout fits."""
        self.is_proving, self.is_diving, self.is_shallow = True, False, False

    # The books

    @property
    def best_step_s(self) -> float:
        return math.inf if self.best is None else self.best.step_s

    def limit_s(self) -> float:
        """A step that is not worth reaching; for runners-up, of the last that is asked for."""
        step_s = self.best_step_s if self.is_proving else self._last_step_s
        return step_s * (1 - TOLERANCE)

    @property
    def least_bound_s(self) -> float:
        """Nothing that is left is faster: the floor of the first node's level."""
        return self.heap[0][0] if self.heap else math.inf

    def _push(self, bound_s: float, node: _Node) -> None:
        """Into the heap, or aside where it cannot become the best."""
        bound_s = max(bound_s, 1e-12)
        if bound_s >= self.limit_s():
            self.aside.append((bound_s, node))
            return
        floor_s = bound_s
        if self.is_proving:
            floor_s = math.exp(math.floor(math.log(bound_s) / _LEVEL) * _LEVEL) * (1 - 1e-12)
        entry = (floor_s, -_DEPTH[type(node)], bound_s, next(self.counter), node)
        heapq.heappush(self.heap, entry)

    # The search

    def run(self) -> StackResult:
        if self.space.valid:
            self._dive()
            self._push_families()
        self._advance_until(lambda: self._is_proven() or self._is_late())
        optimal, least_bound_s = self._is_proven(), self.least_bound_s
        gap = 0.0 if optimal else (
            max(0.0, 1 - least_bound_s / self.best_step_s) if self.best else 1.0
        )  # fmt: skip
        certificate = self._certificate(optimal, gap)
        if optimal:
            self._find_runners_up()
        ranking = self._distinct(self.found, self.constraints.top)
        return StackResult(
            tuple(map(self._candidate, ranking)), tuple(map(self._candidate, self._ties())),
            certificate,
        )  # fmt: skip

    def _dive(self) -> None:
        """Look at plain states alone, to have a good layout early: first with as few stages a rank
        as there may be, then with more."""
        self.is_diving = True
        for self.is_shallow in (True, False):
            self._push_families()
            self._advance_until(self._has_dived(self.simulations - self.num_plunges + _DIVES))
            self.heap, self.aside, self._too_big = [], [], set()
        self.is_diving = False

    def _has_dived(self, last: int) -> Callable[[], bool]:
        """``last``: how many simulations there are then."""
        return lambda: (
            self.simulations - self.num_plunges >= last or self._is_proven() or self._is_late()
        )

    def _find_runners_up(self) -> None:
        """Go on in strict order of the bounds, for a while."""
        self.is_proving = False
        self._note_last()
        nodes = [*self.aside, *((entry[2], entry[4]) for entry in self.heap)]
        self.aside, self.heap = [], []
        for bound_s, node in heapq.nsmallest(_RUNNER_UP_NODES, nodes, key=lambda one: one[0]):
            self._push(bound_s, node)
        last, last_node = self.simulations + _RUNNER_UP_SIMULATIONS, self.opened + _RUNNER_UP_NODES
        self._advance_until(
            lambda: (
                self.simulations >= last
                or self.opened >= last_node
                or self._runners_up_are_proven()
                or self._is_late()
            )
        )

    def _advance_until(self, is_done: Callable[[], bool]) -> None:
        while self.heap and not is_done():
            floor_s, _, bound_s, _, node = heapq.heappop(self.heap)
            if bound_s >= self.limit_s():
                self.aside.append((bound_s, node))
                continue
            self.opened += 1
            # Dives leave most layouts out, so that their bounds say nothing of these.
            least_s = 0.0 if self.is_diving else min(floor_s, self.best_step_s)
            self.progress(Progress(self.simulations, self.best_step_s, least_s))
            if isinstance(node, _Open):
                self._solve(bound_s, node)
            elif isinstance(node, _Pair):
                self._push_leaves(bound_s, node)
            elif isinstance(node, _Family):
                self._push_shapes(bound_s, node)
            elif node.work is None:
                self._price_shape(bound_s, node)
            else:
                self._push_pairs(node, node.work)

    def _push_families(self) -> None:
        """All, at the least work for each token; in dives of each spread of experts the one with
        the least."""
        seen: set[tuple[int, ...]] = set()
        for bound_s, family in self._families:
            spread = (family.tp, family.cp, family.cut.ep, family.cut.etp)
            if not self.is_diving or spread not in seen:
                self._push(bound_s, family)
            seen.add(spread)

    @cached_property
    def _families(self) -> list[tuple[float, _Family]]:
        """With their bounds, the least work for each token first."""
        cuts: dict[tuple[int, int], set[Cut]] = {}
        for grids in self._grids.values():
            for grid in grids:
                cuts.setdefault((grid.tp, grid.cp), set()).update(self.space.valid_cuts(grid))
        found = []
        for (tp, cp), open_cuts in cuts.items():
            grid = self._grids[tp, cp][0]
            # The same for every grid: what the world leaves of the batch for one rank.
            tokens = self.prices.tokens(grid) * grid.num_microbatches / grid.pp
            for cut in open_cuts:
                bound_s = self.prices.least_token_s(grid, cut) * tokens
                found.append((bound_s, _Family(tp, cp, cut)))
        return sorted(found, key=lambda one: (one[0], one[1].tp, one[1].cp, one[1].cut))

    @cached_property
    def _grids(self) -> dict[tuple[int, int], list[Grid]]:
        """By tp and cp."""
        found: dict[tuple[int, int], list[Grid]] = {}
        for grid in self.space.valid:
            found.setdefault((grid.tp, grid.cp), []).append(grid)
        return found

    def _push_shapes(self, bound_s: float, node: _Family) -> None:
        """Of every micro-batch; in dives of small ones."""
        by_size: dict[int, list[Grid]] = {}
        for grid in self._grids[node.tp, node.cp]:
            is_open = not self.is_diving or grid.micro_batch <= self._small_micro_batch
            if is_open and node.cut in self.space.valid_cuts(grid):
                by_size.setdefault(grid.micro_batch, []).append(grid)
        for grids in by_size.values():
            self._push(bound_s, _Shape(node.cut, tuple(grids)))

    @cached_property
    def _small_micro_batch(self) -> int:
        sizes = sorted({grid.micro_batch for grid in self.space.valid})
        return sizes[:_DIVE_MICRO_BATCHES][-1]

    def _price_shape(self, bound_s: float, node: _Shape) -> None:
        grid = node.grids[0]
        work = shape_work(self.prices, grid, node.cut)
        own_s = work.total_s * grid.num_microbatches / grid.pp * work.overlap_ratio * (1 - SLACK)
        self._push(max(bound_s, own_s), _Shape(node.cut, node.grids, work))

    def _push_pairs(self, node: _Shape, work: ShapeWork) -> None:
        """The shape on every grid, at the best of its pipelines."""
        kinds = self.prices.units.num_layers_of_kind
        for grid in node.grids:
            pipelines = self.space.valid_pipelines(grid)
            bound_s = min(step_bound_s(work, grid, one, kinds) for one in pipelines)
            self._push(bound_s, _Pair(grid, node.cut, work))

    def _push_leaves(self, bound_s: float, node: _Pair) -> None:
        """Every pipeline under every state that may fit and may be fast enough."""
        states = self._states(node.grid, node.cut)
        alike = self._with_room(node, states)
        if not alike:
            return
        rows = state_rows(self.prices, node.grid, node.cut, states)
        orders = {state.rank_order for state in states}
        found: list[tuple[float, _Open]] = []
        for pipelines in alike:
            leaf = Leaf(node.grid, node.cut, ALONE, pipelines[0][1])
            all_busy_s = self._busy_s(leaf, rows, orders, node.work)
            if all(self._is_slow(busy_s, node.work) for busy_s in all_busy_s):
                continue
            own = self._quickly_bounded(node, pipelines, rows)
            for at, (state, busy_s) in enumerate(zip(states, all_busy_s, strict=True)):
                open_s = [(bounds_s[at], pipeline) for pipeline, bounds_s in own]
                found += self._leaves(bound_s, node, state, open_s, busy_s)
        if self.is_diving and found:
            self._plunge(*min(found, key=lambda one: one[0]))
        for own_s, opened in found:
            if opened.solver is None:
                self._push(own_s, opened)

    def _with_room(self, node: _Pair, states: list[State]) -> list[list[tuple[float, Pipeline]]]:
        """Pipelines with their bounds, by their kind; without those whose ranks cannot hold all
        layers in time under any state."""
        by_kind: dict[tuple[bool, ...], list[tuple[float, Pipeline]]] = {}
        for step_s, pipeline in self._pipelines(node):
            kind = path_kind(Leaf(node.grid, node.cut, ALONE, pipeline))
            by_kind.setdefault(kind, []).append((step_s, pipeline))
        if self.limit_s() == math.inf or not by_kind:
            return list(by_kind.values())
        leanest = leanest_rows(self.prices, node.grid, node.cut, states)
        known: dict[bool, bool] = {}
        found = []
        for pipelines in by_kind.values():
            leaf = Leaf(node.grid, node.cut, ALONE, pipelines[0][1])
            is_v = leaf.pipeline.schedule in V_SHAPED
            if is_v not in known:
                known[is_v] = self._has_room(leaf, leanest, node.work)
            if known[is_v]:
                found.append(pipelines)
        return found

    def _plunge(self, bound_s: float, node: _Open) -> None:
        """Simulate a leaf at once if it may be much better: what is known of the best makes all
        that follows cheaper to bound."""
        if bound_s < self.limit_s() * _PLUNGE_RATIO:
            self._solve(bound_s, node)
            self.num_plunges += 1

    def _has_room(self, leaf: Leaf, leanest: StateRows, work: ShapeWork) -> bool:
        """And time for all layers before the limit, if ranks waited for nothing and had the
        leanest state."""
        if leaf.grid.pp > 1 and leaf.pipeline.schedule not in V_SHAPED:
            leaf = leaf._replace(pipeline=_LEAST_HELD)
        limit_s = self.limit_s() / work.overlap_ratio
        (busy_s,) = least_busy_s(self.prices, leaf, leanest, work, Path(), limit_s)
        return busy_s * (1 - SLACK) < limit_s

    def _is_slow(self, busy_s: float, work: ShapeWork) -> bool:
        """Not in the sense of too big."""
        return busy_s < math.inf and busy_s * work.overlap_ratio >= self.limit_s()

    def _leaves(
        self, bound_s: float, node: _Pair, state: State,
        pipelines: list[tuple[float, Pipeline]], busy_s: float,
    ) -> Iterator[tuple[float, _Open]]:  # fmt: skip
        """``busy_s``: until the busiest rank has done all micro-batches, at the least."""
        if busy_s == math.inf:
            self._too_big.update(Leaf(node.grid, node.cut, state, one) for _, one in pipelines)
            return
        if self._is_slow(busy_s, node.work):
            return
        after = None
        for step_s, pipeline in pipelines:
            leaf = Leaf(node.grid, node.cut, state, pipeline)
            if step_s == math.inf:
                self._too_big.add(leaf)
            if step_s >= self.limit_s():
                continue
            after = after or after_bound(self.prices, node.grid, node.cut, state, node.work)
            own_s = max(bound_s, whole_bound_s(node.work, leaf, step_s, busy_s, after))
            if own_s < self.limit_s():
                yield own_s, _Open(leaf, node.work)

    def _busy_s(
        self, leaf: Leaf, rows: StateRows, orders: set[str], work: ShapeWork
    ) -> list[float]:
        """Until the busiest rank has done all micro-batches, at the least, before overlapping."""
        blocks = not self.pricer.software.overlap_messages
        ordered = [leaf._replace(state=ALONE._replace(rank_order=order)) for order in orders]
        if leaf.grid.pp == 1:
            ordered = []
        message_s = min(
            (
                second
                for one in ordered
                for second in self.prices.messages_s(one)[: leaf.grid.pp - 1]
            ),
            default=0.0,
        )
        path = path_of(work, leaf, message_s, blocks=blocks)
        limit_s = self.limit_s() / work.overlap_ratio
        found = least_busy_s(self.prices, leaf, rows, work, path, limit_s)
        return [busy_s * (1 - SLACK) for busy_s in found]

    def _pipelines(self, node: _Pair) -> list[tuple[float, Pipeline]]:
        """Those that are open and may be fast enough with their bounds, the least first."""
        kinds, found = self.prices.units.num_layers_of_kind, []
        for pipeline in self.space.valid_pipelines(node.grid):
            bound_s = step_bound_s(node.work, node.grid, pipeline, kinds)
            if bound_s < self.limit_s():
                found.append((bound_s, pipeline))
        if self.is_diving:
            fewest = min((one.vpp for one in self.space.valid_pipelines(node.grid)), default=1)
            found = [one for one in found if (one[1].vpp == fewest) == self.is_shallow]
        return sorted(found)

    def _quickly_bounded(
        self, node: _Pair, pipelines: list[tuple[float, Pipeline]], rows: StateRows
    ) -> list[tuple[Pipeline, list[float]]]:
        """With what a look at their few ways to split says: of each state."""
        found = []
        for bound_s, pipeline in pipelines:
            bounds_s = [bound_s] * len(rows.index)
            if pipeline.vpp > 1:
                leaf = Leaf(node.grid, node.cut, ALONE, pipeline)
                looked_s = quick_bounds_s(self.prices, leaf, rows, node.work).tolist()
                bounds_s = [max(bound_s, looked_s[row]) for row in rows.index]
            if min(bounds_s) < self.limit_s():
                found.append((pipeline, bounds_s))
        return found

    def _states(self, grid: Grid, cut: Cut) -> list[State]:
        found = self.space.valid_states(grid, cut)
        if not self.is_diving:
            return found
        copies = grid.dp * grid.cp
        plain = [
            one for one in found
            if one.offload == "none" and one.rank_order == RANK_ORDERS[0] and one.reshard
            and one.zero != 2 and one.shard_degree in (1, copies)
        ]  # fmt: skip
        return plain or found

    def _solve(self, bound_s: float, node: _Open) -> None:
        """Simulate the leaf's next way to split, if it has one."""
        if node.solver is None:
            node.solver = self._solver(node.leaf, node.work)
        split = node.solver.next_split()
        if split is None:
            if self.limit_s() == math.inf and node.leaf not in self.simulated:
                self._too_big.add(node.leaf)
            return
        self._simulate(node, node.solver, split)
        self._push(max(bound_s, split.bound_s), node)

    def _solver(self, leaf: Leaf, work: ShapeWork) -> LeafSolver:
        return LeafSolver(self.prices, self._stages_of(leaf), leaf, work, self.limit_s)

    def _stages_of(self, leaf: Leaf) -> StagePricer:
        key = (leaf.grid, leaf.cut, leaf.state, leaf.is_split)
        if key not in self._stages:
            self._stages[key] = StagePricer(
                self.prices, leaf.grid, leaf.cut, leaf.state, is_split=leaf.is_split
            )
        return self._stages[key]

    def _simulate(self, node: _Open, solver: LeafSolver, split: Split) -> None:
        choices = solver.choices(split)
        layout = choices.layout(self.problem, self.space.others)
        memory = self.pricer.memory(layout)
        if self.pricer.verdict(memory) != "fits":
            over = [
                rank for rank, parts in enumerate(memory)
                if self.pricer.verdict([parts]) != "fits"
            ]  # fmt: skip
            solver.refuse(split, over)
            return
        if host_overflow_in_words(self.pricer, layout) is not None:
            return
        self.simulated.add(node.leaf)
        self.simulations += 1
        priced = StackPriced(choices, layout, self.pricer.step_time_s(layout))
        self.found.append(priced)
        if self.best is None or _is_better(priced, self.best):
            self.best = priced
        if not self.is_proving:
            self._note_last()

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
        return self.least_bound_s >= self.limit_s()

    def _note_last(self) -> None:
        ranking = self._distinct(self.found, self.constraints.top)
        if len(ranking) == self.constraints.top:
            self._last_step_s = ranking[-1].step_s

    def _distinct(self, priced: list[StackPriced], count: int) -> list[StackPriced]:
        """The best, then the fastest others whose choices differ in more than the split."""
        if self.best is None:
            return []
        ordered = sorted(priced, key=lambda one: (one.step_s, one.key))
        chosen = {self.best.choices.leaf: self.best}
        for one in ordered:
            if len(chosen) == count:
                break
            chosen.setdefault(one.choices.leaf, one)
        return list(chosen.values())[:count]

    def _ties(self) -> list[StackPriced]:
        tie_end_s = self.best_step_s * self.problem.profile.tie_ratio
        within = [one for one in self.found if one.step_s <= tie_end_s]
        return self._distinct(within, MAX_TIES + 1)[1:]

    def _candidate(self, priced: StackPriced) -> Candidate:
        return Candidate(layout=priced.layout, prediction=self.pricer.predict(priced.layout))

    def _certificate(self, optimal: bool, gap: float) -> Certificate:
        considered = self.space.considered
        rules, simulated = considered - self.space.num_by_the_rules, len(self.simulated)
        too_big = len(self._too_big)
        if optimal and self.best is None:
            too_big = self.space.num_by_the_rules
        return Certificate(
            considered=considered,
            excluded_by_rules=rules,
            excluded_by_memory=too_big,
            excluded_by_bound=considered - rules - too_big - simulated,
            excluded_by_dominance=0,
            simulated=simulated,
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
