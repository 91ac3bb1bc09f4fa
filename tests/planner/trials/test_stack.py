"""Profiles that are priced by a stack's numbers learn by calibration."""

from __future__ import annotations

import pytest

from shardwright.planner.problem import Problem
from shardwright.planner.trials.stack import correct_stack
from shardwright.planner.trials.terms import Timed
from shardwright.specs import InputError
from tests.cost_models.profiles import cluster, profile
from tests.planner.calibration import hidden
from tests.planner.trials import made


def test_hidden_numbers_are_approached() -> None:
    jobs = hidden.runs(hidden.TAUGHT[:3])
    case = jobs[0].case
    problem = Problem(case.model, case.training, case.profile, case.software)
    timed = [Timed(job.layouts[0], job.row.step_time_s or 0.0, ()) for job in jobs]
    found = correct_stack(problem, timed, source="a trial")
    before, after = (found.median_error(timed, when) or 0.0 for when in ("before", "after"))
    assert before > 0
    assert after < before / 2
    assert found.profile.software == case.software


def test_ranks_on_cores_are_refused() -> None:
    devices = cluster(num_nodes=2, ranks_per_node=2)
    group = devices.groups[0]
    cpu = group.accelerator.model_copy(update={"vendor": "cpu"})
    devices = devices.model_copy(
        update={"groups": (group.model_copy(update={"accelerator": cpu}),)}
    )
    base = made.problem()
    problem = Problem(base.model, base.training, profile(devices), base.software)
    with pytest.raises(InputError, match="cannot correct"):
        correct_stack(problem, made.timed({}), source="a trial")
