"""Splits give every stage a unit, and the balanced one has the least busiest stage."""

from __future__ import annotations

import itertools
import random

from shardwright.planner.stacks.splits import balanced_split, even_split


def sizes(starts: tuple[int, ...], num_units: int) -> list[int]:
    edges = [0, *starts, num_units]
    return [stop - start for start, stop in itertools.pairwise(edges)]


def busiest(unit_s: list[float], starts: tuple[int, ...]) -> float:
    edges = [0, *starts, len(unit_s)]
    return max(sum(unit_s[start:stop]) for start, stop in itertools.pairwise(edges))


def test_even_splits_differ_by_one_at_most() -> None:
    assert sizes(even_split(10, 4), 10) == [3, 3, 2, 2]
    assert even_split(5, 1) == ()


def test_the_balanced_split_is_the_best_of_all() -> None:
    draw = random.Random(3)
    for _ in range(400):
        count = draw.randint(2, 8)
        unit_s = [draw.choice([1.0, 1.0, 0.3, 2.5, draw.random()]) for _ in range(count)]
        num_stages = draw.randint(1, count)
        found = balanced_split(unit_s, num_stages)
        assert min(sizes(found, count)) >= 1
        best_s = min(
            busiest(unit_s, starts)
            for starts in itertools.combinations(range(1, count), num_stages - 1)
        )
        # Units are compared in thousandths of the heaviest.
        assert busiest(unit_s, found) <= best_s + count * 1e-3 * max(unit_s)


def test_a_heavy_head_lightens_its_stage_alone() -> None:
    assert sizes(balanced_split([0.1] + [1.0] * 16 + [2.0], 4), 18) == [5, 5, 4, 4]
