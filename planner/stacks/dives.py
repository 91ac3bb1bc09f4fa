"""Guesses of good layouts, for a search to have an answer before it has a proof.

A guess costs no price of its own: the least work for a token, the bubble of one forward and one
backward over the pipeline, and what recomputation usually adds.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.stacks.choices import Cut, Grid
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace

_AGAIN = {"none": 1.0, "full": 4 / 3}
"""Work with recomputation over work without: a third forward pass; other policies little."""
_CHEAP_AGAIN = 1.03
_SIZES = 2
"""How many micro-batches of a grid are guessed at: the smallest."""
_SPREADS = (1, 8, 16, 32, 64, 128)
"""Least degrees of expert parallelism that are guessed at: what fits is spread."""


def dives(space: StackSpace, prices: StackPrices) -> Iterator[tuple[float, Grid, Cut, str, int]]:
    """(guessed step in seconds, grid, cut, recompute, zero), the fastest first."""
    found = []
    for grid in small_grids(space.valid, sizes=_SIZES):
        for cut, work_s in _spread(prices, grid):
            passes = (grid.num_microbatches + grid.pp - 1) / grid.pp
            for recompute in space.recomputes:
                again = _AGAIN.get(recompute.partition(":")[0], _CHEAP_AGAIN)
                guess_s = work_s * prices.tokens(grid) * passes * again
                zeros = space.valid_zeros(grid, cut)
                found += [(guess_s, grid, cut, recompute, zero) for zero in zeros if zero < 2]
                if not min(zeros, default=0) < 2:
                    found.append((guess_s, grid, cut, recompute, zeros[-1]))
    yield from sorted(found, key=lambda one: (one[0], one[1], one[2], one[3], -one[4]))


def small_grids(grids: tuple[Grid, ...], *, sizes: int) -> Iterator[Grid]:
    """Of every tp x cp x pp the grids with so many of the smallest micro-batches."""
    counts: dict[tuple[int, int, int], int] = {}
    for grid in sorted(grids, key=lambda grid: grid.micro_batch):
        key = (grid.tp, grid.cp, grid.pp)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= sizes:
            yield grid


def _spread(prices: StackPrices, grid: Grid) -> list[tuple[Cut, float]]:
    """The cuts with the least work for a token that spread experts so far or further."""
    cuts = prices.ordered_cuts(grid)
    found: dict[Cut, float] = {}
    for least in _SPREADS:
        for cut, token in cuts:
            if cut.ep >= least:
                found.setdefault(cut, token.work_s)
                break
    return list(found.items())
