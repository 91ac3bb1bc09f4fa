"""Guesses come from the space, the fastest first."""

from __future__ import annotations

import itertools

from shardwright.planner.problem import Constraints
from shardwright.planner.stacks.dives import dives, small_grids
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace
from tests.planner.stacks.small import pricer_of, problem


def test_guesses_are_valid_and_in_order() -> None:
    made = problem(gpus=4, global_batch=8)
    space = StackSpace(made, Constraints())
    found = list(dives(space, StackPrices(made, space, pricer_of(made))))
    assert found
    assert all(one[0] <= other[0] for one, other in itertools.pairwise(found))
    for _, grid, cut, recompute, zero in found:
        assert grid in space.valid
        assert cut in space.valid_cuts(grid)
        assert recompute in space.recomputes
        assert zero in (0, 1)


def test_a_fixed_zero_3_is_guessed_at() -> None:
    made = problem(gpus=4, global_batch=8)
    space = StackSpace(made, Constraints(fixed={"zero": 3}))
    found = list(dives(space, StackPrices(made, space, pricer_of(made))))
    assert {zero for *_, zero in found} == {3}


def test_small_grids_have_the_smallest_micro_batches() -> None:
    space = StackSpace(problem(gpus=2, global_batch=8), Constraints())
    found = list(small_grids(space.valid, sizes=1))
    assert {grid.micro_batch for grid in found} == {1}
    assert len({(grid.tp, grid.cp, grid.pp) for grid in found}) == len(found)
