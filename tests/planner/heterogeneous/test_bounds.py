"""Bounds on pipelines of unequal stages are never above the step, and none is left out."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from shardwright.cost_models.pipeline.queued import queued_times
from shardwright.planner.heterogeneous.bounds import (
    Boundaries,
    Pipeline,
    continuous_bound_s,
    trips,
)

ROUNDING = 1 + 1e-9


def drawn(rng: random.Random) -> tuple[Pipeline, list[list[float]], int]:
    """A pipeline over two groups, with the seconds of each unit on each stage."""
    units, first, last = rng.randint(5, 7), rng.randint(1, 3), rng.randint(1, 2)
    m = rng.randint(1, 12)
    pp = first + last
    speeds = [1.0] * first + [rng.choice([1.0, 3.0])] * last
    work = [rng.uniform(0.1, 2) for _ in range(units)]
    seconds = [[one * speed for one in work] for speed in speeds]
    stage_s = []
    for own in seconds:
        sums = np.concatenate([[0.0], np.cumsum(own)])
        table = sums[None, :] - sums[:, None]
        stage_s.append(np.where(table > 0, table, np.inf))
    links = [rng.choice([0.0, 0.1]) for _ in range(pp - 1)]
    links[first - 1] = rng.choice([0.0, 0.5, 3.0])
    return Pipeline(stage_s, links, m, frozenset({first - 1})), seconds, first


def step_s(pipeline: Pipeline, seconds: list[list[float]], starts: tuple[int, ...]) -> float:
    edges = [0, *starts, len(seconds[0])]
    whole = [sum(own[a:b]) for own, (a, b) in zip(seconds, itertools.pairwise(edges), strict=True)]
    times = queued_times(
        [one / 3 for one in whole], [one * 2 / 3 for one in whole], pipeline.link_s,
        pipeline.num_micro_batches,
    )  # fmt: skip
    return max(times.end_s)


@pytest.mark.parametrize("seed", range(60))
def test_no_bound_is_above_the_step_and_all_boundaries_come_in_order(seed: int) -> None:
    pipeline, seconds, _ = drawn(random.Random(seed))
    pp, units = len(pipeline.stage_s), len(seconds[0])
    every = {
        starts: step_s(pipeline, seconds, starts)
        for starts in itertools.combinations(range(1, units), pp - 1)
    }
    boundaries = Boundaries(pipeline)
    listed = list(boundaries.in_order())
    bounds = [bound for bound, _ in listed]
    assert bounds == pytest.approx(sorted(bounds), rel=1e-12)
    whole = {starts: bound for bound, starts in listed if starts is not None}
    assert whole.keys() == every.keys()
    for starts, bound in whole.items():
        assert bound <= every[starts] * ROUNDING
    assert boundaries.least_s <= min(every.values()) * ROUNDING
    assert boundaries.least_s <= min(whole.values()) * ROUNDING


@pytest.mark.parametrize("seed", range(60))
def test_work_spread_at_will_is_below_every_step(seed: int) -> None:
    pipeline, seconds, first = drawn(random.Random(seed))
    pp, units, m = len(pipeline.stage_s), len(seconds[0]), pipeline.num_micro_batches
    steps = [
        step_s(pipeline, seconds, starts)
        for starts in itertools.combinations(range(1, units), pp - 1)
    ]
    sums = [np.concatenate([[0.0], np.cumsum(own)]) for own in (seconds[0], seconds[-1])]
    segments, stages = [sums[0], sums[1][-1] - sums[1]], [first, pp - first]
    link = pipeline.link_s[first - 1]
    assert continuous_bound_s(segments, stages, [link], m) <= min(steps) * ROUNDING


def test_a_slow_link_is_passed_to_and_fro_for_each_two_micro_batches() -> None:
    assert trips(2, 0, 10) == (5, 1)
    assert trips(8, 3, 128) == (62, 8)
    assert trips(8, 3, 3) == (1, 4)  # all forwards, then all backwards
    slow = Pipeline([np.array([[np.inf, 1.0, np.inf], [np.inf] * 3, [np.inf] * 3]),
                     np.array([[np.inf] * 3, [np.inf, np.inf, 1.0], [np.inf] * 3])],
                    [5.0], 10, frozenset({0}))  # fmt: skip
    exact_s = max(queued_times([1 / 3] * 2, [2 / 3] * 2, [5.0], 10).end_s)
    assert exact_s * 0.9 < Boundaries(slow).least_s <= exact_s


def test_what_is_not_allowed_has_no_boundaries() -> None:
    nothing = np.full((4, 4), np.inf)
    found = Boundaries(Pipeline([nothing, nothing], [0.0], 4))
    assert math.isinf(found.least_s)
    assert [one for one in found.in_order() if one[1] is not None] == []


def test_one_group_needs_its_work_over_its_stages() -> None:
    work = np.array([0.0, 3.0, 12.0])
    assert continuous_bound_s([work], [1], [], 5) == pytest.approx(60.0)
