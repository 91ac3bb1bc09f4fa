"""Layouts with grids of their own by pipeline rank: taken apart, and every broken rule."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shardwright.specs import ClusterSpec, Layout, ReplicaSet, StageMesh
from shardwright.specs.meshes import on_mesh, replica_sets
from tests.specs.small import group, model, tier, training


def two_groups() -> ClusterSpec:
    """Two groups of four devices."""
    own = group(num_nodes=1, devices=4)
    return ClusterSpec(name="two", groups=(own, own), between_groups=tier("ethernet", 1e9))


def mesh(first: int, **degrees: int) -> StageMesh:
    degrees.setdefault("tp", 1)
    size = degrees.get("tp", 1) * degrees.get("dp", 1) * degrees.get("cp", 1)
    return StageMesh(ranks=tuple(range(first, first + size)), **degrees)


def across(**update: Any) -> Layout:
    """A pipeline over both groups: tp 2 on the first, 1 on the second, whose rest is idle."""
    layout = Layout.of(
        model(), training(), tp=2, pp=2, dp=2, sequence_parallel=True,
        stage_meshes=(mesh(0, tp=2, dp=2), mesh(4, tp=1, dp=2)),
    )  # fmt: skip
    return layout.model_copy(update=update)


def by_sets() -> Layout:
    """Two replicas of one stage on the first group, one of two stages on the second."""
    first = Layout.of(model(), training(), dp=4)
    second = Layout.of(model(), training(), pp=2)
    stages = [
        one.model_copy(update={"stage": one.stage + 1, "rank": one.rank + 1})
        for one in second.stages
    ]
    batch = training().global_batch
    return first.model_copy(
        update={
            "stages": (*first.stages, *stages),
            "recompute": (*first.recompute, *second.recompute),
            "stage_meshes": (mesh(0, dp=4), mesh(4), mesh(5)),
            "num_microbatches": ((batch - 4) // 4, 4),
            "further_replicas": (ReplicaSet(pp=2),),
        }
    )


def rules(layout: Layout) -> list[str]:
    return [one.rule for one in layout.violations(model(), two_groups(), training())]


def test_valid_layouts_break_nothing() -> None:
    assert rules(across()) == []
    assert rules(by_sets()) == []
    assert across().world == 6
    assert by_sets().world == 6
    assert by_sets().num_pipeline_ranks == 3


def test_sets_of_replicas_count_from_nothing() -> None:
    first, second = replica_sets(by_sets())
    assert (first.dp, first.pp, second.dp, second.pp) == (4, 1, 1, 2)
    assert [stage.stage for stage in second.stages] == [0, 1]
    assert [stage.rank for stage in second.stages] == [0, 1]
    assert second.micro_batches == 4
    assert second.stage_meshes == (mesh(4), mesh(5))
    assert replica_sets(across()) == (across(),)


def test_a_grid_is_a_layout_of_equal_stages() -> None:
    layout = across(zero=1)
    assert layout.stage_meshes is not None
    wide, narrow = (on_mesh(layout, one) for one in layout.stage_meshes)
    assert (wide.tp, wide.sequence_parallel, wide.stage_meshes) == (2, True, None)
    assert (narrow.tp, narrow.sequence_parallel) == (1, False)
    assert narrow.zero_shard_degree == 2


@pytest.mark.parametrize(
    ("meshes", "rule"),
    [
        ((mesh(0, tp=2, dp=2), StageMesh(ranks=(4,), tp=1, dp=2)), "mesh_size"),
        ((mesh(0, tp=2, dp=2), mesh(7, dp=2)), "mesh_ranks"),
        ((mesh(0, tp=2, dp=2), mesh(3, dp=2)), "mesh_group"),
        ((mesh(0, tp=2, dp=2), mesh(2, dp=2)), "mesh_ranks"),
        ((mesh(0, tp=2, dp=2), mesh(4)), "mesh_dp"),
        ((mesh(0, tp=1, dp=2), mesh(4, dp=2)), "mesh_size"),
    ],
)
def test_grids_that_cannot_be(meshes: tuple[StageMesh, ...], rule: str) -> None:
    assert rule in rules(across(stage_meshes=meshes))


def test_all_sequences_are_trained_once() -> None:
    layout = by_sets()
    assert "batch" in rules(layout.model_copy(update={"num_microbatches": (1, 1)}))


def test_grids_obey_the_rules_of_the_model() -> None:
    heads = across(tp=4, stage_meshes=(mesh(0, tp=3), mesh(4, dp=1)), dp=1)
    assert rules(heads)


def test_lists_must_match() -> None:
    fields = {name: getattr(by_sets(), name) for name in Layout.model_fields}
    with pytest.raises(ValidationError, match="3 pipeline ranks, but 2 stage_meshes"):
        Layout(**fields | {"stage_meshes": (mesh(0, dp=4), mesh(4))})
    with pytest.raises(ValidationError, match="num_microbatches for each set"):
        Layout(**fields | {"num_microbatches": 4})


def test_the_group_is_known_of_each_rank() -> None:
    found = two_groups()
    assert [found.group_index_of(rank) for rank in (0, 3, 4, 7)] == [0, 0, 1, 1]
    assert found.ranks_of(1) == range(4, 8)
    with pytest.raises(IndexError):
        found.group_index_of(8)
