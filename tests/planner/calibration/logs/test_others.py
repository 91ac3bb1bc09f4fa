"""torchtitan, NeMo 2, nanochat and our own lines."""

from __future__ import annotations

import json

import pytest

from shardwright.planner.calibration.logs.recognise import read_log_text
from shardwright.planner.calibration.logs.text import GIB
from tests.planner.calibration.logs.samples import fixture


def test_torchtitan_of_2025_with_colours() -> None:
    log = fixture("torchtitan_2025.log")
    step = log.steps[2]
    assert (step.iteration, step.tokens_per_s_per_gpu, step.printer) == (10, 6590.0, "0")
    assert step.flops_per_s_per_gpu == pytest.approx(382.22e12)
    assert step.mfu_fraction == pytest.approx(0.3865)
    assert log.memory_bytes("max_reserved")[0] == 41.22 * GIB
    assert log.memory[0].device_fraction == pytest.approx(0.5211)


def test_torchtitan_of_2024_counts_words() -> None:
    text = "[rank0]:step: 10  loss:  7.1  memory: 22.05GiB(27.8%)  wps: 3,256  mfu: 40.00%\n"
    assert read_log_text(text).steps[0].tokens_per_s_per_gpu == 3256.0


def test_a_torchtitan_line_that_was_cut_in_its_rate_has_none() -> None:
    text = "step: 10  loss:  7.1  memory: 22.05GiB(27.8%)  tps: 3,2"
    assert read_log_text(text).steps[0].tokens_per_s_per_gpu is None


def test_nemo_orders_by_the_global_step() -> None:
    log = fixture("nemo_flops.log")
    assert [step.number for step in log.steps] == [0, 1, 2, 3]
    assert log.flops_per_s_per_gpu[0] == pytest.approx(512.3e12)
    assert log.memory_bytes("max_allocated")[0] == 58123456789


def test_nanochat_of_either_year() -> None:
    for name in ("mfu", "bf16_mfu"):
        line = "step 00004/21400 (0.35%) | loss: 8.8 | dt: 989.44ms | tok/sec: 529,882 | "
        (step,) = read_log_text(f"{line}{name}: 74.5").steps
        assert (step.time_s, step.tokens_per_s, step.mfu_fraction) == (0.98944, 529882.0, 0.745)


def test_our_own_words_and_records() -> None:
    log = fixture("shardwright_run.log")
    assert log.step_times_s[0] == pytest.approx(0.812)
    assert log.step_times_s[-1] == pytest.approx(0.401)
    record = {"step": 3, "loss": 5.1, "grad_norm": 1.0, "learning_rate": 1e-4,
              "step_time_s": 0.4015, "tokens_per_s": 10200.0}  # fmt: skip
    (step,) = read_log_text(json.dumps(record)).steps
    assert (step.iteration, step.time_s) == (3, 0.4015)


def test_a_record_that_was_cut_is_none() -> None:
    whole = '{"step": 3, "loss": 5.1, "step_time_s": 0.4, "tokens_per_s": 1.0}\n'
    assert len(read_log_text(whole + whole[:40]).steps) == 1
