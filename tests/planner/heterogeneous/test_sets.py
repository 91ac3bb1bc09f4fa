"""Sets of replicas: every bound is below the step, and what is exact is the best of all."""

from __future__ import annotations

import math

import pytest

from shardwright.planner.heterogeneous.layouts import set_layout
from shardwright.planner.heterogeneous.sets import (
    Books,
    SetPricer,
    SetSearch,
    places,
)
from shardwright.planner.heterogeneous.space import MixedSpace, Segment, SetChoice
from shardwright.planner.problem import Constraints
from tests.planner.heterogeneous.small import (
    FAST,
    SLOW,
    every_set,
    nodes,
    pricer_of,
    problem,
)

MADE = problem(nodes(FAST), nodes(SLOW, usable_bytes=4_500_000_000), global_batch=4)
SPACE = MixedSpace(MADE, Constraints(fixed={"micro_batch": 1}))


def never() -> bool:
    return False


def pricer() -> SetPricer:
    return SetPricer(MADE, pricer_of(MADE), Books())


@pytest.mark.parametrize("groups", [(0,), (1,), (0, 1), (1, 0)])
def test_work_alone_is_below_every_stage_that_is_busiest(groups: tuple[int, ...]) -> None:
    made, mixed = pricer(), pricer_of(MADE)
    for chosen in every_set(SPACE, groups, 4):
        stages = mixed.stages_of(set_layout(MADE, chosen))
        most_s = max(one.forward_s + one.backward_input_s + one.backward_weight_s for one in stages)
        assert made.work_s(chosen.choice) <= most_s


def test_a_segment_keeps_the_micro_batches_of_the_stages_after_it() -> None:
    choice = SetChoice((Segment(0, 1, 2, "none"), Segment(1, 1, 1, "none")), 1, 1, 1, 0)
    first, last = places(choice, 8)
    assert (first.stages, first.flights, first.is_first, first.is_last) == (2, 2, True, False)
    assert (last.stages, last.flights, last.is_first, last.is_last) == (1, 1, False, True)
    assert places(choice, 1)[0].flights == 1


@pytest.mark.parametrize("exchange_s", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize("groups", [(0,), (1,), (0, 1), (1, 0)])
def test_bounds_only_rise_to_the_best_step(groups: tuple[int, ...], exchange_s: float) -> None:
    made = pricer()
    for share in (1, 2, 4):
        steps = {
            chosen: made.step_s(chosen, exchange_s) for chosen in every_set(SPACE, groups, share)
        }
        best_s = min((one for one in steps.values() if one is not None), default=math.inf)
        found = SetSearch(SPACE, made, groups, exchange_s, never)
        last = found.bounds_s[share]
        while not found.is_exact(share):
            found.refine(share, math.inf)
            assert last <= found.bounds_s[share] <= best_s * (1 + 1e-9)
            last = found.bounds_s[share]
        assert found.bounds_s[share] == pytest.approx(best_s, rel=1e-9)
        best = found.best(share)
        assert (best is None) == math.isinf(best_s)
        if best is not None:
            assert steps[best.chosen] == pytest.approx(best.step_s)


def test_a_first_look_prices_something_and_loses_nothing() -> None:
    found = SetSearch(SPACE, pricer(), (0, 1), 0.0, never)
    found.dive(4, 3)
    first = found.best(4)
    assert first is not None
    assert found.bounds_s[4] == found._columns[4].bound_s
    while not found.is_exact(4):
        found.refine(4, math.inf)
    best = found.best(4)
    assert best is not None
    assert best.step_s <= first.step_s
    exact = SetSearch(SPACE, pricer(), (0, 1), 0.0, never)
    while not exact.is_exact(4):
        exact.refine(4, math.inf)
    assert exact.bounds_s[4] == pytest.approx(best.step_s, rel=1e-9)


def test_without_time_nothing_is_claimed() -> None:
    found = SetSearch(SPACE, pricer(), (0, 1), 0.0, lambda: True)
    found.refine(4, math.inf)
    assert not found.is_exact(4)
    assert found.bounds_s[4] == 0.0
