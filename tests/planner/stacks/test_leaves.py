"""A leaf's solver gives layouts of that leaf, each once."""

from __future__ import annotations

import random

import pytest

from shardwright.planner.stacks.choices import Leaf
from tests.planner.stacks.bound_checker import BoundChecker
from tests.planner.stacks.small import draw_choices, draw_problem

SEEDS = [seed for seed in range(30) if draw_problem(seed) is not None]


def drawn_leaf(seed: int) -> tuple[BoundChecker, Leaf]:
    drawn = draw_problem(seed)
    assert drawn is not None
    checker = BoundChecker(*drawn)
    return checker, draw_choices(checker.space, random.Random(seed)).leaf


@pytest.mark.parametrize("seed", SEEDS)
def test_splits_are_layouts_of_the_leaf(seed: int) -> None:
    checker, leaf = drawn_leaf(seed)
    made, solver, seen = checker.space.problem, checker.solver(leaf), set()
    for _ in range(30):
        split = solver.next_split()
        if split is None:
            break
        choices = solver.choices(split)
        assert choices.leaf == leaf
        assert choices not in seen
        seen.add(choices)
        layout = choices.layout(made, checker.space.others)
        assert layout.violations(made.model, made.cluster, made.training) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_it_gives_fits_or_nearly(seed: int) -> None:
    """Books by stages are never above the exact ones; where they are below, a refused split is
    not given again."""
    checker, leaf = drawn_leaf(seed)
    made, solver, pricer = checker.space.problem, checker.solver(leaf), checker.pricer
    refused = set()
    for _ in range(20):
        split = solver.next_split()
        if split is None:
            break
        choices = solver.choices(split)
        assert choices not in refused
        memory = pricer.memory(choices.layout(made, checker.space.others))
        over = [i for i, rank in enumerate(memory) if pricer.verdict([rank]) != "fits"]
        if over:
            refused.add(choices)
            solver.refuse(split, over)


def test_nothing_is_given_at_or_above_the_limit() -> None:
    checker, leaf = drawn_leaf(SEEDS[0])
    solver = checker.solver(leaf)
    split = solver.next_split()
    assert split is not None
    assert checker.solver(leaf, limit_s=split.bound_s * 0.999).next_split() is None
