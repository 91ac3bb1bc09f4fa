"""Sets of replicas: every bound is below the step, and what is exact is the best of all."""

from __future__ import annotations

import math

import pytest

from shardwright.planner.heterogeneous.sets import (
    Books,
    Family,
    SetPricer,
    SetSearch,
    families,
    places,
    variants,
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


def test_families_differ_in_zero_and_recompute_alone() -> None:
    choices = SPACE.choices((0, 1))
    found = families(choices)
    assert sorted(one for family in found for one in family) == sorted(choices)
    assert len(found) < len(choices)
    for family in found:
        plain = {
            one._replace(zero=0, segments=tuple(s._replace(recompute="") for s in one.segments))
            for one in family
        }
        assert len(plain) == 1
    dp, alone = variants(Family(found[-1], 1)), {one.zero for one in found[-1]}
    assert set(dp[0]) == alone


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
        found = SetSearch(SPACE, made, groups, exchange_s)
        last = found.bounds_s[share]
        while not found.is_exact(share):
            found.refine(share, math.inf, never)
            assert last <= found.bounds_s[share] <= best_s * (1 + 1e-9)
            last = found.bounds_s[share]
        assert found.bounds_s[share] == pytest.approx(best_s, rel=1e-9)
        best = found.best(share)
        assert (best is None) == math.isinf(best_s)
        if best is not None:
            assert steps[best.chosen] == pytest.approx(best.step_s)


def test_a_first_look_prices_something_and_loses_nothing() -> None:
    found = SetSearch(SPACE, pricer(), (0, 1), 0.0)
    found.dive(4, 3, never)
    first = found.best(4)
    assert first is not None
    while not found.is_exact(4):
        found.refine(4, math.inf, never)
    best = found.best(4)
    assert best is not None
    assert best.step_s <= first.step_s
    exact = SetSearch(SPACE, pricer(), (0, 1), 0.0)
    while not exact.is_exact(4):
        exact.refine(4, math.inf, never)
    assert exact.bounds_s[4] == pytest.approx(best.step_s, rel=1e-9)


def test_without_time_nothing_is_claimed() -> None:
    found = SetSearch(SPACE, pricer(), (0, 1), 0.0)
    found.refine(4, math.inf, lambda: True)
    assert not found.is_exact(4)
    assert found.bounds_s[4] == 0.0
