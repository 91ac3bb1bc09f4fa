"""Ways to split come in the order of their bounds, and none is lost."""

from __future__ import annotations

import math

import pytest

from shardwright.planner.problem import ChoiceValue, Constraints
from shardwright.planner.stacks.choices import Leaf
from shardwright.planner.stacks.partition import Split
from tests.planner.stacks.bound_checker import BoundChecker
from tests.planner.stacks.small import draw_problem, every_leaf

SEEDS = [seed for seed in range(60) if draw_problem(seed) is not None]


def splits_of(checker: BoundChecker, leaf: Leaf) -> list[Split]:
    solver, found = checker.solver(leaf), []
    while (split := solver.next_split()) is not None:
        found.append(split)
    return found


def one_stage_leaves(checker: BoundChecker) -> list[Leaf]:
    leaves = [leaf for leaf in every_leaf(checker.space) if leaf.pipeline.vpp == 1]
    return [leaf for leaf in leaves[:: max(1, len(leaves) // 6)] if leaf.grid.pp > 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_they_come_in_the_order_of_their_bounds_below_the_simulated_step(seed: int) -> None:
    drawn = draw_problem(seed)
    assert drawn is not None
    checker = BoundChecker(*drawn)
    made, pricer = drawn[0], checker.pricer
    for leaf in one_stage_leaves(checker):
        found = splits_of(checker, leaf)
        bounds_s = [one.bound_s for one in found]
        assert bounds_s == sorted(bounds_s)
        assert len({(one.starts, one.options) for one in found}) == len(found)
        for split in found[:10]:
            layout = checker.solver(leaf).choices(split).layout(made, checker.space.others)
            assert split.bound_s <= pricer.step_time_s(layout)


def test_all_ways_are_there_where_everything_fits() -> None:
    drawn = next(one for one in map(draw_problem, SEEDS) if one is not None and one[0].world == 4)
    made, constraints = drawn
    checker = BoundChecker(made, Constraints(fixed={**constraints.fixed, "pp": 2}))
    leaf = next(
        one for one in every_leaf(checker.space) if one.pipeline.schedule == "1f1b"
    )  # fmt: skip
    assert len({one.starts for one in splits_of(checker, leaf)}) <= math.comb(made.num_units - 1, 1)


def test_fixed_boundaries_are_the_only_ones() -> None:
    drawn = next(one for one in map(draw_problem, SEEDS) if one is not None and one[0].world == 4)
    layers = drawn[0].num_layers
    fixed: dict[str, ChoiceValue] = {
        "pp": 2,
        "stages": f"0-1/1-{layers}",
        "offload": "none",
        "zero": 0,
    }
    checker = BoundChecker(drawn[0], Constraints(fixed=fixed))
    for leaf in one_stage_leaves(checker):
        assert {one.starts for one in splits_of(checker, leaf)} <= {(2,)}
