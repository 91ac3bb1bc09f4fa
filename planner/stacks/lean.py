"""The layout that needs least memory, of those that promise to.

Not every layout is looked at: of every grid the smallest micro-batch, the most sharding and the
most recomputation, of cuts a few, and of those the few whose units need least.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.problem import Problem
from shardwright.planner.stacks.choices import Cut, Grid, StackChoices
from shardwright.planner.stacks.dives import small_grids
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace
from shardwright.specs import Candidate, Layout

_LOOKED_AT = 10
"""How many combinations are priced as whole layouts."""


def leanest(problem: Problem, space: StackSpace, pricer: StackModel) -> Candidate:
    """The leanest of the layouts that are looked at; the first that fits, if one does.

    The space must have a layout by the rules.
    """
    prices = StackPrices(problem, space, pricer)
    best: tuple[int, Layout] | None = None
    ordered = sorted(_estimates(space, prices), key=lambda one: one[:-1])
    for _, _, (grid, cut, recompute, zero) in ordered[:_LOOKED_AT]:
        leaves = prices.leaves(grid, cut, recompute, zero)
        leaf = min(leaves, key=lambda one: one.needed_bytes)
        choices = StackChoices(grid, cut, zero, recompute, leaf.pipeline, leaf.split)
        starts = tuple(unit - 1 for unit in leaf.starts)
        layout = choices.layout(problem, starts, space.others)
        memory = pricer.memory(layout)
        peak = max(rank.total_bytes for rank in memory)
        if best is None or peak < best[0]:
            best = peak, layout
        if pricer.verdict(memory) == "fits":
            break
    assert best is not None
    return Candidate(layout=best[1], prediction=pricer.predict(best[1]))


def _estimates(
    space: StackSpace, prices: StackPrices
) -> Iterator[tuple[float, int, tuple[Grid, Cut, str, int]]]:
    """What a rank of an even pipeline holds, with what decides it."""
    index = 0
    recompute = space.recomputes[-1]
    for grid in small_grids(space.valid, sizes=1):
        for cut in _few_cuts(space, grid):
            zero = max(space.valid_zeros(grid, cut), default=None)
            if zero is None:
                continue
            held = prices.bytes(grid, cut, prices.policy(recompute), zero)
            in_flight = min(grid.pp, grid.num_microbatches)
            spread = (held.state[-1] + in_flight * held.saved[-1]) / grid.pp
            index += 1
            yield float(spread) + held.moment, index, (grid, cut, recompute, zero)


def _few_cuts(space: StackSpace, grid: Grid) -> list[Cut]:
    """The widest spread of experts with and without their tensor parallelism, sequence parallel
    where that is open."""
    cuts = space.valid_cuts(grid)
    widest = max((cut.ep for cut in cuts), default=1)
    chosen = [cut for cut in cuts if cut.ep == widest]
    parallel = [cut for cut in chosen if cut.sequence_parallel] or chosen
    kinds = {cut.etp: cut for cut in reversed(parallel)}
    return [kinds[etp] for etp in sorted(kinds)]
