"""No bound exceeds what it bounds."""

from __future__ import annotations

import random

import pytest

from shardwright.cost_models.pipeline.orders import ranks_of_stages
from shardwright.planner.problem import Constraints
from shardwright.planner.stacks.bounds import path_kind, state_rows, step_bound_s
from shardwright.planner.stacks.choices import Cut, Grid, Leaf, Pipeline
from shardwright.planner.stacks.units import ALONE
from tests.planner.stacks.bound_checker import BoundChecker
from tests.planner.stacks.small import draw_choices, draw_problem, every_leaf, problem

SEEDS = [seed for seed in range(40) if draw_problem(seed) is not None]
PLAIN = Cut(False, "ring", 1, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_above_the_simulated_step(seed: int) -> None:
    drawn = draw_problem(seed)
    assert drawn is not None
    checker, draw = BoundChecker(*drawn), random.Random(seed)
    for _ in range(40):
        assert checker.broken(draw_choices(checker.space, draw)) == []


def test_a_bound_that_is_too_high_is_seen() -> None:
    checker = BoundChecker(problem(gpus=2), Constraints())
    choices = draw_choices(checker.space, random.Random(1))
    bounds = checker.bounds_of_any(choices.leaf)
    checker.bounds_of_any = lambda leaf: {**bounds, "too high": 1e9}  # type: ignore[method-assign]
    (said,) = checker.broken(choices)
    assert said.startswith("too high: ")


def test_bounds_come_near_where_ranks_are_even() -> None:
    checker = BoundChecker(problem(gpus=1, global_batch=4), Constraints())
    leaf = next(every_leaf(checker.space))
    bound_s = checker.bounds_of_any(leaf)["step"]
    assert bound_s > 0.9 * checker.solver_s(leaf)


def test_longer_pipelines_wait_longer() -> None:
    checker = BoundChecker(problem(gpus=4, global_batch=4), Constraints())
    leaf = Leaf(Grid(1, 1, 2, 2, 1, 2), PLAIN, ALONE, Pipeline("1f1b", 1))
    work, kinds = checker.work(leaf), checker.prices.units.num_layers_of_kind
    two = step_bound_s(work, leaf.grid, leaf.pipeline, kinds)
    four = step_bound_s(work, leaf.grid._replace(pp=4, dp=1, num_microbatches=4), leaf.pipeline,
                        kinds)  # fmt: skip
    assert 2 * work.total_s / 2 < two
    assert 4 * work.total_s / 4 < four


def test_pipelines_of_one_kind_share_a_path() -> None:
    grid = Grid(1, 1, 2, 1, 1, 4)
    kinds = {
        name: path_kind(Leaf(grid, PLAIN, ALONE, Pipeline(name, vpp)))
        for name, vpp in (("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2),
                          ("dualpipev", 2), ("interleaved-1f1b", 2))
    }  # fmt: skip
    assert kinds["zb-v"] == kinds["dualpipev"]
    assert len(set(kinds.values())) == 6
    assert ranks_of_stages("zb-v", 2, 2) == ranks_of_stages("dualpipev", 2, 2)


def test_alike_states_have_one_row() -> None:
    checker = BoundChecker(problem(gpus=4), Constraints())
    grid = next(one for one in checker.space.valid if one.dp == 2 and one.pp == 2)
    cut = checker.space.valid_cuts(grid)[0]
    states = checker.space.valid_states(grid, cut)
    rows = state_rows(checker.prices, grid, cut, states)
    assert len(rows.index) == len(states)
    assert len(rows.first_bytes) == len(set(rows.index)) < len(states)
    plain = [row for row, one in zip(rows.index, states, strict=True) if one.zero == 0]
    orders = {one.rank_order for one in states if one.zero == 0}
    assert len(set(plain)) * len(orders) == len(plain)
