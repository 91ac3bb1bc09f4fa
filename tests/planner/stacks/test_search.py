"""The search's answer is the best of all, and its books add up."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import Progress
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.search import StackResult, search_stacks
from shardwright.planner.stacks.space import StackSpace
from shardwright.specs import Certificate, InputError
from tests.planner.stacks.small import (
    dense_problem,
    every_leaf,
    layout_of,
    pricer_of,
    problem,
)

GIB = 2**30


def search_in(made: Problem, **options: Any) -> StackResult:
    return search_stacks(made, Constraints(**options), pricer_of(made))


def adds_up(found: Certificate) -> bool:
    parts = (
        found.excluded_by_rules, found.excluded_by_memory, found.excluded_by_bound,
        found.excluded_by_dominance, found.simulated,
    )  # fmt: skip
    return found.considered == sum(parts) and min(parts) >= 0


def brute_force(made: Problem, **options: Any) -> tuple[float, int]:
    """The best step of all that fit, and how many layouts obey the rules."""
    pricer, space = pricer_of(made), StackSpace(made, Constraints(**options))
    best_s, count = math.inf, 0
    for choices, leaf in every_leaf(space, StackPrices(made, space, pricer)):
        layout = layout_of(made, choices, leaf, space)
        count += 1
        if pricer.verdict(pricer.memory(layout)) == "fits":
            best_s = min(best_s, pricer.step_time_s(layout))
    return best_s, count


@pytest.mark.parametrize(
    "usable_bytes", [80 * GIB, 620_000_000], ids=["plenty of memory", "little memory"]
)
def test_the_best_is_that_of_all_layouts(usable_bytes: int) -> None:
    made = problem(gpus=2, global_batch=4, usable_bytes=usable_bytes)
    result = search_in(made)
    best_s, count = brute_force(made)
    assert result.certificate.optimal
    assert adds_up(result.certificate)
    by_rules = result.certificate.considered - result.certificate.excluded_by_rules
    assert result.certificate.simulated < count <= by_rules
    assert result.ranking[0].prediction.step_time_s == pytest.approx(best_s, rel=1e-9)


def test_the_best_of_four_ranks_is_that_of_all_layouts() -> None:
    fixed = {"zero": 1, "micro_batch": 1}
    made = problem(gpus=4, global_batch=4)
    best_s, _ = brute_force(made, fixed=fixed)
    found = search_in(made, fixed=fixed).ranking[0]
    assert found.prediction.step_time_s == pytest.approx(best_s, rel=1e-9)
    assert found.layout.violations(made.model, made.cluster, made.training) == []


def test_rows_are_distinct_and_in_order() -> None:
    result = search_in(dense_problem(), top=5)
    assert len(result.ranking) == 5
    steps = [one.prediction.step_time_s for one in result.ranking]
    assert steps == sorted(steps)
    assert len({one.layout for one in result.ranking}) == 5
    assert all(one.prediction.memory_verdict == "fits" for one in result.ranking)


def test_equal_questions_have_equal_answers() -> None:
    one, other = search_in(dense_problem()), search_in(dense_problem())
    assert one.ranking == other.ranking
    assert one.ties == other.ties


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("tp", 2, "tp"), ("cp", 2, "cp"), ("pp", 2, "pp"), ("dp", 2, "dp"), ("ep", 2, "ep"),
        ("etp", 2, "etp"), ("micro_batch", 2, "micro_batch"), ("zero", 3, "zero"),
        ("sp", True, "sequence_parallel"), ("schedule", "zb-h1", "schedule"),
        ("schedule", "gpipe", "schedule"), ("vpp", 2, "vpp"), ("loss_chunks", 4, "loss_chunks"),
        ("compile", True, "compile"), ("num_microbatches", 2, "num_microbatches"),
        ("zero_shard_degree", 2, "zero_shard_degree"), ("cp_kind", "all_gather", "cp_kind"),
    ],
)  # fmt: skip
def test_what_is_fixed_holds(name: str, value: Any, field: str) -> None:
    fixed = {name: value} | ({"cp": 2} if name == "cp_kind" else {})
    result = search_in(problem(), fixed=fixed, top=1)
    assert getattr(result.ranking[0].layout, field) == value
    assert adds_up(result.certificate)


def test_fixed_recompute_offload_and_stages_hold() -> None:
    fixed = {"pp": 2, "recompute": "full:1/none", "offload": "optimizer", "stages": "0-1/1-4"}
    layout = search_in(problem(), fixed=fixed, top=1).ranking[0].layout
    assert [stage.layers for stage in layout.stages] == [(0, 1), (1, 4)]
    assert [entry.policy for entry in layout.recompute] == ["full", "none"]
    assert layout.offload == ("optimizer",)


@pytest.mark.parametrize("name", ["cp", "ep", "etp", "pp", "sp", "recompute", "zero", "zb-v"])
def test_what_is_forbidden_is_not_there(name: str) -> None:
    result = search_in(problem(), forbidden=frozenset({name}))
    plain = {"sp": ("sequence_parallel", False), "zero": ("zero", 0)}
    for one in result.ranking:
        if name == "zb-v":
            assert one.layout.schedule != "zb-v"
        elif name == "recompute":
            assert {entry.policy for entry in one.layout.recompute} == {"none"}
        else:
            field, value = plain.get(name, (name, 1))
            assert getattr(one.layout, field) == value
    assert adds_up(result.certificate)


def test_nothing_fits_into_nothing_and_the_books_say_so() -> None:
    result = search_in(problem(usable_bytes=10**6))
    assert result.ranking == ()
    assert adds_up(result.certificate)
    assert result.certificate.excluded_by_bound == 0


def test_a_time_limit_gives_an_answer_with_its_gap() -> None:
    result = search_in(problem(gpus=8, global_batch=64), time_limit_s=1e-9)
    assert result.ranking
    assert adds_up(result.certificate)
    assert result.certificate.optimal == (result.certificate.gap == 0)


def test_contradictions_are_refused() -> None:
    for options in ({"fixed": {"tp": 3}}, {"fixed": {"pp": 1, "schedule": "1f1b"}},
                    {"fixed": {"zero": 1}, "forbidden": frozenset({"zero"})}):  # fmt: skip
        with pytest.raises(InputError):
            search_in(problem(), **options)


def test_progress_is_told() -> None:
    told: list[Progress] = []
    made = dense_problem()
    search_stacks(made, Constraints(), pricer_of(made), told.append)
    assert told
    assert told[-1].simulated >= 1
