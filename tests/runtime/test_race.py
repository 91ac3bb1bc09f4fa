"""Races end when they may, and are seldom wrong."""

from __future__ import annotations

import math
import random

import pytest

from shardwright.runtime.race import FIRST_LOOK, Race, Rules, student_quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.706204736), (0.975, 2, 4.302652730), (0.975, 4, 2.776445105),
        (0.995, 2, 9.924843201), (0.9999, 3, 22.203742273), (0.975, 30, 2.042272456),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(
    probability: float, freedom: int, expected: float
) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9)


def test_a_clear_race_ends_at_the_first_look() -> None:
    times = [[1.0, 1.01, 1.0], [2.0, 2.01, 2.0], [3.0, 3.0, 3.01]]
    race = Race(Rules(10, 3), times)
    assert race.running() == []
    assert [one.verdict for one in race.standings()] == ["fastest", "slower", "slower"]
    assert Race(Rules(10, 3), [row[:2] for row in times]).running() == [0, 1, 2]


def test_a_close_race_goes_on_without_who_has_lost() -> None:
    times = [[1.0, 1.1, 1.05], [1.05, 1.0, 1.1], [9.0, 9.01, 9.0]]
    race = Race(Rules(10, 3), times)
    assert race.running() == [0, 1]
    assert {one.index: one.verdict for one in race.standings()}[2] == "slower"


def test_equals_end_once_their_difference_does_not_matter() -> None:
    times = [[1.0, 1.0001, 1.0], [1.0001, 1.0, 1.0001]]
    assert Race(Rules(10, 2, resolution=0.01), times).running() == []
    assert Race(Rules(10, 2, resolution=0.0), times).running() == [0, 1]


def test_drift_that_hits_all_does_not_count() -> None:
    drift = [1.0, 3.0, 0.5, 2.0]
    times = [drift, [1.1 * d for d in drift]]
    _, (low, high) = Race(Rules(10, 2), times).ratio(1, 0)
    assert low == pytest.approx(1.1)
    assert high == pytest.approx(1.1)


def test_one_layout_is_timed_until_something_can_be_said() -> None:
    assert Race(Rules(10, 1), [[1.0, 1.2]]).running() == [0]
    assert Race(Rules(10, 1), [[1.0, 1.2, 1.1]]).running() == []
    assert FIRST_LOOK == 3


def test_of_many_races_of_equals_few_are_wrong() -> None:
    """Three equal layouts with 5 % noise: 95 % of races must find no winner, over all looks."""
    draw = random.Random(0)
    wrong = 0
    for _ in range(200):
        times: list[list[float]] = [[], [], []]
        running = [0, 1, 2]
        while running:
            for index in running:
                times[index].append(math.exp(draw.gauss(0.0, 0.05)))
            running = Race(Rules(8, 3), times).running()
        verdicts = [one.verdict for one in Race(Rules(8, 3), times).standings()]
        wrong += "slower" in verdicts
    assert wrong <= 10


def test_the_fastest_is_found_among_those_that_ran_longest() -> None:
    times = [[1.0, 1.0, 1.0, 1.0], [0.5, 3.0, 3.0], []]
    race = Race(Rules(10, 3), times)
    assert race.fastest == 0
    assert [one.index for one in race.standings()] == [0, 1]
