"""No bound exceeds what it bounds."""

from __future__ import annotations

import random

import pytest

from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.stacks.bounds import mean_bytes, work_bound_s
from shardwright.planner.stacks.choices import StackChoices
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace
from tests.planner.stacks.small import dense_problem, every_leaf, layout_of, pricer_of, problem

PROBLEMS = {
    "experts": problem(gpus=8, global_batch=8, seq_len=2048),
    "dense": dense_problem(gpus=8, global_batch=16),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_tier_is_below_the_simulated_step_and_the_memory(name: str) -> None:
    made: Problem = PROBLEMS[name]
    pricer, space = pricer_of(made), StackSpace(made, Constraints())
    prices, draw = StackPrices(made, space, pricer), random.Random(7)
    for grid in draw.sample(list(space.valid), 30):
        cut = draw.choice(space.valid_cuts(grid))
        zero, recompute = draw.choice(space.valid_zeros(grid, cut)), draw.choice(space.recomputes)
        least = dict(prices.ordered_cuts(grid))[cut]
        tokens_s = least.work_s * prices.tokens(grid) * grid.num_microbatches / grid.pp
        plain_s = work_bound_s(prices.times(grid, cut, "none", 0), grid, pricer)
        policy_s = work_bound_s(prices.times(grid, cut, recompute, zero), grid, pricer, again=True)
        held = mean_bytes(prices.bytes(grid, cut, recompute, zero), grid)
        for leaf in draw.sample(list(prices.leaves(grid, cut, recompute, zero)), 1):
            choices = StackChoices(grid, cut, zero, recompute, leaf.pipeline, leaf.split)
            layout = layout_of(made, choices, leaf, space)
            step_s = pricer.step_time_s(layout)
            peak = max(rank.total_bytes for rank in pricer.memory(layout))
            assert max(tokens_s, plain_s, policy_s, leaf.bound_s) <= step_s, choices
            assert max(held, leaf.needed_bytes) <= peak, choices


def test_leaves_are_all_there_once() -> None:
    made = problem(gpus=2)
    pricer, space = pricer_of(made), StackSpace(made, Constraints())
    leaves = list(every_leaf(space, StackPrices(made, space, pricer)))
    assert len({choices for choices, _ in leaves}) == len(leaves)
    assert 0 < len(leaves) <= space.num_by_the_rules
