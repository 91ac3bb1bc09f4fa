"""The search's answer is the best of all, and its books add up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import Progress
from shardwright.planner.stacks.search import StackResult, search_stacks
from shardwright.planner.stacks.space import StackSpace
from shardwright.specs import Certificate, InputError
from tests.planner.stacks.small import (
    brute_force,
    dense_problem,
    draw_problem,
    every_layout,
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


def small_enough(seed: int) -> bool:
    drawn = draw_problem(seed)
    if drawn is None:
        return False
    layouts = every_layout(StackSpace(*drawn))
    return sum(1 for _ in itertools.islice(layouts, MOST + 1)) <= MOST


MOST = 3000
"""Layouts of one problem."""
SEEDS = [seed for seed in range(160) if small_enough(seed)]


def test_enough_problems_are_listed_whole() -> None:
    assert len(SEEDS) >= 10


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_is_that_of_all_layouts(seed: int) -> None:
    drawn = draw_problem(seed)
    assert drawn is not None
    brute, result = brute_force(*drawn), search_stacks(*drawn, pricer_of(drawn[0]))
    assert result.certificate.optimal
    assert adds_up(result.certificate)
    if brute.best is None:
        assert result.ranking == ()
        return
    found = result.ranking[0]
    assert found.prediction.step_time_s == pytest.approx(brute.best_s, rel=1e-9)
    made = drawn[0]
    assert found.layout.violations(made.model, made.cluster, made.training) == []
    assert found.prediction.memory_verdict == "fits"


def test_rows_are_distinct_and_in_order() -> None:
    result = search_in(dense_problem(), fixed={"offload": "none", "zero": 1}, top=5)
    assert len(result.ranking) == 5
    steps = [one.prediction.step_time_s for one in result.ranking]
    assert steps == sorted(steps)
    assert len({one.layout for one in result.ranking}) == 5
    assert all(one.prediction.memory_verdict == "fits" for one in result.ranking)


def test_equal_questions_have_equal_answers() -> None:
    fixed = {"offload": "none", "sp": False, "zero": 1}
    one, other = search_in(dense_problem(), fixed=fixed), search_in(dense_problem(), fixed=fixed)
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
    result = search_in(problem(), fixed=fixed, top=1, time_limit_s=0.05)
    assert getattr(result.ranking[0].layout, field) == value
    assert adds_up(result.certificate)


def test_fixed_recompute_offload_and_stages_hold() -> None:
    fixed = {"pp": 2, "vpp": 1, "recompute": "full:1/none", "offload": "optimizer",
             "stages": "0-1/1-4"}  # fmt: skip
    layout = search_in(problem(), fixed=fixed, top=1).ranking[0].layout
    assert [stage.layers for stage in layout.stages] == [(0, 1), (1, 4)]
    assert [entry.policy for entry in layout.recompute] == ["full", "none"]
    assert layout.offload == ("optimizer",)


@pytest.mark.parametrize("name", ["cp", "ep", "etp", "pp", "sp", "recompute", "zero", "zb-v"])
def test_what_is_forbidden_is_not_there(name: str) -> None:
    result = search_in(problem(), forbidden=frozenset({name}), time_limit_s=0.05)
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


def test_a_host_that_is_too_small_holds_nothing() -> None:
    made = problem(gpus=2, global_batch=2, usable_bytes=20_000_000)
    assert all(one.layout.offload for one in search_in(made, top=3).ranking)
    (group,) = made.profile.devices.groups
    group = group.model_copy(update={"host_memory_bytes": 2**20})
    devices = made.profile.devices.model_copy(update={"groups": (group,)})
    profile = made.profile.model_copy(update={"devices": devices})
    result = search_in(replace(made, profile=profile))
    assert result.ranking == ()
    assert adds_up(result.certificate)


def test_what_the_software_lacks_is_left_out_unless_it_is_fixed() -> None:
    made = problem(gpus=4)
    software = made.software.model_copy(update={"lacks": ("pp", "offload", "zb-v")})
    lacking = replace(made, software=software)
    result = search_in(lacking, top=5)
    assert {one.layout.pp for one in result.ranking} == {1}
    assert "lacks: pp, offload, zb-v" in result.certificate.space
    fixed = search_in(lacking, fixed={"pp": 2, "schedule": "zb-v"}, top=1).ranking[0].layout
    assert (fixed.pp, fixed.schedule) == (2, "zb-v")


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


@pytest.mark.parametrize(("vpp", "usable_bytes"), [(1, 28_000_000), (2, 36_000_000)])
def test_stages_are_uneven_unless_the_software_has_no_such(vpp: int, usable_bytes: int) -> None:
    made, fixed = problem(usable_bytes=usable_bytes), {"pp": 2, "vpp": vpp}
    best = search_in(made, fixed=fixed, top=1).ranking[0].layout
    assert len({stage.num_layers for stage in best.stages}) > 1
    lacks = ("uneven_stages", "partial_recompute", "selective")
    made = replace(made, software=made.software.model_copy(update={"lacks": lacks}))
    result = search_in(made, fixed=fixed)
    assert result.certificate.optimal
    for one in result.ranking:
        assert {stage.num_layers for stage in one.layout.stages} == {made.num_layers // 2 // vpp}
        assert all(entry.policy in ("none", "full") for entry in one.layout.recompute)
        assert all(entry.num_layers is None for entry in one.layout.recompute)
    assert "lacks: uneven_stages, partial_recompute, selective" in result.certificate.space
