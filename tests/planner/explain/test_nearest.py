"""What comes nearest changes as little as can be, and says what."""

from __future__ import annotations

import pytest

from shardwright.planner.engine import engine_for
from shardwright.planner.explain.nearest import nearest_layout
from shardwright.planner.layout_text import parse_choices
from shardwright.planner.problem import Bound, Constraints
from tests.planner.stacks.small import problem

ENGINE = engine_for(problem(gpus=8, global_batch=8))


@pytest.mark.parametrize(
    ("asked", "given_up"),
    [
        ("tp=3", "tp = 4 in place of 3"),
        ("ep=3,tp=2", "ep = 4 in place of 3"),
        ("tp=2,micro_batch=5", "micro_batch = 4 in place of 5"),
        ("dp=8,micro_batch=2", "micro_batch = 1 in place of 2"),
    ],
)
def test_one_count_changes_to_the_nearest(asked: str, given_up: str) -> None:
    found = nearest_layout(ENGINE, parse_choices(asked), Constraints())
    assert found is not None
    assert found.given_up == given_up
    assert found.candidate.prediction.memory_verdict == "fits"


def test_where_one_change_is_not_enough_the_last_named_goes_first() -> None:
    found = nearest_layout(ENGINE, parse_choices("pp=2,tp=3,dp=3"), Constraints())
    assert found is not None
    assert found.candidate.layout.pp == 2
    assert "tp = " in found.given_up
    assert "dp = " in found.given_up


def test_what_is_bounded_besides_holds_and_nothing_is_nothing() -> None:
    kept = Constraints(bounds=(Bound("tp", "<=", 2),))
    found = nearest_layout(ENGINE, parse_choices("tp=3"), kept)
    assert found is not None
    assert found.candidate.layout.tp == 2
    impossible = Constraints(bounds=(Bound("peak_memory", "<=", 1.0),))
    assert nearest_layout(ENGINE, parse_choices("tp=3"), impossible) is None
