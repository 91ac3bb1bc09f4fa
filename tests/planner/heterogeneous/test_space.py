"""Which layouts over several groups there are, what closes them, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.bounds_text import parse_bounds
from shardwright.planner.heterogeneous.space import MixedSpace
from shardwright.planner.problem import Constraints
from tests.planner.heterogeneous.small import FAST, SLOW, every_layout, nodes, problem

MADE = problem(nodes(FAST), nodes(SLOW), global_batch=4)


def space(**constraints: Any) -> MixedSpace:
    return MixedSpace(MADE, Constraints(**constraints))


def count(found: MixedSpace) -> int:
    return sum(found.num_layouts(one) for one in found.arrangements)


def test_groups_are_segments_of_a_pipeline_or_replicas() -> None:
    assert set(space().arrangements) == {((0, 1),), ((1, 0),), ((0,), (1,))}
    three = problem(nodes(FAST), nodes(SLOW), nodes("dgx-h100"))
    # Of two groups 3 each; of three: 6 pipelines, 3 x 2 with one apart, all apart.
    assert len(MixedSpace(three, Constraints()).arrangements) == 3 * 3 + 6 + 6 + 1


def test_of_groups_that_are_alike_one_order_is_enough() -> None:
    twins = MixedSpace(problem(nodes(FAST), nodes(FAST)), Constraints())
    assert set(twins.arrangements) == {((0, 1),), ((0,), (1,))}
    assert "alike" in twins.in_words
    assert "alike" not in space().in_words


def test_a_group_that_does_not_compute_in_the_precision_is_left_out() -> None:
    bf16 = MADE.training.model_copy(update={"precision": "bf16"})
    found = MixedSpace(problem(nodes(FAST), nodes(SLOW)), Constraints())
    assert found.usable == (0, 1)
    made = MixedSpace(
        type(MADE)(MADE.model, bf16, MADE.profile, MADE.software), Constraints()
    )  # fmt: skip
    assert made.usable == (0,)
    assert made.arrangements == ()


@pytest.mark.parametrize(
    "constraints",
    [
        {"fixed": {"cp": 2}},
        {"fixed": {"vpp": 2}},
        {"fixed": {"num_microbatches": 2}},
        {"bounds": parse_bounds("cp>=2")},
        {"bounds": parse_bounds("num_microbatches<=2")},
    ],
)
def test_what_no_layout_over_groups_has_closes_the_space(constraints: dict[str, Any]) -> None:
    found = space(**constraints)
    assert found.arrangements == ()
    assert "nothing" in found.in_words


@pytest.mark.parametrize(
    ("constraints", "kept"),
    [
        ({"fixed": {"tp": 2}}, lambda one: all(s.tp == 2 for s in one.segments)),
        ({"forbidden": frozenset(["tp"])}, lambda one: all(s.tp == 1 for s in one.segments)),
        ({"forbidden": frozenset(["zero=3"])}, lambda one: one.zero < 3),
        ({"bounds": parse_bounds("tp<=1")}, lambda one: all(s.tp == 1 for s in one.segments)),
        ({"bounds": parse_bounds("zero>=2")}, lambda one: one.zero >= 2),
        ({"bounds": parse_bounds("micro_batch<=1")}, lambda one: one.micro_batch == 1),
    ],
)
def test_constraints_keep_what_they_say(constraints: dict[str, Any], kept: Any) -> None:
    everything, found = space().choices((0, 1)), space(**constraints).choices((0, 1))
    assert set(found) == {one for one in everything if kept(one)}
    assert 0 < len(found) < len(everything)


@pytest.mark.parametrize("fixed", [{"micro_batch": 1, "recompute": "none"}, {"zero": 0, "tp": 1}])
def test_the_count_is_that_of_layouts_listed_one_by_one(fixed: dict[str, Any]) -> None:
    layouts = list(every_layout(MADE, Constraints(fixed=fixed)))
    assert count(space(fixed=fixed)) == len(layouts) > 10
    assert len({one.model_dump_json() for one in layouts}) == len(layouts)
    for layout in layouts:
        assert layout.violations(MADE.model, MADE.cluster, MADE.training) == []


@pytest.mark.parametrize("groups", [(0,), (0, 1)])
def test_families_differ_in_zero_and_recompute_alone(groups: tuple[int, ...]) -> None:
    found = space()
    for family in found.families(groups):
        choices = list(family.choices())
        assert len(set(choices)) == len(choices) == family.size
        plain = {
            one._replace(zero=0, segments=tuple(s._replace(recompute="none") for s in one.segments))
            for one in choices
        }
        assert plain == {family.plain}
    plains = [family.plain for family in found.families(groups)]
    assert len(set(plains)) == len(plains)
