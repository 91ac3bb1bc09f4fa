"""Ranks with several stages: every way of few, the balanced and the even of many."""

from __future__ import annotations

import itertools

import pytest

from shardwright.cost_models.pipeline.orders import ranks_of_stages
from shardwright.planner.problem import ChoiceValue, Constraints
from shardwright.planner.stacks.choices import Leaf
from shardwright.planner.stacks.splits import even_split, num_ways
from tests.planner.conftest import tiny_model
from tests.planner.stacks.bound_checker import BoundChecker
from tests.planner.stacks.small import every_leaf, problem

PLAIN: dict[str, ChoiceValue] = {
    "offload": "none",
    "zero": 0,
    "cp": 1,
    "micro_batch": 1,
    "sp": False,
}


def checker_of(num_layers: int, schedule: str) -> BoundChecker:
    made = problem(tiny_model(num_layers, hidden=64), gpus=2, global_batch=4, seq_len=64)
    return BoundChecker(made, Constraints(fixed={**PLAIN, "pp": 2, "schedule": schedule, "vpp": 2}))


def leaf_of(checker: BoundChecker) -> Leaf:
    return next(every_leaf(checker.space))


def starts_of(checker: BoundChecker) -> list[tuple[int, ...]]:
    solver, found = checker.solver(leaf_of(checker)), []
    while (split := solver.next_split()) is not None:
        found.append(split)
    assert [one.bound_s for one in found] == sorted(one.bound_s for one in found)
    return [one.starts for one in found]


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zb-v", "dualpipev"])
def test_of_few_ways_all_are_looked_at(schedule: str) -> None:
    checker = checker_of(4, schedule)
    assert num_ways(6, 4) == 10
    assert sorted(starts_of(checker)) == list(itertools.combinations(range(1, 6), 3))


def test_of_many_the_balanced_and_the_even() -> None:
    checker = checker_of(30, "zb-v")
    found = starts_of(checker)
    assert even_split(32, 4) in found
    assert 1 <= len(found) <= 2


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zb-v", "dualpipev"])
def test_a_rank_recomputes_alike(schedule: str) -> None:
    checker = checker_of(4, schedule)
    leaf = leaf_of(checker)
    split = checker.solver(leaf).next_split()
    assert split is not None
    ranks = ranks_of_stages(schedule, 2, 2)
    by_rank: dict[int, set[str]] = {}
    for rank, option in zip(ranks, split.options, strict=True):
        by_rank.setdefault(rank, set()).add(option.recompute)
    assert all(len(policies) == 1 for policies in by_rank.values())


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zb-v", "dualpipev"])
def test_its_bounds_are_below_the_simulated_step(schedule: str) -> None:
    checker = checker_of(30, schedule)
    leaf = leaf_of(checker)
    solver = checker.solver(leaf)
    split = solver.next_split()
    assert split is not None
    layout = solver.choices(split).layout(checker.space.problem, checker.space.others)
    step_s = checker.pricer.step_time_s(layout)
    assert 0.8 * step_s < split.bound_s <= step_s
