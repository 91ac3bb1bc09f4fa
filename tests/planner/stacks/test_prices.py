"""Prices of partial layouts are made once, and what does not matter is shared."""

from __future__ import annotations

from shardwright.planner.problem import Constraints
from shardwright.planner.stacks.choices import Cut, Grid
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace
from tests.planner.stacks.small import pricer_of, problem


def prices_of(**fixed: object) -> StackPrices:
    made = problem(gpus=8, global_batch=8)
    space = StackSpace(made, Constraints(fixed=fixed))  # type: ignore[arg-type]
    return StackPrices(made, space, pricer_of(made))


def test_pp_and_dp_do_not_change_a_unit_without_sharding() -> None:
    prices, cut = prices_of(), Cut(False, "ring", 2, 1)
    one = prices.times(Grid(1, 1, 2, 4, 1, 2), cut, "none", 1)
    assert prices.times(Grid(1, 1, 4, 2, 1, 4), cut, "none", 0) is one
    assert prices.times(Grid(1, 1, 2, 4, 1, 2), cut, "none", 3) is not one


def test_cuts_come_with_the_least_work_first() -> None:
    prices = prices_of()
    cuts = prices.ordered_cuts(Grid(2, 2, 1, 2, 1, 4))
    work = [token.work_s for _, token in cuts]
    assert work == sorted(work)
    assert len({cut for cut, _ in cuts}) == len(cuts) > 10


def test_partial_recomputation_is_priced_as_full() -> None:
    prices = prices_of()
    assert [prices.policy(text) for text in ("none", "full:2", "none/full", "selective")] == [
        "none", "full", "full", "selective"
    ]  # fmt: skip


def test_what_is_offloaded_may_always_fit() -> None:
    assert not prices_of().fits(1e15)
    assert prices_of(offload="optimizer").fits(1e15)


def test_one_rank_alone_launches_and_holds_something() -> None:
    kernels, state = prices_of().alone()
    assert kernels > 10
    assert state > prices_of().problem.model.num_parameters
