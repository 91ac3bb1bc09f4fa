"""What is offloaded has to fit the hosts."""

from __future__ import annotations

from dataclasses import replace

from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.engine import engine_for
from shardwright.planner.host_memory import host_overflow_in_words
from shardwright.planner.layouts import layout_of
from shardwright.planner.problem import Constraints, Problem
from tests.planner.stacks.small import problem


def with_host(made: Problem, host_bytes: int | None) -> Problem:
    (group,) = made.cluster.groups
    group = group.model_copy(update={"host_memory_bytes": host_bytes})
    devices = made.cluster.model_copy(update={"groups": (group,)})
    return replace(made, profile=made.profile.model_copy(update={"devices": devices}))


def pricer(made: Problem) -> StackModel:
    return stack_model(made.model, made.training, made.profile, made.software)


def test_the_bytes_of_a_node_decide() -> None:
    made = problem()
    layout = layout_of(made, {"offload": "optimizer"})
    needed = max(pricer(made).host_bytes(layout)) * made.cluster.groups[0].devices_per_node
    assert needed > 0
    enough, too_little = with_host(made, needed), with_host(made, needed - 1)
    assert host_overflow_in_words(pricer(enough), layout) is None
    words = host_overflow_in_words(pricer(too_little), layout)
    assert words is not None
    assert "1 more than" in words
    assert f"{needed:,} bytes" in words
    assert host_overflow_in_words(pricer(with_host(made, None)), layout) is None
    assert host_overflow_in_words(pricer(too_little), layout_of(made, {})) is None


def test_a_search_returns_nothing_that_the_hosts_cannot_hold() -> None:
    made = with_host(problem(), 1)
    engine, limits = engine_for(made), Constraints(fixed={"offload": "optimizer"})
    assert engine.search(limits).ranking == ()
    assert "host memory" in engine.reasons(limits)[0]
    assert engine.search(Constraints()).ranking
