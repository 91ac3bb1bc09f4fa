"""Dictionaries of the Hugging Face Trainer."""

from __future__ import annotations

import pytest

from shardwright.planner.calibration.logs.recognise import read_log_text
from tests.planner.calibration.logs.samples import fixture


def test_bars_tell_the_step_and_how_many_there_are() -> None:
    log = fixture("hf_progress.log")
    assert log.iterations == (30,)
    assert log.stated["total_steps"] == 800
    assert log.losses == (2.1034,)
    assert log.runtimes_s == (801.6,)


def test_an_evaluation_is_no_step() -> None:
    log = fixture("hf_progress.log")
    assert log.samples_per_s == (63.87,)


@pytest.mark.parametrize(
    ("speed", "mean_s"), [("'train_speed(iter/s)': 0.25", 4.0), ("'train_speed(s/it)': 3.5", 3.5)]
)
def test_the_mean_speed_so_far(speed: str, mean_s: float) -> None:
    text = "# {'loss': 1.5, 'learning_rate': 1e-05, 'iteration': '5/100', 'memory(GiB)': 9.5, %s}"
    log = read_log_text(text % speed)
    assert log.steps[0].mean_time_s == pytest.approx(mean_s)
    assert log.iterations == (5,)
    assert log.memory_bytes("max_reserved") == (9.5 * 2**30,)


def test_numbers_that_are_none() -> None:
    text = "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
    log = read_log_text(
        text + text.replace("nan, 'l", "1.0, 'l").replace("loss': nan", "loss': 2.0")
    )
    assert log.losses == (2.0,)
