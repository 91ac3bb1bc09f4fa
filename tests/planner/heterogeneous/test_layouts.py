"""What a search decided becomes a layout that obeys the rules, device by device."""

from __future__ import annotations

from shardwright.planner.heterogeneous.layouts import (
    ChosenSet,
    group_layout,
    mixed_layout,
    set_layout,
)
from shardwright.planner.heterogeneous.space import Segment, SetChoice
from shardwright.specs import Layout
from shardwright.specs.meshes import replica_sets
from tests.planner.heterogeneous.small import FAST, SLOW, nodes, problem

MADE = problem(nodes(FAST, devices=4), nodes(SLOW, devices=2), global_batch=8)


def ranks(layout: Layout) -> list[tuple[int, ...]]:
    assert layout.stage_meshes is not None
    return [mesh.ranks for mesh in layout.stage_meshes]


def test_a_pipeline_fills_each_group_stage_by_stage() -> None:
    segments = (Segment(0, 2, 1, "full"), Segment(1, 1, 1, "none"))
    layout = set_layout(MADE, ChosenSet(SetChoice(segments, 2, 1, 1, 1), (4,), 4))
    assert ranks(layout) == [(0, 1, 2, 3), (4, 5)]
    assert [stage.layers for stage in layout.stages] == [(0, 3), (3, 4)]
    assert [one.policy for one in layout.recompute] == ["full", "none"]
    assert layout.violations(MADE.model, MADE.cluster, MADE.training) == []


def test_sets_of_replicas_are_listed_one_after_the_other() -> None:
    first = ChosenSet(SetChoice((Segment(0, 1, 2, "none"),), 2, 1, 1, 0), (3,), 3)
    second = ChosenSet(SetChoice((Segment(1, 2, 1, "none"),), 1, 2, 1, 0), (), 1)
    layout = mixed_layout(MADE, [first, second])
    assert ranks(layout) == [(0, 1), (2, 3), (4, 5)]
    assert layout.num_microbatches == (3, 1)
    assert layout.violations(MADE.model, MADE.cluster, MADE.training) == []
    parts = replica_sets(layout)
    for part, chosen in zip(parts, (first, second), strict=True):
        own = set_layout(MADE, chosen)
        assert part.stages == own.stages
        assert (part.tp, part.pp, part.dp, part.micro_batch) == (
            own.tp, own.pp, own.dp, own.micro_batch
        )  # fmt: skip


def test_one_set_is_a_layout_of_its_own() -> None:
    chosen = ChosenSet(SetChoice((Segment(0, 1, 1, "none"),), 4, 1, 1, 0), (), 2)
    assert mixed_layout(MADE, [chosen]) == set_layout(MADE, chosen)


def test_a_layout_of_one_group_is_on_its_devices() -> None:
    plain = Layout.of(MADE.model, MADE.training, pp=2)
    assert ranks(group_layout(MADE.cluster, 1, plain)) == [(4,), (5,)]
    inner = Layout.of(MADE.model, MADE.training, pp=2, dp=2, rank_order="tp-cp-pp-dp")
    assert ranks(group_layout(MADE.cluster, 0, inner)) == [(0, 2), (1, 3)]
