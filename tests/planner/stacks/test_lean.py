"""The leanest layout needs no more than the others that were looked at."""

from __future__ import annotations

from shardwright.planner.problem import ChoiceValue, Constraints
from shardwright.planner.stacks.lean import leanest
from shardwright.planner.stacks.space import StackSpace
from tests.planner.stacks.small import every_layout, pricer_of, problem


def test_it_is_valid_and_near_the_least_of_all() -> None:
    made = problem(gpus=2, global_batch=1, usable_bytes=10**6)
    fixed: dict[str, ChoiceValue] = {
        "sequence_parallel": True,
        "rank_order": "tp-cp-dp-pp",
        "micro_batch": 1,
        "cp": 1,
    }
    pricer, space = pricer_of(made), StackSpace(made, Constraints(fixed=fixed))
    found = leanest(made, space, pricer)
    assert found.layout.violations(made.model, made.cluster, made.training) == []
    least = min(
        max(rank.total_bytes for rank in pricer.memory(choices.layout(made, space.others)))
        for choices in every_layout(space)
    )
    assert least <= max(found.prediction.peak_memory_bytes) <= 1.1 * least


def test_it_stops_at_one_that_fits() -> None:
    made = problem(gpus=2)
    found = leanest(made, StackSpace(made, Constraints()), pricer_of(made))
    assert found.prediction.memory_verdict == "fits"


def test_what_is_fixed_holds() -> None:
    made = problem(gpus=4)
    space = StackSpace(made, Constraints(fixed={"tp": 2, "recompute": "none", "offload": "none"}))
    found = leanest(made, space, pricer_of(made))
    assert found.layout.tp == 2
    assert found.layout.recompute[0].policy == "none"
    assert found.layout.offload == ()
