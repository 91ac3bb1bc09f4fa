"""The space: its exact size, its rules, what is fixed and forbidden."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardwright.planner.choices import Choices
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.space import Space, _all_choices
from shardwright.specs import InputError, Layout
from tests.planner.conftest import ProblemFactory


def enumerated(problem: Problem) -> Iterator[tuple[Choices, Layout]]:
    """Every layout of the unconstrained space, one by one, with its choices."""
    for choices in _all_choices(problem):
        for cut in itertools.combinations(range(problem.num_layers + 1), choices.pp - 1):
            yield choices, choices.layout(problem, cut)


@pytest.mark.parametrize(
    ("num_layers", "num_devices", "global_batch"), [(3, 4, 8), (2, 6, 6), (1, 8, 4), (5, 3, 9)]
)
def test_counts_equal_enumeration(
    make_problem: ProblemFactory, num_layers: int, num_devices: int, global_batch: int
) -> None:
    problem = make_problem(num_layers, num_devices, global_batch)
    space = Space(problem, Constraints())
    layouts = list(enumerated(problem))
    broken = [
        choices
        for choices, layout in layouts
        if layout.violations(problem.model, problem.cluster, problem.training)
    ]
    assert space.considered == len(layouts)
    assert space.excluded_by_rules == len(broken)
    assert len({layout for _, layout in layouts}) > 0
    assert not set(broken) & set(space.valid)


def test_every_layout_is_counted_once(make_problem: ProblemFactory) -> None:
    problem = make_problem(num_layers=3, num_devices=4, global_batch=4)
    valid = set(Space(problem, Constraints()).valid)
    layouts = [layout for choices, layout in enumerated(problem) if choices in valid]
    assert len(set(layouts)) == len(layouts)


def test_large_spaces_are_counted_exactly(make_problem: ProblemFactory) -> None:
    problem = make_problem(num_layers=126, num_devices=64, global_batch=64)
    space = Space(problem, Constraints())
    assert space.considered > 10**36
    assert space.num_cuts(64) == math.comb(127, 63)


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        ({"tp": 2}, lambda c: c.tp == 2),
        ({"pp": 2, "schedule": "gpipe"}, lambda c: c.pp == 2 and c.schedule == "gpipe"),
        ({"num_microbatches": 4}, lambda c: c.num_microbatches == 4),
        ({"zero_shard_degree": 4}, lambda c: c.dp == 4 and c.zero > 0),
        ({"cp": 1}, lambda c: True),
        ({"sp": "off"}, lambda c: not c.sequence_parallel),
    ],
)
def test_fixing_keeps_exactly_what_agrees(
    make_problem: ProblemFactory, fixed: dict[str, Any], expected: Callable[[Choices], bool]
) -> None:
    problem = make_problem()
    free = Space(problem, Constraints()).valid
    kept = Space(problem, Constraints(fixed=fixed)).valid
    assert kept == tuple(choices for choices in free if expected(choices))
    assert kept


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("recompute", lambda c: c.recompute == "none"),
        ("zero3", lambda c: c.zero != 3),
        ("zero", lambda c: c.zero == 0),
        ("zero=1", lambda c: c.zero != 1),
        ("sp", lambda c: not c.sequence_parallel),
        ("gpipe", lambda c: c.schedule != "gpipe"),
        ("pp", lambda c: c.pp == 1),
        ("tp=4", lambda c: c.tp != 4),
        ("offload", lambda c: True),
        ("cp", lambda c: True),
    ],
)
def test_forbidding_removes_exactly_what_is_named(
    make_problem: ProblemFactory, name: str, allowed: Callable[[Choices], bool]
) -> None:
    problem = make_problem()
    free = Space(problem, Constraints()).valid
    kept = Space(problem, Constraints(forbidden=frozenset({name}))).valid
    assert kept == tuple(choices for choices in free if allowed(choices))


def test_fixed_boundaries_leave_one_cut_of_their_pp(make_problem: ProblemFactory) -> None:
    problem = make_problem(num_layers=4)
    space = Space(problem, Constraints(fixed={"stages": "0-1/1-4"}))
    assert space.fixed_boundaries == (1,)
    assert {choices.pp for choices in space.valid} == {2}
    assert space.num_cuts(2) == 1


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"fixed": {"tp": 3}}, "one of: 1, 2, 4"),
        ({"fixed": {"cp": 2}}, "cp is one of: 1"),
        ({"fixed": {"tp": 4, "pp": 4}}, "no layout has pp = 4"),
        ({"fixed": {"pp": 2, "stages": "0-1/1-2/2-4"}}, "3 stages are given"),
        ({"fixed": {"stages": "0-1/1-1/1-4"}}, "holds no layer"),
        ({"fixed": {"stages": "0-1/1-9"}}, "has 4 layers"),
        ({"forbidden": frozenset({"recomput"})}, "recompute"),
        ({"forbidden": frozenset({"tp", "pp", "dp"})}, "nothing is left"),
    ],
)
def test_impossible_constraints_are_refused(
    make_problem: ProblemFactory, constraints: dict[str, Any], message: str
) -> None:
    space = Space(make_problem(num_layers=4), Constraints(**constraints))
    with pytest.raises(InputError, match=message):
        len(space.valid)


@pytest.mark.parametrize("wrong", [{"top": 0}, {"time_limit_s": 0.0}, {"time_limit_s": -1.0}])
def test_questions_that_cannot_be_answered_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Constraints(**wrong)


def test_the_space_in_words_names_what_was_fixed_and_forbidden(
    make_problem: ProblemFactory,
) -> None:
    constraints = Constraints(fixed={"tp": 2}, forbidden=frozenset({"recompute"}))
    words = Space(make_problem(), constraints).in_words
    assert "fixed: tp = 2" in words
    assert "without recompute" in words
