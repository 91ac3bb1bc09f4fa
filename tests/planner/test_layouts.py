"""Layouts from named choices and back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shardwright.planner.layout_text import parse_choices
from shardwright.planner.layouts import even_boundaries, layout_in_words, layout_of
from shardwright.specs import InputError
from tests.planner.conftest import ProblemFactory


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
        "pp=2,vpp=2,dp=2,micro_batch=1,recompute=full:1/none/none/full:1,schedule=zb-v,"
        "stages=0-1/1-2/2-3/3-4",
        "cp=2,dp=2,cp_kind=all_gather,micro_batch=1,zero=3,zero_shard_degree=2,"
        "reshard_after_forward=false,offload=activations+optimizer,loss_chunks=4,compile=true",
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
    [
        ({"stages": (2, 5)}, "has 4 layers"),
        ({"stages": (2, 4), "pp": 3}, "2 stages are given"),
        ({"stages": (1, 2, 4), "vpp": 2}, "3 stages are given"),
    ],
)
def test_stages_that_do_not_fit_are_refused(
    make_problem: ProblemFactory, choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        layout_of(make_problem(num_layers=4), choices)
