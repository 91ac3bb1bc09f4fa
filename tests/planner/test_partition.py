"""Cuts come in order of their bounds, each once, and are counted exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardwright.planner.bounds import StageBounds, cut_memory_bytes
from shardwright.planner.choices import Choices
from shardwright.planner.partition import Cut, CutsInOrder, count_cuts, least_memory_cut
from tests.planner.conftest import InventedCosts, tiny_problem

CHOICES = [
    Choices(1, 1, 1, 1, 6, 0, False, "none", "none"),
    Choices(1, 2, 2, 1, 3, 1, False, "none", "1f1b"),
    Choices(2, 3, 1, 2, 5, 0, True, "full", "gpipe"),
    Choices(1, 4, 2, 1, 8, 3, False, "none", "1f1b"),
    Choices(1, 7, 1, 1, 2, 0, False, "none", "1f1b"),
]


def bounds_of(
    choices: Choices, capacity_bytes: float = 10**12, seed: int = 3, num_layers: int = 6
) -> StageBounds:
    world = choices.tp * choices.pp * choices.dp
    batch = choices.dp * choices.micro_batch * choices.num_microbatches
    costs = InventedCosts(tiny_problem(num_layers, world, batch), seed)
    seconds, held = costs.unit_seconds(choices), costs.unit_bytes(choices)
    return StageBounds(choices, seconds, held, capacity_bytes)


def memory_of(bounds: StageBounds, cut: Cut) -> float:
    return cut_memory_bytes(bounds.choices, bounds.unit_bytes, cut)


def all_cuts(bounds: StageBounds) -> list[Cut]:
    return list(itertools.combinations(range(1, bounds.num_units), bounds.choices.pp - 1))


def drained(cuts: CutsInOrder) -> list[tuple[float, Cut]]:
    found = []
    while cuts.next_bound_s < float("inf"):
        bound_s = cuts.next_bound_s
        found.append((bound_s, cuts.pop()))
    return found


@pytest.mark.parametrize("choices", CHOICES, ids=lambda c: f"{c.schedule}-pp{c.pp}")
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_cuts_come_in_order_of_their_bounds(choices: Choices, share: float) -> None:
    free = bounds_of(choices)
    needs = sorted(memory_of(free, cut) for cut in all_cuts(free))
    capacity = needs[int(share * (len(needs) - 1))]
    bounds = bounds_of(choices, capacity)
    expected = sorted(
        bounds.cut_step_s(cut) for cut in all_cuts(bounds)
        if memory_of(free, cut) <= capacity
    )  # fmt: skip
    found = drained(CutsInOrder(bounds))
    assert [bound_s for bound_s, _ in found] == pytest.approx(expected, rel=1e-12)
    assert all(bounds.cut_step_s(cut) == bound_s for bound_s, cut in found)
    assert len({cut for _, cut in found}) == len(found) == count_cuts(bounds)


def test_no_cut_fits_where_a_unit_is_too_big() -> None:
    bounds = bounds_of(CHOICES[3], capacity_bytes=1)
    assert CutsInOrder(bounds).next_bound_s == float("inf")
    assert count_cuts(bounds) == 0


def test_a_fixed_cut_is_the_only_one() -> None:
    bounds = bounds_of(CHOICES[2])
    assert drained(CutsInOrder(bounds, only=(2, 5))) == [(bounds.cut_step_s((2, 5)), (2, 5))]
    too_big = bounds_of(CHOICES[2], capacity_bytes=1)
    assert drained(CutsInOrder(too_big, only=(2, 5))) == []


@pytest.mark.parametrize("choices", CHOICES, ids=lambda c: f"{c.schedule}-pp{c.pp}")
def test_the_least_memory_is_found(choices: Choices) -> None:
    bounds = bounds_of(choices, capacity_bytes=0)
    needed, cut = least_memory_cut(bounds.choices, bounds.unit_bytes)
    assert needed == min(memory_of(bounds, other) for other in all_cuts(bounds))
    assert memory_of(bounds, cut) == needed


def test_huge_numbers_of_cuts_are_exact_integers() -> None:
    import math

    choices = Choices(1, 40, 1, 1, 80, 0, False, "none", "1f1b")
    bounds = bounds_of(choices, num_layers=80)
    assert np.isfinite(CutsInOrder(bounds).next_bound_s)
    assert count_cuts(bounds) == math.comb(81, 39)
