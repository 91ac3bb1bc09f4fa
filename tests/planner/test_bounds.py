"""Bounds never exceed what they bound: the simulated step and the priced memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.planner.bounds import (
    StageBounds,
    UnitBytes,
    UnitSeconds,
    cut_memory_bytes,
    quick_memory_bound_bytes,
    quick_step_bound_s,
    state_bound_bytes,
)
from shardwright.planner.choices import Choices
from shardwright.planner.partition import Cut
from shardwright.specs import Prediction
from tests.planner.conftest import InventedCosts, tiny_problem

Example = tuple[int, Choices, Cut, int]


@st.composite
def choices_and_cuts(draw: st.DrawFn) -> Example:
    """Choices on a world of their own, and a cut; layers 1 to 8, up to 6 stages."""
    num_layers = draw(st.integers(1, 8))
    pp = draw(st.integers(1, min(6, num_layers + 2)))
    tp, dp, micro_batch = (draw(st.sampled_from((1, 2))) for _ in range(3))
    m = draw(st.integers(1, 14))
    choices = Choices(
        tp, pp, dp, micro_batch, m,
        draw(st.sampled_from((0, 1, 3))) if dp > 1 else 0,
        tp > 1 and draw(st.booleans()),
        draw(st.sampled_from(("none", "full"))),
        draw(st.sampled_from(("1f1b", "gpipe"))) if pp > 1 else "none",
    )  # fmt: skip
    cuts = list(itertools.combinations(range(1, num_layers + 2), pp - 1))
    cut = cuts[draw(st.integers(0, len(cuts) - 1))]
    return num_layers, choices, cut, draw(st.integers(0, 10**6))


def priced(
    num_layers: int, choices: Choices, cut: Cut, seed: int
) -> tuple[InventedCosts, UnitSeconds, UnitBytes, Prediction]:
    world = choices.tp * choices.pp * choices.dp
    batch = choices.dp * choices.micro_batch * choices.num_microbatches
    problem = tiny_problem(num_layers, world, batch)
    costs = InventedCosts(problem, seed)
    layout = choices.layout(problem, tuple(unit - 1 for unit in cut))
    unit_costs = (costs.unit_seconds(choices), costs.unit_bytes(choices))
    return costs, *unit_costs, costs.predict(layout)


@settings(max_examples=300, deadline=None)
@given(choices_and_cuts())
def test_bounds_never_exceed_the_simulation(example: Example) -> None:
    _, choices, cut, _ = example
    costs, seconds, held, prediction = priced(*example)
    bounds = StageBounds(choices, seconds, held, costs.capacity_bytes)
    cut_s = bounds.cut_step_s(cut)
    quick_s = quick_step_bound_s(choices, seconds)
    assert quick_s <= cut_s * (1 + 1e-12)
    assert max(quick_s, cut_s) <= prediction.step_time_s
    peak = max(prediction.peak_memory_bytes)
    # Invented bytes are whole numbers, which the prediction adds up exactly.
    quick_bytes = quick_memory_bound_bytes(choices, held)
    assert quick_bytes <= cut_memory_bytes(choices, held, cut) <= peak + 1
    assert state_bound_bytes(choices, held.state) <= quick_bytes


@settings(max_examples=200, deadline=None)
@given(choices_and_cuts())
def test_a_stage_that_exceeds_memory_makes_the_cut_infinite(example: Example) -> None:
    _, choices, cut, _ = example
    _, seconds, held, _ = priced(*example)
    generous = StageBounds(choices, seconds, held, 10**15)
    needed = cut_memory_bytes(choices, held, cut)
    assert generous.cut_step_s(cut) < float("inf")
    assert StageBounds(choices, seconds, held, needed - 1).cut_step_s(cut) == float("inf")
    assert StageBounds(choices, seconds, held, needed).cut_step_s(cut) < float("inf")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("m", [4, 8, 16])
def test_bounds_are_exact_for_equal_stages(schedule: str, m: int) -> None:
    """The known makespan (m + pp - 1)(f + b) of equal stages without messages."""
    choices = Choices(1, 4, 1, 1, m, 0, False, "none", schedule)
    costs, seconds, held, _ = priced(6, choices, (2, 4, 6), seed=1)
    one = seconds.forward_s * 0 + 1.0
    none = seconds.receive_forward_s * 0
    equal = replace(
        seconds, forward_s=one, backward_s=2 * one, receive_forward_s=none,
        receive_backward_s=none, reduction_s=one * 0, optimizer_s=one * 0, fixed_s=0.0,
        tied_sum_s=0.0,
    )  # fmt: skip
    bounds = StageBounds(choices, equal, held, costs.capacity_bytes)
    assert bounds.cut_step_s((2, 4, 6)) == pytest.approx((m + 3) * 6.0)


def test_shared_cores_bound_the_pipeline() -> None:
    choices = Choices(1, 2, 1, 1, 4, 0, False, "none", "1f1b")
    costs, seconds, held, _ = priced(2, choices, (2,), seed=2)
    shared = replace(seconds, shared_work_s=1000.0)
    alone_s = StageBounds(choices, seconds, held, costs.capacity_bytes).cut_step_s((2,))
    shared_s = StageBounds(choices, shared, held, costs.capacity_bytes).cut_step_s((2,))
    assert alone_s < 1000 < shared_s
    assert 1000 < quick_step_bound_s(choices, shared) <= shared_s
