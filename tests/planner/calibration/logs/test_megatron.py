"""Lines of Megatron-LM's years and forks."""

from __future__ import annotations

import pytest

from shardwright.planner.calibration.logs.recognise import read_log_text
from shardwright.planner.calibration.logs.text import MIB
from tests.planner.calibration.logs.samples import fixture

LINE = (
    " iteration       10/    1000 | consumed samples: 40"
    " | elapsed time per iteration (ms): 1355.2 | global batch size:     4"
    " | lm loss: 1.203148E+01 | loss scale: 32768.0 |"
    " number of skipped iterations:   8 | number of nan iterations:   0 |"
)


def test_everything_of_a_line() -> None:
    (step,) = read_log_text(LINE).steps
    assert (step.iteration, step.time_s, step.printed) == (10, 1.3552, "1355.2")
    assert (step.global_batch, step.loss, step.skipped) == (4, 12.03148, 8)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[default7]:",
        "3: ",
        "[rank0]:",
        "worker-1 | ",
        "[1,0]<stdout>:",
        "2024-01-01T00:00:00Z ",
    ],
)
def test_what_launchers_put_in_front(prefix: str) -> None:
    assert read_log_text(prefix + LINE).step_times_s == (1.3552,)


def test_colours_and_carriage_returns() -> None:
    assert read_log_text(f"loading 10%\rloading 90%\r\x1b[32m{LINE}\x1b[0m\r\n").iterations == (10,)


def test_two_lines_that_ran_into_each_other() -> None:
    assert read_log_text(f"{LINE}{LINE.replace('10/', '20/')}").iterations == (10, 20)


@pytest.mark.parametrize("end", [0, 40, LINE.index("55.2"), LINE.index("1355.2") + 6])
def test_a_line_that_was_cut_before_its_time_is_none(end: int) -> None:
    log = read_log_text(f"{LINE}\n{LINE.replace('10/', '20/').replace('1355.2', '1400.7')[:end]}")
    assert log.step_times_s == (1.3552,)


def test_units_of_elapsed_time() -> None:
    text = LINE.replace("(ms): 1355.2", "(s): 106.79")
    assert read_log_text(text).step_times_s == (106.79,)


def test_a_line_that_another_rank_broke_into_keeps_its_time() -> None:
    broken = LINE.replace("lm loss: 1.2", "lm [Rank 3] (after 10 iterations) memory")
    assert read_log_text(broken).step_times_s == (1.3552,)


def test_memory_of_several_ranks_on_one_line() -> None:
    log = fixture("megatron_core_arguments.log")
    assert log.memory_bytes("max_allocated") == (31234.25 * MIB, 25000.0 * MIB)
    assert {one.rank for one in log.memory} == {0, 8}
    assert {one.iteration for one in log.memory} == {1}
    assert log.theoretical_bytes == {"weight and optimizer": 18432.5 * MIB}


def test_a_table_of_timers_is_read_by_its_longest_rank() -> None:
    (timers,) = fixture("megatron_core_arguments.log").timers
    assert timers["forward-backward"] == pytest.approx(3.91052)
    assert timers["optimizer"] == pytest.approx(0.02035)
    assert len(timers) == 4


def test_rates_under_the_names_of_forks() -> None:
    assert fixture("mindspeed_npu.log").flops_per_s_per_gpu[0] == pytest.approx(151.2e12)
    step = fixture("megatron_deepspeed_tgs.log").steps[0]
    assert step.tokens_per_s_per_gpu == 1146.733
    assert step.samples_per_s == 53.753
    assert step.flops_per_s_per_gpu == pytest.approx(69.85e12)
    neox = fixture("gpt_neox.log").steps[0]
    assert (neox.samples_per_s, neox.loss) == (59.535, 10.125)


def test_bridge_prints_steps_without_numbers() -> None:
    log = fixture("bridge_step_time.log")
    assert log.step_times_s[1] == 7.57
    assert log.iterations == ()
