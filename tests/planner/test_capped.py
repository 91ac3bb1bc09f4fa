"""Less memory to fill changes what fits, and no price."""

from __future__ import annotations

from shardwright.cost_models.pricing import stack_model
from shardwright.planner.capped import CappedPricer, CappedStackModel
from shardwright.planner.layouts import even_boundaries, layout_of
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.space import Space
from tests.planner.conftest import InventedCosts, tiny_problem
from tests.planner.stacks.small import problem


def parts() -> tuple[Problem, CappedStackModel, int]:
    made = problem()
    base = stack_model(made.model, made.training, made.profile, made.software)
    peak = max(base.predict(layout_of(made, {"tp": 2})).peak_memory_bytes)
    return made, CappedStackModel(base, peak), peak


def test_what_needs_more_than_is_allowed_does_not_fit() -> None:
    made, capped, peak = parts()
    layout = layout_of(made, {"tp": 2})
    assert capped.capacity_bytes == peak
    assert capped.verdict(capped.memory(layout)) == "fits"
    tighter = CappedStackModel(capped, peak - 1)
    assert tighter.verdict(tighter.memory(layout)) == "does_not_fit"
    assert tighter.step_time_s(layout) == capped.step_time_s(layout)


def test_the_device_still_limits() -> None:
    made, capped, _ = parts()
    device_bytes = made.cluster.accelerator.usable_memory_bytes
    assert CappedStackModel(capped, 10 * device_bytes).capacity_bytes <= device_bytes


def test_our_own_pricer_is_capped_alike() -> None:
    made = tiny_problem()
    base = InventedCosts(made, seed=1)
    choices = Space(made, Constraints()).valid[0]
    layout = choices.layout(made, even_boundaries(made, choices.pp))
    found = base.predict(layout)
    peak = max(found.peak_memory_bytes)
    assert CappedPricer(base, peak).predict(layout) == found
    tight = CappedPricer(base, peak - 1)
    assert tight.predict(layout) == found.model_copy(update={"memory_verdict": "does_not_fit"})
    assert tight.capacity_bytes == peak - 1
    assert tight.state_bytes(choices).sum() == base.state_bytes(choices).sum()
    assert tight.unit_seconds(choices).fixed_s == base.unit_seconds(choices).fixed_s
    assert tight.unit_bytes(choices).fixed == base.unit_bytes(choices).fixed


def test_what_tensors_may_take_up_is_what_the_verdict_allows() -> None:
    """To within the rounding of stated parts."""
    made = problem(gpus=2)
    base = stack_model(made.model, made.training, made.profile, made.software)
    layout = layout_of(made, {"tp": 2})
    (rank,) = base.memory(layout)
    live_bytes = rank.total_bytes - rank.fixed
    for most_bytes in (rank.total_bytes, rank.total_bytes + 1, 2 * rank.total_bytes):
        capped = CappedStackModel(base, most_bytes)
        assert capped.verdict([rank]) == "fits"
        assert live_bytes <= capped.most_live_bytes(layout) + 4
    tight = CappedStackModel(base, rank.total_bytes - 100)
    assert tight.verdict([rank]) == "does_not_fit"
    assert live_bytes > tight.most_live_bytes(layout)
    assert CappedStackModel(base, 10**15).most_live_bytes(layout) == base.most_live_bytes(layout)
