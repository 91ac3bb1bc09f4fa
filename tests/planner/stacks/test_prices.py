"""Prices of partial layouts are made once, and what does not matter is shared."""

from __future__ import annotations

import pytest

from shardwright.planner.problem import Constraints
from shardwright.planner.stacks.choices import Cut, Grid, Leaf, Pipeline
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace
from shardwright.planner.stacks.units import ALONE
from tests.planner.stacks.small import pricer_of, problem

CUT = Cut(False, "ring", 2, 1)
GRID = Grid(1, 1, 2, 4, 1, 2)


def prices_of(**fixed: object) -> StackPrices:
    made = problem(gpus=8, global_batch=8)
    space = StackSpace(made, Constraints(fixed=fixed))  # type: ignore[arg-type]
    return StackPrices(made, space, pricer_of(made))


def test_pp_and_dp_do_not_change_a_unit_without_sharding() -> None:
    prices = prices_of()
    one = prices.times(GRID, CUT)
    assert prices.times(Grid(1, 1, 4, 2, 1, 4), CUT) is one
    assert prices.times(Grid(1, 1, 2, 2, 2, 2), CUT) is not one


def test_no_micro_batch_has_less_work_for_a_token_than_an_endless_one() -> None:
    prices = prices_of()
    for size in (1, 2, 4, 8):
        grid = Grid(2, 2, 1, 1, size, 1)
        cuts = prices.space.valid_cuts(grid)
        assert len(cuts) > 10
        for cut in cuts:
            least_s = prices.least_token_s(grid, cut)
            times = prices.times(grid, cut)
            work_s = times.forward_s[-1] + times.input_s[-1] + times.weight_s[-1]
            assert least_s * prices.tokens(grid) <= work_s, (grid, cut)


def test_the_hull_goes_from_no_recomputation_to_the_least_bytes() -> None:
    prices = prices_of()
    hull = prices.recompute_hull(GRID, CUT, ALONE, kind=1)
    seconds, kept = zip(*hull, strict=True)
    assert seconds[0] == 0.0
    assert list(seconds) == sorted(seconds)
    assert list(kept) == sorted(kept, reverse=True)
    slopes = [(kept[i] - kept[i + 1]) / (seconds[i + 1] - seconds[i]) for i in range(len(hull) - 1)]
    assert slopes == sorted(slopes, reverse=True)
    away = prices.recompute_hull(GRID, CUT, ALONE._replace(offload="activations"), kind=1)
    assert {kept for _, kept in away} == {0.0}


def test_ends_add_no_more_than_they_take_alone() -> None:
    prices = prices_of()
    times = prices.times(GRID, CUT)
    for at, added_s in zip((0, -2), prices.ends_s(GRID, CUT, kind=1), strict=True):
        first = at if at == 0 else len(times.forward_s) + at
        device_s = sum(
            sums[first + 1] - sums[first]
            for sums in (times.forward_s, times.input_s, times.weight_s)
        )
        kernels = sum(
            sums[first + 1] - sums[first] for sums in (times.forward_kernels, times.kernels)
        )
        launch_s = prices.pricer.launch_s(1)
        assert 0.0 < added_s <= device_s + kernels * launch_s


def test_stages_of_many_take_what_each_takes() -> None:
    prices = prices_of()
    forward_s, backward_s = prices.least_stages_s(GRID, CUT, (0, 2, 6))
    whole = prices.least_stages_s(GRID, CUT, (0, 6))
    assert len(forward_s) == 2
    assert forward_s.sum() >= whole[0][0] * (1 - 1e-12)
    assert backward_s.sum() >= whole[1][0] * (1 - 1e-12)


def test_messages_are_those_of_each_boundary() -> None:
    prices = prices_of()
    leaf = Leaf(GRID, CUT, ALONE, Pipeline("zb-v", 2))
    messages_s = prices.messages_s(leaf)
    assert len(messages_s) == 3
    assert messages_s[1] == 0.0, "the two stages in the middle are on one rank"
    assert messages_s[0] == messages_s[2] > 0.0


@pytest.mark.parametrize(("fixed", "policies"), [({}, ["full"]), ({"recompute": "none"}, ["none"])])
def test_the_leanest_policies_are_those_that_are_open(
    fixed: dict[str, object], policies: list[str]
) -> None:
    assert prices_of(**fixed).leanest_policies == policies
