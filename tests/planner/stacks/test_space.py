"""The space is counted exactly, and its rules are those of layouts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.stacks.choices import Pipeline, StackChoices
from shardwright.planner.stacks.space import StackSpace
from shardwright.planner.stacks.splits import even_split
from shardwright.specs import InputError
from tests.planner.stacks.small import dense_problem, problem


def space_of(made: Problem, **options: Any) -> StackSpace:
    return StackSpace(made, Constraints(**options))


def by_hand(space: StackSpace) -> tuple[int, int]:
    """Layouts in all and by the rules, one by one, with `Layout.violations` as the judge."""
    made, considered, valid = space.problem, 0, 0
    for grid in space.grids:
        for cut in space.cuts(grid):
            for state in space.states(grid, cut):
                for pipeline in space.pipelines(grid.pp):
                    considered += 1
                    count = grid.pp * pipeline.vpp
                    if count > made.num_units:
                        continue
                    starts = even_split(made.num_units, count)
                    recompute = (space.recomputes[0],) * count
                    choices = StackChoices(
                        grid, cut, state, pipeline, space.loss_chunks[0], starts, recompute
                    )
                    try:
                        layout = choices.layout(made, space.others)
                    except ValidationError:
                        continue  # no rank is left to share experts
                    valid += not layout.violations(made.model, made.cluster, made.training)
    return considered, valid


@pytest.mark.parametrize(
    ("made", "fixed"),
    [
        (problem(gpus=2, global_batch=2), {"offload": "none"}),
        (problem(gpus=4, global_batch=2), {"zero": 1, "recompute": "none", "offload": "none"}),
        (problem(gpus=4, global_batch=2), {"zero_shard_degree": 2, "pp": 1}),
        (dense_problem(gpus=4, global_batch=4), {"recompute": "full", "loss_chunks": 100}),
    ],
)
def test_counts_are_those_of_a_list(made: Problem, fixed: dict[str, Any]) -> None:
    space = space_of(made, fixed=fixed)
    assert (space.considered, space.num_by_the_rules) == by_hand(space)
    assert 0 < space.num_by_the_rules < space.considered


def test_schedules_have_the_chunks_that_they_can_have() -> None:
    space = space_of(problem(gpus=2))
    assert space.pipelines(1) == [Pipeline("none", 1)]
    found = space.pipelines(2)
    assert Pipeline("1f1b", 1) in found
    assert Pipeline("zb-v", 2) in found
    assert Pipeline("interleaved-1f1b", 2) in found
    assert all(one.schedule != "gpipe" for one in found)
    assert space_of(problem(gpus=2), fixed={"schedule": "gpipe"}).pipelines(2) == [
        Pipeline("gpipe", 1)
    ]


def test_dense_models_have_no_experts_to_spread() -> None:
    space = space_of(dense_problem())
    assert {(cut.ep, cut.etp) for grid in space.valid for cut in space.cuts(grid)} == {(1, 1)}
    assert "ep" not in space.in_words.split(";")[1]


def test_policies_are_those_that_the_model_has_modules_for() -> None:
    assert space_of(problem()).recomputes == [
        "none", "selective:norm+mlp_act+moe_act+mla_up_proj", "full"
    ]  # fmt: skip
    assert space_of(dense_problem()).recomputes == ["none", "selective:norm+mlp_act", "full"]
    assert space_of(problem(), fixed={"recompute": "full:2"}).recomputes == ["full:2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fixed": {"tp": 3}}, "tp is one of: 1, 2, 4"),
        ({"forbidden": frozenset({"everything"})}, "'everything' is not a choice"),
        ({"forbidden": frozenset({"stages=0-4"})}, "boundaries cannot be forbidden"),
        (
            {"fixed": {"offload": "optimizer"}, "forbidden": frozenset({"offload"})},
            "nothing is left",
        ),
        ({"fixed": {"pp": 1, "schedule": "zb-v"}}, "nothing is left"),
    ],
)
def test_what_leaves_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        _ = space_of(problem(), **options).grids, space_of(problem(), **options).others


def test_a_fixed_degree_against_the_rules_names_the_rule() -> None:
    space = space_of(problem(), fixed={"ep": 3})
    assert space.valid == ()
    assert any("does not divide the 4 experts" in str(one) for one in space.violations())


def test_endless_spaces_are_refused() -> None:
    with pytest.raises(InputError, match="fewer divisors"):
        _ = space_of(problem(gpus=720720, global_batch=720720)).grids


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("selective", ["none", "full"]),
        ("mlp_act", ["none", "selective:norm+moe_act+mla_up_proj", "full"]),
        ("core_attn", ["none", "selective:norm+mlp_act+moe_act+mla_up_proj", "full"]),
        ("full", None),
        ("recompute", ["none"]),
    ],
)
def test_kinds_of_recomputation_can_be_forbidden(name: str, left: list[str] | None) -> None:
    space = space_of(problem(), forbidden=frozenset({name}))
    if left is None:
        with pytest.raises(InputError, match="not a choice that can be forbidden"):
            _ = space.recomputes
    else:
        assert space.recomputes == left


def test_norms_alone_are_no_policy() -> None:
    assert space_of(dense_problem(), forbidden=frozenset({"mlp_act"})).recomputes == [
        "none", "full"
    ]  # fmt: skip


def test_parts_of_stages_may_be_recomputed_unless_that_is_forbidden() -> None:
    assert space_of(problem()).may_be_partial
    assert not space_of(problem(), forbidden=frozenset({"partial_recompute"})).may_be_partial
    assert not space_of(problem(), fixed={"recompute": "full"}).may_be_partial


def test_without_uneven_stages_layers_are_shared_out_evenly() -> None:
    space = space_of(problem(), forbidden=frozenset({"uneven_stages"}))
    assert space.boundaries(2) == (2,)
    assert space.boundaries(1) == ()
    layers = space.problem.num_layers
    for pp in (1, 2, 4):
        assert all(layers % (pp * one.vpp) == 0 for one in space.pipelines(pp))
    assert {one.vpp for one in space.pipelines(2)} == {1, 2}
    fixed = space_of(
        problem(), fixed={"stages": "0-1/1-4"}, forbidden=frozenset({"uneven_stages"})
    )  # fmt: skip
    assert fixed.boundaries(2) == (1,)
