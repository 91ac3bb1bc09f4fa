"""What every bound says of one layout, beside its simulated step."""

from __future__ import annotations

import math

from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.stacks.bounds import (
    ShapeWork,
    after_bound,
    least_busy_s,
    path_of,
    shape_work,
    state_rows,
    step_bound_s,
    whole_bound_s,
)
from shardwright.planner.stacks.choices import Cut, Grid, Leaf, StackChoices
from shardwright.planner.stacks.leaves import LeafSolver
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.quick import quick_bounds_s
from shardwright.planner.stacks.rooms import SLACK
from shardwright.planner.stacks.space import FEW_INTERLEAVED, StackSpace
from shardwright.planner.stacks.splits import num_ways
from shardwright.planner.stacks.stages import StagePricer
from shardwright.specs import ScheduleName
from tests.planner.stacks.small import num_stages, pricer_of


class BoundChecker:
    """Bounds of the layouts of one problem."""

    def __init__(self, made: Problem, constraints: Constraints) -> None:
        self.space, self.pricer = StackSpace(made, constraints), pricer_of(made)
        self.prices = StackPrices(made, self.space, self.pricer)
        self._work: dict[tuple[Grid, Cut], ShapeWork] = {}
        self._leaf: dict[Leaf, dict[str, float]] = {}

    def broken(self, choices: StackChoices) -> list[str]:
        """Which bounds a layout is below, in words."""
        layout = choices.layout(self.space.problem, self.space.others)
        step_s = self.pricer.step_time_s(layout)
        bounds = self.bounds_of_any(choices.leaf)
        if self.pricer.verdict(self.pricer.memory(layout)) == "fits":
            bounds = bounds | self.bounds_of_fitting(choices.leaf)
            if choices.pipeline.schedule != ScheduleName.DUALPIPE_V:
                bounds["rooms below the step"] = self.busy_s(choices.leaf, step_s)
        return [
            f"{name}: {bound_s!r} > {step_s!r} of {choices}"
            for name, bound_s in bounds.items()
            if bound_s > step_s
        ]

    def work(self, leaf: Leaf) -> ShapeWork:
        key = leaf.grid, leaf.cut
        if key not in self._work:
            self._work[key] = shape_work(self.prices, *key)
        return self._work[key]

    def bounds_of_any(self, leaf: Leaf) -> dict[str, float]:
        """Of layouts whether or not they fit."""
        grid, work = leaf.grid, self.work(leaf)
        passes = grid.num_microbatches / grid.pp
        tokens = self.prices.tokens(grid) * passes
        kinds = self.prices.units.num_layers_of_kind
        after = after_bound(self.prices, grid, leaf.cut, leaf.state, work)
        step_s = step_bound_s(work, grid, leaf.pipeline, kinds)
        return {
            "token": self.prices.least_token_s(grid, leaf.cut) * tokens,
            "shape": work.total_s * passes * work.overlap_ratio * (1 - SLACK),
            "step": whole_bound_s(work, leaf, step_s, 0.0, after),
        }

    def bounds_of_fitting(self, leaf: Leaf) -> dict[str, float]:
        """Of layouts that fit."""
        if leaf not in self._leaf:
            work = self.work(leaf)
            after = after_bound(self.prices, leaf.grid, leaf.cut, leaf.state, work)
            busy_s = self.busy_s(leaf, math.inf)
            self._leaf[leaf] = {
                "rooms": whole_bound_s(work, leaf, 0.0, busy_s, after),
                "solver": self.solver_s(leaf),
                "quick": self.quick_s(leaf),
            }
        return self._leaf[leaf]

    def busy_s(self, leaf: Leaf, limit_s: float) -> float:
        """As the search bounds ranks that must hold all layers."""
        work, blocks = self.work(leaf), not self.pricer.software.overlap_messages
        message_s = 0.0
        if leaf.grid.pp > 1:
            message_s = min(self.prices.messages_s(leaf)[: leaf.grid.pp - 1])
        path = path_of(work, leaf, message_s, blocks=blocks)
        rows = state_rows(self.prices, leaf.grid, leaf.cut, [leaf.state])
        (busy_s,) = least_busy_s(self.prices, leaf, rows, work, path, limit_s)
        return busy_s * (1 - SLACK)

    def quick_s(self, leaf: Leaf) -> float:
        """From the few ways to split; 0 where a rank has one stage."""
        if leaf.pipeline.vpp == 1:
            return 0.0
        rows = state_rows(self.prices, leaf.grid, leaf.cut, [leaf.state])
        most = FEW_INTERLEAVED
        return float(quick_bounds_s(self.prices, leaf, rows, self.work(leaf), most)[0])

    def solver_s(self, leaf: Leaf) -> float:
        """The first way to complete a leaf; 0 where not all ways are looked at."""
        units = self.space.problem.num_units
        if leaf.pipeline.vpp > 1 and num_ways(units, num_stages(leaf)) > (FEW_INTERLEAVED):
            return 0.0
        first = self.solver(leaf).next_split()
        return math.inf if first is None else first.bound_s

    def solver(self, leaf: Leaf, limit_s: float = math.inf) -> LeafSolver:
        """Below a limit."""
        stages = StagePricer(
            self.prices, leaf.grid, leaf.cut, leaf.state, is_split=leaf.is_split
        )  # fmt: skip
        return LeafSolver(self.prices, stages, leaf, self.work(leaf), lambda: limit_s)
