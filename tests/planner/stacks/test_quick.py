"""Of a pipeline whose ranks have several stages no layout that fits is faster than its bound."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from shardwright.planner.problem import ChoiceValue, Constraints
from shardwright.planner.stacks.bounds import state_rows
from shardwright.planner.stacks.choices import Leaf, StackChoices
from shardwright.planner.stacks.quick import quick_bounds_s
from tests.planner.conftest import tiny_model
from tests.planner.stacks.bound_checker import BoundChecker
from tests.planner.stacks.small import (
    draw_problem,
    every_leaf,
    every_recompute,
    pricer_of,
    problem,
    with_memory,
)

SEEDS = [seed for seed in range(1000, 1014) if draw_problem(seed) is not None]
SCHEDULES = ("interleaved-1f1b", "zb-v", "dualpipev")


def checker_of(schedule: str, usable_bytes: int = 2**40, num_layers: int = 30) -> BoundChecker:
    fixed: dict[str, ChoiceValue] = {
        "pp": 2, "vpp": 2, "schedule": schedule, "cp": 1, "micro_batch": 1, "sp": False,
    }  # fmt: skip
    made = problem(tiny_model(num_layers, hidden=64), gpus=2, global_batch=8, seq_len=64)
    return BoundChecker(with_memory(made, usable_bytes), Constraints(fixed=fixed))


def every_step(checker: BoundChecker, leaf: Leaf) -> dict[int, float]:
    """Peak bytes and seconds of all ways to split and to recompute, the fastest of each peak."""
    found: dict[int, float] = {}
    for starts in checker.prices.ways_to_split(leaf):
        for recompute in every_recompute(checker.space, leaf, starts):
            choices = StackChoices(*leaf, checker.space.loss_chunks[-1], starts, recompute)
            layout = choices.layout(checker.space.problem, checker.space.others)
            peak = max(one.total_bytes for one in checker.pricer.memory(layout))
            step_s = checker.pricer.step_time_s(layout)
            found[int(peak)] = min(step_s, found.get(int(peak), math.inf))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_is_no_step_of_what_fits_and_comes_near(schedule: str) -> None:
    """With ever less memory, ranks compute more again."""
    checker = checker_of(schedule, num_layers=8)
    leaf = next(one for one in every_leaf(checker.space) if one.state.offload == "none")
    steps = every_step(checker, leaf)
    peaks = sorted(steps)
    bounds = []
    for usable in np.linspace(peaks[0] * 0.98, peaks[-1] * 1.02, 12):
        tight = checker_of(schedule, int(usable), num_layers=8)
        fitting = [
            step_s for peak, step_s in steps.items()
            if peak <= pricer_of(tight.space.problem).most_live_bytes(
                tight.prices.frame(leaf.grid, leaf.cut, leaf.state)
            )
        ]  # fmt: skip
        bound_s = tight.quick_s(leaf)
        assert bound_s <= min(fitting, default=math.inf)
        if fitting:
            assert bound_s > 0.5 * min(fitting)
            bounds.append(bound_s)
    assert len(bounds) > 5
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 1.01 * bounds[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_of_random_problems_too(seed: int) -> None:
    drawn = draw_problem(seed)
    assert drawn is not None
    checker, draw = BoundChecker(*drawn), random.Random(seed)
    leaves = [one for one in every_leaf(checker.space) if one.pipeline.vpp > 1]
    for leaf in draw.sample(leaves, min(8, len(leaves))):
        for starts in itertools.islice(checker.prices.ways_to_split(leaf), 3):
            for recompute in itertools.islice(every_recompute(checker.space, leaf, starts), 12):
                choices = StackChoices(*leaf, checker.space.loss_chunks[-1], starts, recompute)
                assert checker.broken(choices) == []


def test_many_ways_have_no_bound() -> None:
    checker = checker_of("zb-v", num_layers=6)
    leaf = next(every_leaf(checker.space))
    rows = state_rows(checker.prices, leaf.grid, leaf.cut, [leaf.state])
    assert len(checker.prices.ways_to_split(leaf)) > 2
    assert quick_bounds_s(checker.prices, leaf, rows, checker.work(leaf)).tolist() == [0.0]


def test_no_room_is_too_big() -> None:
    checker = checker_of("interleaved-1f1b", usable_bytes=2**20)
    assert checker.quick_s(next(every_leaf(checker.space))) == math.inf


def test_states_are_bounded_at_once() -> None:
    checker = checker_of("zb-v", usable_bytes=2**31)
    leaf = next(every_leaf(checker.space))
    states = checker.space.valid_states(leaf.grid, leaf.cut)
    rows = state_rows(checker.prices, leaf.grid, leaf.cut, states)
    together = quick_bounds_s(checker.prices, leaf, rows, checker.work(leaf))
    alone = [checker.quick_s(leaf._replace(state=state)) for state in states]
    assert [float(together[row]) for row in rows.index] == pytest.approx(alone, rel=1e-12)
