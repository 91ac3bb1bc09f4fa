"""Costs, limits, the front and slopes of outcomes whose numbers are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shardwright.cost_models.money import Terms
from shardwright.planner.what_if.axes import axes_of
from shardwright.planner.what_if.points import Outcome
from shardwright.planner.what_if.rows import Limits, Row, front, median_slopes, row_of, slopes
from tests.planner.what_if.small import infeasible, planned

SURE = Terms(device_mtbf_s=math.inf, checkpoint_s=0)


def row(outcome: Outcome, *, tokens: str | None = "1M", limits: Limits | None = None) -> Row:
    return row_of({}, outcome, tokens, SURE, limits or Limits())


def test_a_run_is_steps_times_their_time() -> None:
    found = row(planned(2.0, 8, usd_per_gpu_hour=3.0, power_watts=1000))
    assert found.cost is not None
    assert found.cost.num_steps == 1000
    assert found.cost.time_s == 2000
    assert found.cost.gpu_hours == pytest.approx(8 * 2000 / 3600)
    assert found.cost.cost_usd == pytest.approx(8 * 2000 / 3600 * 3)
    assert found.cost.cost_usd_range == pytest.approx((8 * 2000 / 2400, 8 * 2000 / 600))
    assert found.cost.energy_joules == 2e6


def test_without_a_budget_or_a_plan_nothing_is_reckoned() -> None:
    assert row(planned(), tokens=None).cost is None
    assert row(infeasible()).cost is None


@pytest.mark.parametrize(
    ("limits", "meets"),
    [
        (Limits(), None),
        (Limits(deadline_s=1000), True),
        (Limits(deadline_s=999), False),
        (Limits(budget_usd=5), True),
        (Limits(budget_usd=4), False),
        (Limits(deadline_s=999, budget_usd=5), False),
    ],
)
def test_limits_are_kept_or_not(limits: Limits, meets: bool | None) -> None:
    assert row(planned(), limits=limits).meets is meets  # 1000 s, 4.44 USD


def test_neither_a_cost_that_nobody_knows_nor_no_plan_keeps_a_budget() -> None:
    limits = Limits(budget_usd=1e9)
    assert row(planned(usd_per_gpu_hour=None), limits=limits).meets is False
    assert row(infeasible(), limits=limits).meets is False


def test_the_front_is_what_no_other_beats_in_time_and_cost() -> None:
    outcomes = [planned(4, 8), planned(2, 16), planned(2, 17), planned(1.5, 24), infeasible()]
    times = [(one.cost.time_s, one.cost.cost_usd) for one in map(row, outcomes[:4]) if one.cost]
    expected = [
        not any(
            other != mine and other[0] <= mine[0] and (other[1] or 0) <= (mine[1] or 0)
            for other in times
        )
        for mine in times
    ]
    assert front([row(one) for one in outcomes]) == [*expected, False]
    assert True in expected
    assert False in expected


def test_equal_points_are_on_the_front_together() -> None:
    assert front([row(planned()), row(planned())]) == [True, True]


def test_models_do_not_beat_one_another() -> None:
    assert front([row(planned(1, model="small")), row(planned(9, model="large"))]) == [True, True]


def test_without_prices_gpu_hours_decide_and_without_tokens_devices() -> None:
    slow, fast = planned(2, 8, usd_per_gpu_hour=None), planned(1, 15, usd_per_gpu_hour=None)
    assert front([row(slow), row(fast)]) == [False, True]
    assert front([row(slow, tokens=None), row(fast, tokens=None)]) == [True, True]


def test_slopes_are_of_logarithms_between_neighbours() -> None:
    axes = axes_of(["gpus=8,32,16", "precision=bf16,fp8"])
    seconds = {"8": 8.0, "16": 4.0, "32": 4.0}
    rows = [
        replace(row(planned(seconds[gpus])), varied={"gpus": gpus, "precision": precision})
        for gpus in axes[0].values
        for precision in axes[1].values
    ]
    found = slopes(axes, rows)
    assert [(one.low, one.high, one.others["precision"]) for one in found] == [
        ("8", "16", "bf16"), ("16", "32", "bf16"), ("8", "16", "fp8"), ("16", "32", "fp8"),
    ]  # fmt: skip
    assert [one.elasticity for one in found] == pytest.approx([-1, 0, -1, 0])
    assert [one.pace_elasticity for one in found] == pytest.approx([1, 0, 1, 0])
    assert median_slopes(found) == {"gpus": pytest.approx((-1, -0.5, 0))}


def test_slopes_pass_over_points_without_a_plan() -> None:
    axes = axes_of(["gpus=8,16,32"])
    outcomes = [planned(8), infeasible(), planned(2)]
    rows = [
        replace(row(one), varied={"gpus": gpus})
        for one, gpus in zip(outcomes, axes[0].values, strict=True)
    ]
    (slope,) = slopes(axes, rows)
    assert (slope.low, slope.high) == ("8", "32")
    assert slope.elasticity == pytest.approx(-1)
