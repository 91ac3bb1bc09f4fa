"""A summary compares what was measured, after the warm-up, with what the plan predicted."""

from __future__ import annotations

from shardwright.runtime.metrics import StepRecord
from shardwright.runtime.summary import WARM_UP_STEPS, RankMemory, RunSummary, summarize
from tests.runtime.plans import plan_of

MEMORY = RankMemory(
    rank=0, pp_rank=0, predicted_peak_bytes=3 << 20, predicted_tensor_bytes=2 << 20,
    live_tensor_bytes=1 << 20, allocator_peak_bytes=None, resident_growth_bytes=5 << 20,
)  # fmt: skip


def _summary(step_times_s: list[float]) -> RunSummary:
    records = [
        StepRecord(step, 6.0 - step / 10, 1.0, 1e-3, time_s, 128 / time_s)
        for step, time_s in enumerate(step_times_s, start=1)
    ]
    return summarize(
        plan_of(tp=2), records, [MEMORY], first_step=1, stopped_early=False, checkpoint="run/step",
        metrics=None,
    )  # fmt: skip


def test_warm_up_is_not_timed() -> None:
    summary = _summary([9.0] * WARM_UP_STEPS + [0.5, 0.25, 0.4])
    assert summary.measured_step_time_s == 0.4
    assert summary.num_timed_steps == 3
    assert summary.tokens_per_s == 128 / 0.4


def test_text_names_prediction_measurement_and_their_difference() -> None:
    text = _summary([9.0] * WARM_UP_STEPS + [0.8]).as_text()
    assert "predicted 1 s (500 ms to 2 s), measured 800 ms (median of 1)" in text
    assert "prediction off by +25.0%" in text
    assert "loss 5.9000 -> 5.6000" in text
    assert "tp 2, pp 1, dp 1, zero 0, 8 micro-batches of 1" in text
    assert "2.0 MiB" in text
    assert "+100.0%" in text
    assert "checkpoint: run/step" in text


def test_short_runs_are_not_measured() -> None:
    summary = _summary([9.0] * WARM_UP_STEPS)
    assert summary.measured_step_time_s is None
    assert "too few steps to measure" in summary.as_text()


def test_summary_round_trips() -> None:
    summary = _summary([1.0] * 5)
    assert RunSummary.from_json(summary.to_json()) == summary
