"""The leanest layout needs no more than the others that were looked at."""

from __future__ import annotations

from shardwright.planner.problem import Constraints
from shardwright.planner.stacks.lean import leanest
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace
from tests.planner.stacks.small import every_leaf, layout_of, pricer_of, problem


def test_it_is_valid_and_near_the_least_of_all() -> None:
    made = problem(gpus=2, global_batch=2, usable_bytes=10**6)
    pricer, space = pricer_of(made), StackSpace(made, Constraints())
    found = leanest(made, space, pricer)
    assert found.layout.violations(made.model, made.cluster, made.training) == []
    leaves = every_leaf(space, StackPrices(made, space, pricer))
    least = min(
        max(rank.total_bytes for rank in pricer.memory(layout_of(made, choices, leaf, space)))
        for choices, leaf in leaves
    )
    assert least <= max(found.prediction.peak_memory_bytes) <= 1.1 * least


def test_it_stops_at_one_that_fits() -> None:
    made = problem(gpus=2)
    found = leanest(made, StackSpace(made, Constraints()), pricer_of(made))
    assert found.prediction.memory_verdict == "fits"


def test_what_is_fixed_holds() -> None:
    made = problem(gpus=4)
    space = StackSpace(made, Constraints(fixed={"tp": 2, "recompute": "none"}))
    found = leanest(made, space, pricer_of(made))
    assert found.layout.tp == 2
    assert found.layout.recompute[0].policy == "none"
