"""Seconds of steps from rates of every kind."""

from __future__ import annotations

import pytest

from shardwright.planner.calibration.logs.reading import LoggedStep, LogKind, LogReading
from shardwright.planner.calibration.logs.times import Size, timed_steps
from shardwright.specs import InputError

SIZE = Size(global_batch=64, seq_len=100, world=8, num_microbatches=4)


def log(*steps: LoggedStep, kind: LogKind = "deepspeed", **more: object) -> LogReading:
    return LogReading("x.log", kind, steps, **more)  # type: ignore[arg-type]


def times(reading: LogReading, size: Size = SIZE) -> list[float]:
    return [step.time_s or 0.0 for step in timed_steps(reading, size).steps]


def test_printed_times_win() -> None:
    both = LoggedStep(iteration=1, time_s=2.0, samples_per_s=1.0)
    assert times(log(both), Size()) == [2.0]


def test_rates() -> None:
    assert times(log(LoggedStep(samples_per_s=32.0))) == [2.0]
    assert times(log(LoggedStep(tokens_per_s=3200.0))) == [2.0]
    assert times(log(LoggedStep(tokens_per_s_per_gpu=400.0))) == [2.0]


def test_means_since_the_begin_become_times_between_lines() -> None:
    slow_first = [10.0, 2.0, 2.0, 2.0]
    steps = [
        LoggedStep(iteration=n, mean_time_s=sum(slow_first[:n]) / n) for n in range(1, 5)
    ]  # fmt: skip
    assert times(log(*steps)) == pytest.approx(slow_first)
    again = times(log(*steps, *steps[:2]))
    assert again == pytest.approx([*slow_first, 10.0, 2.0])


def test_mean_samples_count_from_the_second_step() -> None:
    steps = [
        LoggedStep(order=10, samples_per_s=64 * 8 / 24.0, is_mean=True),
        LoggedStep(order=20, samples_per_s=64 * 18 / (24.0 + 20.0), is_mean=True),
    ]
    assert times(log(*steps))[1] == pytest.approx(2.0)


def test_micro_steps() -> None:
    timers = {"forward_microstep": 1.0, "backward_microstep": 2.0, "step_microstep": 0.5}
    assert times(log(timers=(timers,))) == [12.5]


def test_the_whole_run() -> None:
    reading = log(runtimes_s=(50.0,), stated={"total_steps": 20})
    assert times(reading, Size()) == [2.5]


def test_what_a_rate_needs_is_named() -> None:
    rate = LoggedStep(tokens_per_s_per_gpu=400.0)
    with pytest.raises(InputError, match="tokens per second and GPU and needs the global batch"):
        timed_steps(log(rate), Size(world=8))


def test_a_log_without_speed_says_what_it_has() -> None:
    with pytest.raises(InputError, match="because it reports losses"):
        timed_steps(log(LoggedStep(loss=1.0)), SIZE)
