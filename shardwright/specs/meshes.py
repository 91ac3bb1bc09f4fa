"""Layouts whose pipeline ranks have grids of their own: on unequal devices, or on some of them.

A layout is taken apart into its sets of replicas (`replica_sets`), and these into one layout of
equal stages for each pipeline rank (`on_mesh`), to which every rule and every price applies as it
is.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardwright.specs.rules import Violation, precision_violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardwright.specs.cluster import ClusterSpec
    from shardwright.specs.layout import Layout, StageMesh
    from shardwright.specs.model import ModelSpec
    from shardwright.specs.training import TrainingSpec


def replica_sets(layout: Layout) -> tuple[Layout, ...]:
    """Each set of replicas as a layout of its own, its stages and pipeline ranks counted from 0."""
    if not layout.further_replicas:
        return (layout,)
    from shardwright.specs.layout import ScheduleName

    assert layout.stage_meshes is not None
    assert isinstance(layout.num_microbatches, tuple)
    counts, found = layout.num_microbatches, []
    first_stage, first_rank = layout.pp * layout.vpp, layout.pp
    found.append(_slice(layout, 0, first_stage, 0, layout.pp, {"num_microbatches": counts[0]}))
    for one, count in zip(layout.further_replicas, counts[1:], strict=True):
        fields = {
            "pp": one.pp, "vpp": 1, "micro_batch": one.micro_batch, "zero": one.zero,
            "num_microbatches": count,
            "schedule": ScheduleName.ONE_F_ONE_B if one.pp > 1 else None,
        }  # fmt: skip
        mesh = layout.stage_meshes[first_rank]
        fields |= {name: getattr(mesh, name) for name in ("tp", "cp", "dp", "ep", "etp")}
        found.append(_slice(layout, first_stage, one.pp, first_rank, one.pp, fields))
        first_stage, first_rank = first_stage + one.pp, first_rank + one.pp
    return tuple(found)


def _slice(
    layout: Layout,
    stage: int,
    num_stages: int,
    rank: int,
    num_ranks: int,
    fields: Mapping[str, object],
) -> Layout:
    assert layout.stage_meshes is not None
    stages = tuple(
        one.model_copy(update={"stage": one.stage - stage, "rank": one.rank - rank})
        for one in layout.stages[stage : stage + num_stages]
    )
    return layout.model_copy(
        update={
            "further_replicas": (),
            "stages": stages,
            "recompute": layout.recompute[stage : stage + num_stages],
            "stage_meshes": layout.stage_meshes[rank : rank + num_ranks],
            **fields,
        }
    )


def on_mesh(part: Layout, mesh: StageMesh) -> Layout:
    """A set of replicas as if all its stages had the grid of ``mesh``, sharded over its dp."""
    tp, cp, dp, ep, etp = mesh.tp, mesh.cp, mesh.dp, mesh.ep, mesh.etp
    shards = dp * cp if part.zero else 1
    expert_shards = max(1, tp * cp * dp // (etp * ep)) if part.zero else 1
    return part.model_copy(
        update={
            "tp": tp, "cp": cp, "dp": dp, "ep": ep, "etp": etp, "stage_meshes": None,
            "sequence_parallel": part.sequence_parallel and tp > 1,
            "zero_shard_degree": shards, "expert_zero_shard_degree": expert_shards,
        }
    )  # fmt: skip


def mesh_violations(
    layout: Layout, model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec
) -> list[Violation]:
    """All broken rules of a layout with ``stage_meshes``, with their numbers."""
    found = list(_device_violations(layout, cluster))
    if found:
        return found
    parts = replica_sets(layout)
    found += _batch_violations(layout, parts, training)
    for part in parts:
        assert part.stage_meshes is not None
        for mesh in dict.fromkeys(part.stage_meshes):
            found += on_mesh(part, mesh).grid_violations(model, training)
        found += _set_violations(part)
    assert layout.stage_meshes is not None
    used = dict.fromkeys(cluster.group_index_of(mesh.ranks[0]) for mesh in layout.stage_meshes)
    in_use = cluster.model_copy(update={"groups": tuple(cluster.groups[i] for i in used)})
    found += precision_violations(in_use, training)
    return list(dict.fromkeys(found))


def _device_violations(layout: Layout, cluster: ClusterSpec) -> Iterator[Violation]:
    """Meshes that are no grids of devices of one group, each used once."""
    assert layout.stage_meshes is not None
    for rank, mesh in enumerate(layout.stage_meshes):
        size = mesh.tp * mesh.cp * mesh.dp
        if len(mesh.ranks) != size:
            yield Violation(
                "mesh_size",
                f"pipeline rank {rank} has {len(mesh.ranks)} devices for tp x cp x dp = {size}",
                f"{size} devices",
            )
        beyond = [one for one in mesh.ranks if one >= cluster.num_devices]
        if beyond or not mesh.ranks:
            yield Violation(
                "mesh_ranks",
                f"pipeline rank {rank} is on device {beyond[0] if beyond else 'none'}, but the"
                f" cluster has {cluster.num_devices}",
            )
            continue
        groups = sorted({cluster.group_index_of(one) for one in mesh.ranks})
        if len(groups) > 1:
            yield Violation(
                "mesh_group",
                f"pipeline rank {rank} is on devices of the node groups"
                f" {' and '.join(map(str, groups))}, which no grid spans",
                "devices of one group",
            )
    uses = Counter(one for mesh in layout.stage_meshes for one in mesh.ranks)
    twice = [one for one, count in uses.items() if count > 1]
    if twice:
        yield Violation("mesh_ranks", f"device {twice[0]} is used {uses[twice[0]]} times")


def _batch_violations(
    layout: Layout, parts: tuple[Layout, ...], training: TrainingSpec
) -> Iterator[Violation]:
    """Over all sets of replicas: a sequence is counted once."""
    counts = layout.num_microbatches
    listed = counts if isinstance(counts, tuple) else (counts,)
    if len(listed) != len(parts):
        yield Violation(
            "batch", f"num_microbatches has {len(listed)} entries for {len(parts)} sets of replicas"
        )
        return
    total = 0
    for part, count in zip(parts, listed, strict=True):
        assert part.stage_meshes is not None
        total += part.stage_meshes[0].dp * part.micro_batch * count
    if total != training.global_batch:
        yield Violation(
            "batch",
            f"dp x micro_batch x num_microbatches over all replicas is {total}, not global_batch ="
            f" {training.global_batch}",
        )


def _set_violations(part: Layout) -> Iterator[Violation]:
    """Pipeline ranks of one set exchange micro-batches: each with the same dp."""
    assert part.stage_meshes is not None
    first = part.stage_meshes[0]
    different = sorted({mesh.dp for mesh in part.stage_meshes})
    if len(different) > 1:
        yield Violation(
            "mesh_dp",
            f"the pipeline ranks of one set of replicas have dp = {different}",
            f"dp = {first.dp} on each",
        )
    for name in ("tp", "cp", "dp", "ep", "etp"):
        if getattr(part, name) != getattr(first, name):
            yield Violation(
                "mesh_size",
                f"{name} = {getattr(part, name)}, but the first pipeline rank has"
                f" {getattr(first, name)}",
                f"{name} = {getattr(first, name)}",
            )
