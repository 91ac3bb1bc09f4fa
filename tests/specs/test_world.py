"""World-size arithmetic, against what Megatron-LM's own generator gave."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.specs.world import WorldSize, dense_grids, divisors, nearest, split_evenly

DEGREES = st.integers(min_value=1, max_value=4)

# tp 2, cp 2, pp 2, dp 2, ep 4, etp 1 on 16 ranks: what Megatron-LM (2026) answers.
MEGATRON = WorldSize(tp=2, cp=2, dp=2, pp=2, ep=4, etp=1)


@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        (("tp",), [[rank, rank + 1] for rank in range(0, 16, 2)]),
        (("cp",), [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]),
        (("dp",), [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]),
        (("dp", "cp"), [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]),
        (("pp",), [[rank, rank + 8] for rank in range(8)]),
        (("tp", "pp"), [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]),
    ],
)
def test_dense_groups_are_megatrons(axes: tuple[str, ...], groups: list[list[int]]) -> None:
    assert MEGATRON.groups(*axes) == groups


@pytest.mark.parametrize(
    ("axis", "groups"),
    [
        ("ep", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
        ("edp", [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]),
        ("etp", [[rank] for rank in range(16)]),
    ],
)
def test_expert_groups_are_megatrons(axis: str, groups: list[list[int]]) -> None:
    assert MEGATRON.edp == 2
    assert MEGATRON.expert_groups(axis) == groups


@given(DEGREES, DEGREES, DEGREES, DEGREES)
def test_coordinates_and_ranks_are_inverse(tp: int, cp: int, dp: int, pp: int) -> None:
    world = WorldSize(tp=tp, cp=cp, dp=dp, pp=pp)
    assert [world.rank_of(world.coordinates(rank)) for rank in range(world.world)] == list(
        range(world.world)
    )


@given(DEGREES, DEGREES, DEGREES, DEGREES, st.sets(st.sampled_from(["tp", "cp", "dp", "pp"])))
def test_groups_of_any_axes_divide_the_world(
    tp: int, cp: int, dp: int, pp: int, axes: set[str]
) -> None:
    world = WorldSize(tp=tp, cp=cp, dp=dp, pp=pp)
    groups = world.groups(*axes)
    assert sorted(rank for group in groups for rank in group) == list(range(world.world))
    assert {len(group) for group in groups} == {math.prod(getattr(world, axis) for axis in axes)}


def test_an_expert_grid_that_does_not_fit_has_no_edp() -> None:
    assert WorldSize(tp=2, dp=3, ep=4).edp is None
    assert WorldSize(tp=2, dp=3, ep=4).smallest_world == 4


@pytest.mark.parametrize("world", [1, 6, 12, 64])
def test_dense_grids_are_all_and_each_once(world: int) -> None:
    grids = list(dense_grids(world))
    degrees = range(1, world + 1)
    expected = [
        (tp, cp, pp)
        for tp in degrees
        for cp in degrees
        for pp in degrees
        if world % (tp * cp * pp) == 0
    ]
    assert [(grid.tp, grid.cp, grid.pp) for grid in grids] == expected
    assert {grid.world for grid in grids} == {world}


@given(st.integers(0, 100), st.integers(1, 20))
def test_split_evenly(total: int, parts: int) -> None:
    ranges = split_evenly(total, parts)
    sizes = [len(part) for part in ranges]
    assert [item for part in ranges for item in part] == list(range(total))
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_divisors_and_nearest() -> None:
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert nearest(divisors(36), 5) == [4, 6]
    assert nearest([2, 4], 1) == [2]
    assert nearest([2, 4], 9) == [4]
