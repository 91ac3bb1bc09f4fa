"""Lines of DeepSpeed's engine."""

from __future__ import annotations

from shardwright.planner.calibration.logs.recognise import read_log_text
from shardwright.planner.calibration.logs.text import GIB
from tests.planner.calibration.logs.samples import fixture

TIMER = "[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] 0/{}, "


def test_the_last_step_s_rate_wins_over_the_mean() -> None:
    line = TIMER.format(20) + "RunningAvgSamplesPerSec=232.7, CurrSamplesPerSec=227.5, "
    (step,) = read_log_text(line + "MemAllocated=0.36GB, MaxMemAllocated=15.06GB").steps
    assert (step.number, step.samples_per_s, step.is_mean) == (20, 227.5, False)


def test_old_releases_print_the_mean() -> None:
    log = read_log_text(
        TIMER.format(20) + "SamplesPerSec=83.5, MemAllocated=1.5GB, MaxMemAllocated=2GB"
    )
    assert log.steps[0].is_mean
    assert log.memory_bytes("allocated") == (1.5 * GIB,)
    assert log.memory_bytes("max_allocated") == (2.0 * GIB,)


def test_the_pipeline_engine_prints_times() -> None:
    log = fixture("deepspeed_pipeline.log")
    assert log.step_times_s == (4.251, 3.201, 3.199)
    assert log.memory_bytes("max_reserved") == (24.0 * GIB,)
