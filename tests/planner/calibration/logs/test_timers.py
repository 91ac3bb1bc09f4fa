"""Which timers are parts of a step, and which are not."""

from __future__ import annotations

import pytest

from shardwright.planner.calibration.logs.reading import LogReading
from shardwright.planner.calibration.logs.timers import part_times
from tests.planner.calibration.logs.samples import fixture, sample


def parts(*timers: dict[str, float], step_s: float = 10.0, count: int = 4) -> dict[str, float]:
    log = LogReading("x", "megatron-lm", timers=timers)
    return {one.name: one.seconds for one in part_times(log, step_s, count)}


def test_the_table_of_the_longest_ranks() -> None:
    found = part_times(fixture("megatron_core_arguments.log"), 4.1, 32)
    assert {one.name for one in found} == {"forward", "passes"}
    assert not any(one.of_last_rank for one in found)
    seconds = {one.name: one.seconds for one in found}
    assert seconds["forward"] == pytest.approx(1.30025)
    assert seconds["passes"] == pytest.approx(3.91052 + 0.01275)


def test_the_line_of_the_last_rank() -> None:
    log, _ = sample("megatron_2021_base_n4")
    found = {one.name: one for one in part_times(log, 1.374, 4)}
    assert found.keys() == {"forward", "backward", "reduction", "update"}
    assert all(one.of_last_rank for one in found.values())
    assert found["backward"].seconds == pytest.approx(0.5142, rel=0.002)


def test_the_first_print_holds_the_warm_up() -> None:
    slow, usual = {"forward-compute": 9.0}, {"forward-compute": 3.0}
    assert parts(slow, usual, usual) == {"forward": 3.0}


def test_waiting_is_no_part() -> None:
    assert parts({"forward-recv": 2.0, "backward-embedding-all-reduce": 3.0}) == {}


def test_gradients_are_summed_within_the_passes_since_they_say_so() -> None:
    old = parts({"forward-backward": 8.0, "grads-all-reduce": 1.0})
    assert old["passes"] == 9.0
    assert parts({"forward-backward": 8.0, "all-grads-sync": 1.0})["passes"] == 8.0


def test_micro_steps_add_up_and_leave_out_the_sums() -> None:
    timers = {"forward_microstep": 0.5, "backward_microstep": 1.5, "backward_inner_microstep": 1.0}
    assert parts(timers) == {"forward": 2.0, "backward": 4.0}


def test_short_parts_and_impossible_ones_are_left_alone() -> None:
    assert parts({"forward-compute": 3.0, "optimizer": 0.05}) == {"forward": 3.0}
    assert parts({"forward-compute": 6.0, "backward-compute": 7.0}) == {}
    assert parts({"forward-backward": 11.0}) == {}
