"""Shares of a step and differences between two, added up by hand."""

from __future__ import annotations

import pytest

from shardwright.planner.explain.shares import (
    LIMITS,
    difference_in_words,
    largest_shares,
    runner_up_in_words,
    terms_that_differ,
    time_shares,
    what_limits,
)
from shardwright.specs import Breakdown, Candidate
from tests.cli import samples


def candidate(step_s: float, **parts: float) -> Candidate:
    breakdown = Breakdown.model_validate(parts)
    assert breakdown.total_s == pytest.approx(step_s)
    prediction = samples.prediction(step_s, breakdown=breakdown)
    return Candidate(layout=samples.layout(), prediction=prediction)


def test_every_field_of_the_breakdown_is_explained_once() -> None:
    named = [name for names in LIMITS.values() for name in names]
    assert sorted(named) == sorted(Breakdown.model_fields)


def test_shares_are_largest_first_and_sum_to_one() -> None:
    one = candidate(10.0, compute_forward=2.0, compute_backward=4.0, bubble=3.0, tp_comm=1.0)
    shares = time_shares(one.prediction.breakdown)
    assert shares == [("compute", 6.0, 0.6), ("bubble", 3.0, 0.3), ("tp traffic", 1.0, 0.1)]
    assert largest_shares(one.prediction.breakdown) == "compute 60%, bubble 30%"
    assert what_limits(one.prediction) == "compute 60%, bubble 30%"
    too_big = one.prediction.model_copy(update={"memory_verdict": "does_not_fit"})
    assert what_limits(too_big) == "memory"


def test_the_difference_names_the_terms_that_make_it() -> None:
    chosen = candidate(10.0, compute_forward=6.0, bubble=3.0, tp_comm=1.0)
    other = candidate(12.0, compute_forward=6.001, bubble=1.0, tp_comm=4.999)
    names, seconds = zip(*terms_that_differ(other, chosen), strict=True)
    assert names == ("tp traffic", "bubble")
    assert seconds == pytest.approx((3.999, -2.0))
    assert difference_in_words(other, chosen) == "20.00% slower: tp traffic +4 s, bubble -2 s"
    assert difference_in_words(chosen, chosen) == "equally fast"
    assert runner_up_in_words(other, chosen).endswith(
        ": 20.00% slower: tp traffic +4 s, bubble -2 s"
    )
