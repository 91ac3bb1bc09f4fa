"""The text of choices, and layouts from them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from shardwright.planner.choices import (
    Choices,
    even_boundaries,
    layout_in_words,
    layout_of,
    parse_choices,
)
from shardwright.specs import InputError
from tests.planner.conftest import ProblemFactory


def test_text_becomes_names_and_values() -> None:
    text = "tp=8, pp=2,sp=on,mb=4,zero=3,recompute=full,schedule=gpipe,stages=0-5/5-10"
    assert parse_choices(text) == {
        "tp": 8, "pp": 2, "sequence_parallel": True, "micro_batch": 4, "zero": 3,
        "recompute": "full", "schedule": "gpipe", "stages": (5, 10),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "name=value"),
        ("tpp=8", "choose one of .*tp"),
        ("micro_bach=2", "micro_batch"),
        ("tp=0", "not a count"),
        ("tp=-2", "not a count"),
        ("tp=two", "not a count"),
        ("tp=²", "not a count"),
        ("tp=2,tp=4", "2 times"),
        ("sp=on,sequence_parallel=off", "2 times"),
        ("zero=2", "0, 1, 3"),
        ("recompute=some", "none, full"),
        ("schedule=zb", "1f1b, gpipe"),
        ("sp=maybe", "true"),
        ("stages=5", "0-5/5-10"),
        ("stages=0-5/6-10", "does not cover"),
        ("stages=1-5", "does not cover"),
        ("stages=0-5/5-3", "does not cover"),
    ],
)
def test_bad_text_is_refused_with_what_would_do(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_choices(text)


@pytest.mark.parametrize("pp", [1, 2, 3, 6])
def test_even_boundaries_give_every_stage_a_unit(make_problem: ProblemFactory, pp: int) -> None:
    problem = make_problem(num_layers=4)
    bounds = [-1, *even_boundaries(problem, pp), problem.num_layers + 1]
    sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
    assert sum(sizes) == problem.num_units
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "dp=4,micro_batch=2,zero=3",
        "tp=2,dp=2,micro_batch=1,sequence_parallel=true",
        "pp=2,dp=2,micro_batch=4,zero=1,recompute=full,schedule=gpipe,stages=0-0/0-4",
    ],
)
def test_words_describe_the_layout_that_they_came_from(
    make_problem: ProblemFactory, text: str
) -> None:
    problem = make_problem()
    layout = layout_of(problem, parse_choices(text))
    assert layout.violations(problem.model, problem.cluster, problem.training) == []
    assert layout_of(problem, parse_choices(layout_in_words(layout))) == layout
    for part in text.split(","):
        assert part in layout_in_words(layout).split(",")


def test_dp_fills_the_world(make_problem: ProblemFactory) -> None:
    assert layout_of(make_problem(num_devices=4), {"tp": 2}).dp == 2


@pytest.mark.parametrize(
    ("choices", "message"),
    [({"stages": (2, 5)}, "has 4 layers"), ({"stages": (2, 4), "pp": 3}, "2 stages are given")],
)
def test_stages_that_do_not_fit_are_refused(
    make_problem: ProblemFactory, choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        layout_of(make_problem(num_layers=4), choices)


def test_plainer_choices_have_smaller_keys() -> None:
    plain = Choices(1, 2, 2, 1, 4, 0, False, "none", "1f1b")
    changes: list[dict[str, Any]] = [
        {"zero": 1}, {"recompute": "full"}, {"schedule": "gpipe"}, {"micro_batch": 2}
    ]  # fmt: skip
    for change in changes:
        assert plain.key < replace(plain, **change).key
