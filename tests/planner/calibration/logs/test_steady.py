"""Warm-up, restarts and spikes are left out, counted and named."""

from __future__ import annotations

import random
import statistics

import pytest

from shardwright.planner.calibration.logs.reading import LoggedStep, LogReading
from shardwright.planner.calibration.logs.steady import steady_step
from shardwright.planner.calibration.logs.times import Size
from shardwright.specs import InputError
from tests.planner.calibration.logs.samples import fixture, sample


def log(times: list[float], first: int = 1, every: int = 1, **more: object) -> LogReading:
    steps = tuple(
        LoggedStep(iteration=first + every * i, time_s=time, **more)  # type: ignore[arg-type]
        for i, time in enumerate(times)
    )
    return LogReading("x.log", "megatron-lm", steps)


def joined(*logs: LogReading) -> LogReading:
    return LogReading("x.log", "megatron-lm", tuple(step for one in logs for step in one.steps))


def left_out(reading: LogReading) -> dict[str, int]:
    return {why: count for count, why in steady_step(reading).dropped}


def noisy(count: int, seed: int, middle: float = 5.0, sd: float = 0.01) -> list[float]:
    draw = random.Random(seed)
    return [middle * (1.0 + draw.gauss(0.0, sd)) for _ in range(count)]


def test_the_first_step_of_a_training_is_warm_up() -> None:
    assert left_out(log([9.0, 5.0, 5.0, 5.0])) == {"of warm-up": 1}
    assert steady_step(log([9.0, 5.0, 5.1, 5.0])).step_time_s == 5.0


def test_an_excerpt_from_the_middle_has_none() -> None:
    assert left_out(log(noisy(8, 0), first=31214)) == {}


def test_a_long_warm_up_ends_where_steps_are_as_later() -> None:
    times = [20.0, 9.0, 7.0, 6.0, *noisy(20, 1)]
    assert left_out(log(times)) == {"of warm-up": 4}


def test_the_first_print_of_ten_steps_holds_the_warm_up() -> None:
    assert left_out(log([6.0, 5.0, 5.0], first=10, every=10)) == {"of warm-up": 1}


def test_checkpoints_are_named() -> None:
    times = noisy(50, 2)
    times[20] *= 2.0
    times[40] *= 1.6
    found = steady_step(log(times))
    assert dict((why, n) for n, why in found.dropped)["slower than the rest"] == 2
    assert found.num_printed == 50
    assert found.num_kept == 47


@pytest.mark.parametrize("seed", range(6))
def test_the_time_is_right_whatever_spoils_the_log(seed: int) -> None:
    draw = random.Random(seed)
    first, second = noisy(30, seed), noisy(20, seed + 100)
    first[0], second[0] = 20.0, 14.0
    for spoilt in draw.sample(range(2, 30), 4):
        first[spoilt] *= draw.uniform(1.2, 3.0)
    found = steady_step(joined(log(first), log(second, first=21)))
    assert found.step_time_s == pytest.approx(5.0, rel=0.01)
    assert found.scatter_fraction < 0.02


def test_a_restart_goes_back_and_warms_up_again() -> None:
    found = left_out(joined(log([9.0, 5.0, 5.0, 5.0, 5.0]), log([8.0, 5.0, 5.0], first=3)))
    assert found == {"of warm-up": 1, "of a restart": 1}


def test_restarts_that_differ_are_two_runs() -> None:
    two = joined(log([9.0, 5.0, 5.0, 5.0]), log([12.0, 7.0, 7.0, 7.0]))
    with pytest.raises(InputError, match="holds 2 starts whose steps take from 5 s to 7 s"):
        steady_step(two)
    with pytest.raises(InputError, match="give each run its own file"):
        steady_step(sample("swift_ascend")[0])


def test_ranks_that_print_one_step_are_one_print() -> None:
    found = steady_step(fixture("torchtitan_2025.log"), Size(16, 8192, 32))
    assert found.num_printed == 6
    assert found.num_kept == 4
    assert found.step_time_s == pytest.approx(16 * 8192 / (6607 * 32), rel=0.002)


def test_a_ramp_up_of_the_batch() -> None:
    ramp = joined(log([1.0] * 4, global_batch=64), log([5.0] * 6, first=5, global_batch=256))
    found = steady_step(ramp)
    assert (found.step_time_s, found.global_batch) == (5.0, 256)
    assert dict((why, n) for n, why in found.dropped) == {"of another global batch": 4}
    assert steady_step(ramp, Size(global_batch=64)).step_time_s == 1.0
    with pytest.raises(InputError, match="trained with a global batch of 64, 256, not of 8"):
        steady_step(ramp, Size(global_batch=8))


def test_skipped_updates_count_only_where_nothing_else_is_left() -> None:
    mixed = joined(log([3.0, 3.0, 3.0], first=100, skipped=1), log([5.0, 5.0], first=103))
    assert steady_step(mixed).step_time_s == 5.0
    assert steady_step(log([4.0, 3.0, 3.0], skipped=1)).step_time_s == 3.0


def test_one_first_step_teaches_nothing() -> None:
    with pytest.raises(InputError, match="no step beyond the first"):
        steady_step(log([20.0]))


def test_in_words() -> None:
    assert steady_step(log([9.0, 5.0, 5.0])).in_words() == (
        "5 s (median of 2 of 3 prints; left out: 1 of warm-up)"
    )
    assert (
        "one print; from samples per second"
        in steady_step(fixture("trainer_state.json"), Size(64)).in_words()
    )


def test_the_median_is_of_what_is_kept() -> None:
    times = noisy(9, 7)
    assert steady_step(log(times, first=500)).step_time_s == statistics.median(times)
