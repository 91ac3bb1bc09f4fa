from __future__ import annotations

import math
from typing import Any

import pytest

from shardwright.planner.validation.results import RowResult
from shardwright.planner.validation.scores import (
    Errors,
    memory_errors,
    noise_floor,
    oom_scores,
    problem_scores,
    score,
    step_scores,
)


def result(id: str = "a", **changes: Any) -> RowResult:
    known: dict[str, Any] = {
        "id": id, "stack": "s", "accelerator": "x", "problem": "p", "configuration": id,
        "is_full": True, "measured_step_time_s": 2.0, "measured_peak_memory_bytes": None,
        "memory_kind": "device", "measured_oom": False, "is_fragmentation": False,
        "capacity_bytes": 100, "predicted_step_time_s": 2.0, "band_s": (1.0, 3.0),
        "predicted_oom": False, "is_at_risk": False,
    }  # fmt: skip
    return RowResult(**known | changes)


def timed(id: str, measured: float, predicted: float | None, **changes: Any) -> RowResult:
    skipped = "why" if predicted is None else None
    return result(
        id, measured_step_time_s=measured, predicted_step_time_s=predicted, skipped=skipped,
        **changes,
    )  # fmt: skip


class TestErrors:
    def test_figures(self) -> None:
        errors = Errors.of([0.5, 1.0, 1.1, 2.0])
        assert errors.count == 4
        assert errors.mape == pytest.approx((0.5 + 0 + 0.1 + 1) / 4)
        assert errors.median == pytest.approx(0.3)
        assert errors.p90 == pytest.approx(0.5 + 0.7 * 0.5)
        assert errors.bias == pytest.approx(math.sqrt(1.1) - 1)

    def test_of_nothing(self) -> None:
        assert Errors.of([]) == Errors(0, None, None, None, None)
        assert Errors.with_skips([], 0) == Errors(0, None, None, None, None)

    def test_skipped_rows_count_as_wholly_wrong(self) -> None:
        errors = Errors.with_skips([1.1], 1)
        assert errors.count == 2
        assert errors.mape == pytest.approx(0.55)
        assert errors.bias == pytest.approx(0.1)
        assert Errors.with_skips([], 2).median == 1.0


class TestStep:
    def test_rows_that_failed_have_no_time(self) -> None:
        found = step_scores([timed("a", 2, 1), timed("b", 2, 99, measured_oom=True)])
        assert (found.errors.count, found.errors.mape, found.num_full) == (1, 0.5, 1)

    def test_skipped_rows_with_a_full_configuration_are_told_apart(self) -> None:
        rows = [timed("a", 2, 2), timed("b", 2, None), timed("c", 2, None, is_full=False)]
        found = step_scores(rows)
        assert (found.num_rows, found.num_skipped) == (3, 2)
        assert (found.num_full, found.num_full_skipped) == (2, 1)
        assert (found.errors.mape, found.strict.mape) == (0.0, 0.5)

    def test_how_many_lie_inside_their_band(self) -> None:
        rows = [timed(str(t), t, 2.0) for t in (0.5, 1.0, 3.0, 3.5)]
        assert step_scores(rows).band_coverage == 0.5


class TestNoise:
    def test_spread_among_repeats(self) -> None:
        rows = [
            timed("a", 1.0, 1, configuration="c"),
            timed("b", 1.1, 1, configuration="c"),
            timed("c", 1.21, 1, configuration="c"),
            timed("d", 5.0, 1),
        ]
        assert noise_floor(rows) == pytest.approx(math.log(1.1))

    def test_without_repeats_there_is_none(self) -> None:
        assert noise_floor([timed("a", 1, 1), timed("b", 2, 1)]) is None
        assert noise_floor([timed("a", 1, 1, configuration=None)] * 2) is not None


