"""Which layouts are timed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardwright.planner.trials.shortlist import read_layouts, shortlist
from shardwright.specs import Candidate, InputError, Plan
from tests.planner.trials import made
from tests.runtime.plans import plan_of


def _candidate(step_s: float, **choices: Any) -> Candidate:
    plan = plan_of(**choices)
    prediction = plan.prediction.model_copy(update={"step_time_s": step_s})
    return Candidate(layout=plan.layout, prediction=prediction)


@pytest.fixture
def plan() -> Plan:
    ties = (_candidate(1.2, dp=2, pp=2, micro_batch=2), _candidate(1.1, pp=4, micro_batch=2))
    others = (_candidate(1.1, pp=4, micro_batch=2), _candidate(2.0, dp=4, micro_batch=2))
    return plan_of(tp=4, micro_batch=4).model_copy(update={"ties": ties, "alternatives": others})


def test_the_plan_then_ties_then_alternatives_each_once(plan: Plan) -> None:
    found = shortlist(plan, 9)
    grids = [(one.layout.tp, one.layout.pp, one.layout.dp) for one in found]
    assert grids == [(4, 1, 1), (1, 4, 1), (1, 2, 2), (1, 1, 4)]
    assert shortlist(plan, 2) == found[:2]


def test_layouts_are_texts_or_objects() -> None:
    problem = made.problem()
    whole = plan_of(dp=4, micro_batch=2).layout.model_dump(mode="json")
    listed = ["tp=4,micro_batch=4", {"pp": 4, "micro_batch": 2}, whole, "tp=4,mb=4"]
    found, skipped = read_layouts(json.dumps(listed), problem, source="layouts.json")
    assert skipped == ()
    assert [one.layout.tp for one in found] == [4, 1, 1]
    assert found[2].layout.dp == 4
    assert found[0].prediction.step_time_s > 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "no list of layouts"),
        ("[]", "no list of layouts"),
        ("[3]", "layout 1 of here is 3"),
        ('["tp=3,micro_batch=1"]', "is not valid"),
        ('["speed=9"]', "speed"),
        ("[", "not valid JSON"),
    ],
)
def test_other_files_are_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_layouts(text, made.problem(), source="here")
