"""The plans that a profile chooses from, and how a rank is given one."""

from __future__ import annotations

import json

import pytest

from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.specs import InputError

PLANS = {
    "cpu": MeasurePlan.full("cpu"),
    "cuda": MeasurePlan.full("cuda"),
    "quick": MeasurePlan.quick(),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_rank_reads_the_plan_that_was_written(plan: MeasurePlan) -> None:
    assert MeasurePlan.from_json(plan.to_json(), source="a test") == plan


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_sizes_ascend_as_the_points_of_a_curve_do(plan: MeasurePlan) -> None:
    for sizes in (plan.head_dims, plan.sequences, plan.elementwise_bytes, plan.collective_bytes):
        assert list(sizes) == sorted(set(sizes))
    assert plan.smallest_extent < plan.largest_extent
    assert plan.elementwise_bytes[0] >= plan.hidden * 4  # at least a row


def test_an_accelerator_is_measured_up_to_larger_sizes() -> None:
    cpu, cuda = PLANS["cpu"], PLANS["cuda"]
    assert cuda.largest_extent > cpu.largest_extent
    assert cuda.elementwise_bytes[-1] > cpu.elementwise_bytes[-1]
    assert cuda.collective_bytes[-1] > cpu.collective_bytes[-1]
    assert cuda.budget_s == cpu.budget_s


def test_a_quick_plan_is_a_small_part_of_the_full_one() -> None:
    quick, full = PLANS["quick"], PLANS["cpu"]
    assert quick.budget_s < full.budget_s / 10
    assert set(quick.dtypes) < set(full.dtypes)
    assert set(quick.sequences) < set(full.sequences)
    assert set(quick.collective_bytes) <= {*full.collective_bytes, 2**16, 2**20}
    assert quick.operations == full.operations


@pytest.mark.parametrize(
    "change", [{"budget_s": 0}, {"dtypes": ["int7"]}, {"min_samples": 0}, {"sizes": [1]}], ids=str
)
def test_a_plan_that_cannot_be_measured_is_refused(change: dict[str, object]) -> None:
    text = json.dumps(json.loads(PLANS["quick"].to_json()) | change)
    with pytest.raises(InputError, match=r"(?s)the sender.*" + next(iter(change))):
        MeasurePlan.from_json(text, source="the sender")