class TestProblems:
    def test_regret_and_order(self) -> None:
        rows = [timed("a", 1.0, 3.0), timed("b", 1.2, 1.0), timed("c", 2.0, 4.0)]
        (found,) = problem_scores(rows)
        assert (found.best_id, found.picked_id, found.num_layouts) == ("a", "b", 3)
        assert found.regret == pytest.approx(0.2)
        assert (found.num_pairs, found.num_right) == (3, 2)
        assert found.pairwise_accuracy == pytest.approx(2 / 3)

    def test_small_differences_are_no_order(self) -> None:
        (found,) = problem_scores([timed("a", 1.0, 3.0), timed("b", 1.04, 1.0)])
        assert (found.num_pairs, found.pairwise_accuracy) == (0, None)

    def test_equal_predictions_order_nothing_and_ids_break_ties(self) -> None:
        (found,) = problem_scores([timed("b", 1.0, 1.0), timed("a", 2.0, 1.0)])
        assert (found.picked_id, found.regret, found.num_right) == ("a", 1.0, 0)

    def test_a_skipped_layout_may_be_the_best_but_not_be_picked(self) -> None:
        (found,) = problem_scores([timed("a", 1.0, None), timed("b", 2.0, 1.0)])
        assert (found.best_id, found.picked_id, found.regret) == ("a", "b", 1.0)
        (none,) = problem_scores([timed("a", 1.0, None)])
        assert (none.picked_id, none.regret) == (None, None)

    def test_repeats_are_counted(self) -> None:
        rows = [timed(i, t, 1.0, configuration="same") for i, t in (("a", 1.0), ("b", 2.0))]
        assert problem_scores(rows)[0].num_repeats == 1

    def test_rows_without_a_problem_or_a_time_are_in_none(self) -> None:
        rows = [
            timed("a", 1, 1, problem=None),
            timed("b", 1, 1, measured_oom=True),
            result("c", measured_step_time_s=None),
        ]
        assert problem_scores(rows) == ()


def test_memory_by_kind() -> None:
    rows = [
        result("a", measured_peak_memory_bytes=10, predicted_peak_memory_bytes=9),
        result(
            "b", measured_peak_memory_bytes=10, predicted_peak_memory_bytes=12,
            memory_kind="reserved",
        ),
        result("c", measured_peak_memory_bytes=10),
    ]  # fmt: skip
    found = memory_errors(rows)
    assert {kind: errors.mape for kind, errors in found.items()} == {
        "device": pytest.approx(0.1), "reserved": pytest.approx(0.2),
    }  # fmt: skip


def test_verdicts() -> None:
    rows = [
        result("a", measured_oom=True, predicted_oom=True),
        result("b", measured_oom=True, predicted_oom=False),
        result("c", measured_oom=True, is_fragmentation=True, is_at_risk=True),
        result("d", measured_oom=True, is_fragmentation=True, is_at_risk=False),
        result("e", measured_peak_memory_bytes=80, predicted_oom=True),
        result("f", measured_peak_memory_bytes=95, predicted_oom=False),
        result("g", measured_peak_memory_bytes=79, predicted_oom=True),
        result("h", measured_oom=True, predicted_oom=None),
    ]
    found = oom_scores(rows)
    assert (found.oom_refused, found.oom_accepted) == (1, 1)
    assert (found.ran_refused, found.ran_accepted) == (2, 1)
    assert (found.fragmentation_at_risk, found.fragmentation_missed) == (1, 1)
    assert (found.near_capacity, found.near_capacity_refused_fraction) == (2, 0.5)


def test_a_whole_file() -> None:
    rows = [
        timed("a", 1.0, 1.0),
        timed("b", 2.0, 1.5, problem="q"),
        timed("c", 1.0, None, stack=None, accelerator=None, problem=None),
        result("d", measured_step_time_s=None, predicted_step_time_s=None, skipped="a kernel"),
    ]
    found = score(rows)
    assert found.step.num_rows == 4
    assert list(found.groups) == [("not stated", "not stated"), ("s", "x")]
    assert found.by_stack["s"].num_rows == 2
    assert found.skips == {"why": 1, "a kernel": 1}
    assert found.regrets == []
    assert found.pairwise_accuracy is None
