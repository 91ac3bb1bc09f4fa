"""Breakdowns and measured terms line up."""

from __future__ import annotations

import pytest

from shardwright.planner.trials.terms import (
    IN_WORDS,
    OF_A_BREAKDOWN,
    Timed,
    busiest,
    predicted_terms,
)
from shardwright.specs import Breakdown
from tests.runtime.plans import plan_of


def test_every_field_of_a_breakdown_is_in_one_term() -> None:
    fields = [field for fields in OF_A_BREAKDOWN.values() for field in fields]
    assert sorted(fields) == sorted(Breakdown.model_fields)
    assert IN_WORDS.keys() == OF_A_BREAKDOWN.keys()


def test_terms_sum_to_the_step() -> None:
    breakdown = Breakdown(**{name: 0.1 * (i + 1) for i, name in enumerate(Breakdown.model_fields)})
    assert sum(predicted_terms(breakdown).values()) == pytest.approx(breakdown.total_s)


def test_a_stage_is_the_mean_of_its_ranks_and_the_busiest_waits_least() -> None:
    layout = plan_of(tp=2, pp=2, micro_batch=2).layout
    rows = tuple({"waiting": seconds} for seconds in (1.0, 3.0, 0.5, 0.7))
    timed = Timed(layout, 4.0, rows)
    assert timed.of_stage(0)["waiting"] == pytest.approx(2.0)
    assert timed.of_stage(1)["waiting"] == pytest.approx(0.6)
    assert timed.of_stage(1)["tp_comm"] == 0.0
    assert busiest([timed.of_stage(rank) for rank in range(2)]) == 1
