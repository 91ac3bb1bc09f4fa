"""The figures of the benchmark, from an answer whose figures are known."""

from __future__ import annotations

from typing import Any

from benchmarks import trial
from tests.planner.trials import made


def _row(layout: str, predicted: float, corrected: float, measured: float) -> dict[str, Any]:
    return {
        "layout": layout, "predicted_step_time_s": predicted, "corrected_step_time_s": corrected,
        "left_out_step_time_s": corrected, "measured_step_time_s": measured,
        "ratio": measured, "verdict": "fastest" if measured == 1.0 else "slower",
    }  # fmt: skip


ANSWER = {
    "layouts": [
        _row("tp=2,dp=2,micro_batch=2", 1.0, 1.0, 1.0),
        _row("pp=4,micro_batch=2,stages=0-1/1-2/2-3/3-4", 2.0, 1.2, 1.5),
        _row("tp=4,micro_batch=2", 1.5, 2.0, 2.0),
    ],
    "rounds": 3,
    "failed": [{"layout": "dp=4,micro_batch=2", "reason": "out of memory"}],
    "correction": {
        "median_error": {"before": 0.25, "after": 0.0, "left_out": 0.1},
        "parameters": [{"name": "correction.compute_ratio", "before": 1.0, "after": 1.5}],
    },
}


def test_what_crosses_nodes_is_told() -> None:
    problem = made.problem()
    assert trial.keeps_tp_inside("tp=2,dp=2,micro_batch=2", problem)
    assert not trial.keeps_tp_inside("tp=4,micro_batch=2", problem)


def test_the_report_counts_pairs_and_names_the_pick() -> None:
    text = "\n".join(trial.report(ANSWER, made.problem(), "tp=4,micro_batch=2"))
    assert "Order, predicted, all (3): of 3 pairs more than 10% apart 2 are right (67%)" in text
    assert "Order, corrected, all (3): of 3 pairs more than 10% apart 3 are right (100%)" in text
    assert "Order, predicted, those that keep tp inside a node (2): of 1 pairs" in text
    assert "Median error 25.0%; 0.0% after correction" in text
    assert "The plan: 2.000 of it (slower). Best predicted of these: 1.000 (fastest)." in text
    assert "Not timed: dp=4,micro_batch=2: out of memory" in text
