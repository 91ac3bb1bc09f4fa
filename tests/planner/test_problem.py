"""What is asked: the counts of a problem, and constraints that cannot be met by any answer."""

from __future__ import annotations

import math

import pytest

from shardwright.planner.problem import Bound, Constraints
from shardwright.specs import InputError
from tests.planner.conftest import ProblemFactory


@pytest.mark.parametrize(("layers", "devices"), [(1, 1), (4, 6)])
def test_a_problem_counts_devices_layers_and_units(
    make_problem: ProblemFactory, layers: int, devices: int
) -> None:
    problem = make_problem(num_layers=layers, num_devices=devices)
    assert problem.world == devices
    assert problem.cluster is problem.profile.devices
    assert problem.num_layers == layers
    assert problem.num_units == layers + 2  # embedding before them, final norm with head behind


def test_by_default_nothing_is_decided() -> None:
    constraints = Constraints()
    assert not constraints.fixed
    assert not constraints.forbidden
    assert constraints.time_limit_s is None
    assert constraints.top >= 1


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        ({"top": 0}, "top = 0"),
        ({"top": -2}, "top = -2"),
        ({"time_limit_s": 0.0}, r"time limit of 0\.0 s"),
        ({"time_limit_s": -1.5}, r"time limit of -1\.5 s"),
        ({"time_limit_s": math.nan}, "time limit of nan s"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for_is_refused_with_its_value(
    choices: dict[str, object], names: str
) -> None:
    with pytest.raises(InputError, match=names) as refused:
        Constraints(**choices)  # type: ignore[arg-type]
    assert refused.value.fix


def test_limits_that_can_be_met_are_kept() -> None:
    constraints = Constraints(top=1, time_limit_s=0.25, fixed={"tp": 2})
    assert (constraints.top, constraints.time_limit_s, constraints.fixed) == (1, 0.25, {"tp": 2})


def test_bounds_are_kept_by_numbers_and_concern_nothing_else() -> None:
    limits = Constraints(
        bounds=(Bound("tp", "<=", 4), Bound("tp", ">=", 2), Bound("zero", ">=", 1))
    )
    assert [value for value in (1, 2, 4, 8) if limits.allows("tp", value)] == [2, 4]
    assert limits.allows("pp", 64)
    assert limits.allows("recompute", "full")
    assert limits.allows("tp", True)  # a switch is no number
    assert limits.are_any
    assert not Constraints().are_any


def test_the_least_memory_limit_counts() -> None:
    limits = Constraints(bounds=(Bound("peak_memory", "<=", 8.0), Bound("peak_memory", "<=", 6.0)))
    assert limits.most_bytes == 6.0
    assert Constraints().most_bytes is None
