"""Layouts from what a search decided: grids on devices, boundaries, counts of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.planner.heterogeneous.space import Segment, SetChoice
from shardwright.planner.layout_text import recompute_from
from shardwright.planner.problem import Problem
from shardwright.specs import ClusterSpec, Layout, Recompute, ReplicaSet, StageMesh


@dataclass(frozen=True, slots=True)
class ChosenSet:
    """One set of replicas, decided."""

    choice: SetChoice
    starts: tuple[int, ...]
    """The first unit of each pipeline rank but the first; unit 0 is the embedding."""
    num_micro_batches: int


def set_layout(problem: Problem, chosen: ChosenSet) -> Layout:
    """A set of replicas on its devices, as a layout of its own."""
    choice, first = chosen.choice, chosen.choice.segments[0]
    return Layout.of(
        problem.model, problem.training,
        boundaries=tuple(unit - 1 for unit in chosen.starts),
        recompute=_recompute(choice),
        tp=first.tp, pp=choice.pp, dp=choice.dp, ep=choice.ep, micro_batch=choice.micro_batch,
        num_microbatches=chosen.num_micro_batches, zero=choice.zero,
        sequence_parallel=any(segment.tp > 1 for segment in choice.segments),
        stage_meshes=_meshes(problem.cluster, choice),
    )  # fmt: skip


def mixed_layout(problem: Problem, chosen: Sequence[ChosenSet]) -> Layout:
    """All sets of replicas together."""
    parts = [set_layout(problem, one) for one in chosen]
    first, others = parts[0], parts[1:]
    if not others:
        return first
    stages, recompute, meshes = list(first.stages), list(first.recompute), []
    meshes = list(first.stage_meshes or ())
    for part in others:
        offset, ranks = len(stages), len(meshes)
        stages += [
            stage.model_copy(update={"stage": stage.stage + offset, "rank": stage.rank + ranks})
            for stage in part.stages
        ]
        recompute += part.recompute
        meshes += part.stage_meshes or ()
    fields = {name: getattr(first, name) for name in Layout.model_fields}
    return Layout(**fields | {
        "stages": tuple(stages), "recompute": tuple(recompute), "stage_meshes": tuple(meshes),
        "num_microbatches": tuple(part.micro_batches for part in parts),
        "sequence_parallel": any(part.sequence_parallel for part in parts),
        "further_replicas": tuple(
            ReplicaSet(pp=part.pp, micro_batch=part.micro_batch, zero=part.zero) for part in others
        ),
    })  # fmt: skip


def group_layout(cluster: ClusterSpec, group: int, layout: Layout) -> Layout:
    """A layout of one group's devices alone, on these devices of the whole cluster."""
    first = cluster.ranks_of(group)[0]
    size, inner, pp, dp = layout.tp * layout.cp * layout.dp, layout.tp * layout.cp, layout.pp, (
        layout.dp)  # fmt: skip
    meshes = []
    for rank in range(pp):
        if layout.rank_order == "tp-cp-dp-pp":
            devices = range(first + rank * size, first + (rank + 1) * size)
            ranks = tuple(devices)
        else:
            ranks = tuple(
                first + (replica * pp + rank) * inner + at
                for replica in range(dp)
                for at in range(inner)
            )
        meshes.append(
            StageMesh(ranks=ranks, tp=layout.tp, cp=layout.cp, dp=dp, ep=layout.ep, etp=layout.etp)
        )
    return layout.model_copy(update={"stage_meshes": tuple(meshes)})


def _recompute(choice: SetChoice) -> tuple[Recompute, ...]:
    return tuple(
        entry
        for segment in choice.segments
        for entry in recompute_from(segment.recompute, segment.pp)
    )


def _meshes(cluster: ClusterSpec, choice: SetChoice) -> tuple[StageMesh, ...]:
    return tuple(
        _mesh(cluster, choice, segment, stage)
        for segment in choice.segments
        for stage in range(segment.pp)
    )


def _mesh(cluster: ClusterSpec, choice: SetChoice, segment: Segment, stage: int) -> StageMesh:
    size = segment.tp * choice.dp
    first = cluster.ranks_of(segment.group)[0] + stage * size
    ranks = tuple(range(first, first + size))
    return StageMesh(ranks=ranks, tp=segment.tp, dp=choice.dp, ep=choice.ep)
