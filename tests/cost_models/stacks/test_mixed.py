"""Layouts over unequal devices: each rank by its own devices, sets wait for the slowest alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwright.cost_models.pricing import stack_model
from shardwright.hardware_profiles.groups import group_profile
from shardwright.planner.heterogeneous.layouts import (
    ChosenSet,
    group_layout,
    mixed_layout,
    set_layout,
)
from shardwright.planner.heterogeneous.space import Segment, SetChoice
from shardwright.specs import InputError, Layout, ScheduleName
from shardwright.specs.meshes import replica_sets
from tests.planner.conftest import tiny_model
from tests.planner.heterogeneous.small import FAST, SLOW, joined, nodes, pricer_of, problem

LARGE = tiny_model(4, hidden=4096)
"""Large enough that devices limit it, not their hosts."""
MADE = problem(nodes(FAST), nodes(SLOW), model=LARGE, global_batch=12, seq_len=2048)


def alone(group: int, count: int, tp: int = 1, dp: int = 2) -> ChosenSet:
    """All devices of one group as replicas of one stage."""
    return ChosenSet(SetChoice((Segment(group, tp, 1, "none"),), dp, 1, 1, 0), (), count)


def across(count: int = 6, starts: tuple[int, ...] = (3,)) -> Layout:
    """A pipeline from the fast group to the slow one."""
    segments = (Segment(0, 1, 1, "none"), Segment(1, 1, 1, "none"))
    return set_layout(MADE, ChosenSet(SetChoice(segments, 2, 1, 1, 0), starts, count))


def by_sets(fast: int, slow: int) -> Layout:
    """Each group with replicas of its own, which run so many micro-batches."""
    return mixed_layout(MADE, [alone(0, fast), alone(1, slow)])


@pytest.mark.parametrize("choices", [{"dp": 2}, {"tp": 2, "sequence_parallel": True}])
def test_on_one_group_it_is_the_price_of_that_group(choices: dict[str, Any]) -> None:
    profile = group_profile(MADE.profile, 0)
    alone = replace(MADE, profile=profile)
    own = stack_model(alone.model, alone.training, profile, alone.software)
    plain = Layout.of(MADE.model, MADE.training, **choices)
    expected = own.predict(plain)
    found = pricer_of(MADE).predict(group_layout(MADE.cluster, 0, plain))
    assert found.step_time_s == pytest.approx(expected.step_time_s, rel=1e-9)
    assert found.memory == expected.memory
    assert found.mfu == pytest.approx(expected.mfu)


def test_more_layers_on_slow_devices_take_longer() -> None:
    pricer = pricer_of(MADE)
    steps = [pricer.predict(across(starts=(start,))).step_time_s for start in (5, 3, 1)]
    assert steps == sorted(steps)


def test_each_rank_has_the_memory_of_its_own_devices() -> None:
    found = pricer_of(MADE).predict(across())
    usable = [group.accelerator.usable_memory_bytes for group in MADE.cluster.groups]
    assert [found.capacity_of(rank) for rank in range(2)] == usable
    assert found.memory_capacity_bytes == usable[found.fullest_rank]


def test_a_rank_that_its_own_devices_cannot_hold_does_not_fit() -> None:
    tight = replace(MADE, profile=joined(nodes(FAST), nodes(SLOW, usable_bytes=100_000_000)))
    verdicts = [pricer_of(one).predict(across()).memory_verdict for one in (MADE, tight)]
    assert verdicts == ["fits", "does_not_fit"]


def test_all_sets_wait_for_the_slowest() -> None:
    pricer = pricer_of(MADE)
    even, uneven = pricer.predict(by_sets(3, 3)), pricer.predict(by_sets(5, 1))
    assert uneven.step_time_s < even.step_time_s
    exchange_s = pricer.exchange_s(by_sets(3, 3))
    parts = [pricer.predict(part).step_time_s for part in replica_sets(by_sets(3, 3))]
    assert max(parts) <= even.step_time_s <= max(parts) + exchange_s


def test_a_slower_line_makes_it_slower() -> None:
    slow = replace(MADE, profile=joined(nodes(FAST), nodes(SLOW), total=1e8))
    for layout in (across(), by_sets(3, 3)):
        assert pricer_of(slow).predict(layout).step_time_s > (
            pricer_of(MADE).predict(layout).step_time_s
        )


@pytest.mark.parametrize("layout", [across(), by_sets(4, 2)])
def test_every_rank_spends_the_whole_step(layout: Layout) -> None:
    pricer = pricer_of(MADE)
    step_s = pricer.predict(layout).step_time_s
    found = pricer.rank_breakdowns(layout)
    assert len(found) == 2
    assert [one.total_s for one in found] == pytest.approx([step_s, step_s], rel=1e-9)
    assert found[0] != found[1]


def test_other_schedules_are_refused() -> None:
    other = across().model_copy(update={"schedule": ScheduleName.GPIPE})
    with pytest.raises(InputError, match="cannot be priced over several node groups"):
        pricer_of(MADE).predict(other)


def test_devices_without_a_rate_are_refused_when_they_are_used() -> None:
    training = MADE.training.model_copy(update={"precision": "fp8-tensor"})
    profile = joined(nodes("dgx-h100"), nodes(SLOW))
    pricer = pricer_of(replace(MADE, training=training, profile=profile))
    assert pricer.has_rates(0)
    assert not pricer.has_rates(1)
    with pytest.raises(InputError):
        pricer.on_group(1)


def test_prices_of_groups_can_be_exchanged() -> None:
    pricer = pricer_of(MADE)
    swapped = pricer.with_groups(lambda _: pricer.on_group(0))
    assert swapped.predict(across()).step_time_s < pricer.predict(across()).step_time_s
    assert pricer.on_group(1) is not swapped.on_group(1)
