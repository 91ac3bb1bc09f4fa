"""The layout that needs least memory, of those that promise to.

Not every layout is looked at: of every grid the smallest micro-batch and the most sharding, of cuts
a few, and of those the few whose ranks need least, with as much recomputation as there may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.problem import Problem
from shardwright.planner.stacks.choices import Cut, Grid, Leaf, Pipeline, StackChoices, State
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace
from shardwright.planner.stacks.splits import balanced_split, even_split
from shardwright.specs import Candidate, Layout
from shardwright.specs.layout import V_SHAPED

_LOOKED_AT = 12
"""How many layouts are priced in all detail."""


class _Guess(NamedTuple):
    rank_bytes: float
    """Of ranks that share the model evenly."""
    order: int
    leaf: Leaf


def leanest(problem: Problem, space: StackSpace, pricer: StackModel) -> Candidate:
    """The leanest of the layouts that are looked at; the first that fits, if one does.

    The space must have a layout by the rules.
    """
    prices = StackPrices(problem, space, pricer)
    best: tuple[int, Layout] | None = None
    for guess in sorted(_guesses(space, prices))[:_LOOKED_AT]:
        for layout in _layouts(problem, space, prices, guess.leaf):
            memory = pricer.memory(layout)
            peak = max(rank.total_bytes for rank in memory)
            if best is None or peak < best[0]:
                best = peak, layout
            if pricer.verdict(memory) == "fits":
                return Candidate(layout=layout, prediction=pricer.predict(layout))
    assert best is not None
    return Candidate(layout=best[1], prediction=pricer.predict(best[1]))


def _guesses(space: StackSpace, prices: StackPrices) -> Iterator[_Guess]:
    """What a rank of an even pipeline holds, with what decides it."""
    index = 0
    for grid in _smallest_micro_batches(space):
        for cut in _few_cuts(space, grid):
            for state in _leanest_states(space, grid, cut):
                held = prices.state(grid, cut, state)
                kept = min(
                    prices.again(grid, cut, policy).saved_bytes[-1]
                    for policy in prices.leanest_policies
                )
                layer, head = prices.least_moments(grid, cut)
                in_flight = min(grid.pp, grid.num_microbatches) * (
                    "activations" not in state.offload
                )
                spread = (held.held_bytes[-1] + in_flight * kept) / grid.pp
                index += 1
                for pipeline in _leanest_pipelines(space.valid_pipelines(grid)):
                    leaf = Leaf(grid, cut, state, pipeline)
                    yield _Guess(spread + max(layer, head), index, leaf)


def _smallest_micro_batches(space: StackSpace) -> Iterator[Grid]:
    """Of every tp x cp x pp the grid with the smallest micro-batch."""
    seen: set[tuple[int, int, int]] = set()
    for grid in sorted(space.valid, key=lambda grid: grid.micro_batch):
        if grid[:3] not in seen:
            seen.add(grid[:3])
            yield grid


def _few_cuts(space: StackSpace, grid: Grid) -> list[Cut]:
    """The widest spread of experts with and without their tensor parallelism, sequence parallel
    where that is open."""
    cuts = space.valid_cuts(grid)
    widest = max((cut.ep for cut in cuts), default=1)
    chosen = [cut for cut in cuts if cut.ep == widest]
    parallel = [cut for cut in chosen if cut.sequence_parallel] or chosen
    kinds = {cut.etp: cut for cut in reversed(parallel)}
    return [kinds[etp] for etp in sorted(kinds)]


def _leanest_states(space: StackSpace, grid: Grid, cut: Cut) -> list[State]:
    """Of each ZeRO stage, that over most copies; with and without offloading."""
    found: dict[tuple[object, ...], State] = {}
    for state in space.valid_states(grid, cut):
        key = (state.zero, state.offload)
        if key not in found or found[key].shard_degree < state.shard_degree:
            found[key] = state
    zeros = sorted({state.zero for state in found.values()})[-2:]
    return [state for (zero, _), state in found.items() if zero in zeros]


def _leanest_pipelines(pipelines: list[Pipeline]) -> list[Pipeline]:
    """That with the fewest stages, which keep least in flight."""
    fewest = min(one.vpp for one in pipelines)
    return [one for one in pipelines if one.vpp == fewest and one.schedule not in V_SHAPED][:1] or [
        pipelines[0]
    ]


def _layouts(
    problem: Problem, space: StackSpace, prices: StackPrices, leaf: Leaf
) -> Iterator[Layout]:
    """Split by time, and evenly, with as much recomputation and as small a loss as may be."""
    count = leaf.grid.pp * leaf.pipeline.vpp
    fixed = space.boundaries(count)
    ways = [balanced_split(prices.unit_s(leaf.grid, leaf.cut), count),
            even_split(problem.num_units, count)]  # fmt: skip
    if fixed is not None:
        ways = [tuple(layer + 1 for layer in fixed)]
    for policy in space.recomputes:
        policies = tuple(policy.split("/")) if "/" in policy else (policy,) * count
        if policy != space.recomputes[-1] and "full" in space.recomputes:
            continue
        for starts in dict.fromkeys(ways):
            choices = StackChoices(*leaf, space.loss_chunks[-1], starts, policies)
            yield choices.layout(problem, space.others)
