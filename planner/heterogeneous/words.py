"""What a plan over several node groups does on each, and why it is better than simpler uses."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.explain.shares import difference_in_words
from shardwright.specs import Candidate, Layout, Plan
from shardwright.specs.meshes import replica_sets
from shardwright.specs.rules import precision_violations
from shardwright.specs.units import format_bytes, format_seconds


def devices_in_words(plan: Plan) -> Iterator[str]:
    """Each pipeline rank: its devices, its layers, its memory; and what each set of replicas
    trains. Nothing where all ranks have the same grid on all devices."""
    layout, cluster, prediction = plan.layout, plan.cluster, plan.prediction
    if layout.stage_meshes is None:
        return
    for rank, mesh in enumerate(layout.stage_meshes):
        device = cluster.group_of(mesh.ranks[0]).accelerator.name
        grid = [f"tp {mesh.tp}", f"dp {mesh.dp}"]
        grid += [f"{name} {size}" for name, size in (("cp", mesh.cp), ("ep", mesh.ep)) if size > 1]
        layers = [
            f"{stage.layers[0]}-{stage.layers[1] - 1}"
            for stage in layout.stages
            if stage.rank == rank and stage.num_layers
        ]
        yield (
            f"pipeline rank {rank}: {len(mesh.ranks)} x {device}"
            f" ({mesh.ranks[0]}-{mesh.ranks[-1]}), {' '.join(grid)}, layers"
            f" {' '.join(layers) or 'none'}, {format_bytes(prediction.peak_memory_bytes[rank])} of"
            f" {format_bytes(prediction.capacity_of(rank))}"
        )
    yield from _shares_in_words(layout)
    idle = cluster.num_devices - layout.world
    if idle:
        yield f"{idle} of {cluster.num_devices} devices are not used"


def _shares_in_words(layout: Layout) -> Iterator[str]:
    if not layout.further_replicas:
        return
    for index, part in enumerate(replica_sets(layout)):
        count = part.dp * part.micro_batch * part.micro_batches
        yield (
            f"replica set {index}: {part.dp} x {part.micro_batches} micro-batches of"
            f" {part.micro_batch} = {count} sequences a step"
        )


def baselines_in_words(plan: Plan) -> Iterator[str]:
    """Each simpler use of the cluster with its step, and why the plan beats it, or is it."""
    chosen = Candidate(layout=plan.layout, prediction=plan.prediction)
    for baseline in plan.baselines:
        one = baseline.candidate
        if one is None:
            yield f"{baseline.name}: not possible: {baseline.reason or 'nothing fits'}"
            continue
        step = format_seconds(one.prediction.step_time_s)
        if one.layout == plan.layout:
            yield f"{baseline.name}: {step}, this is the plan"
            yield f"  {_why_no_more(plan, chosen)}"
            continue
        yield f"{baseline.name}: {step}, {difference_in_words(one, chosen)}"


def _why_no_more(plan: Plan, chosen: Candidate) -> str:
    """Why a plan that leaves out devices, or treats all alike, is not beaten by one over groups."""
    refused = [
        str(broken)
        for group in plan.cluster.groups
        for broken in precision_violations(
            plan.cluster.model_copy(update={"groups": (group,)}), plan.training
        )
    ]
    if refused:
        return f"other devices cannot be used: {'; '.join(dict.fromkeys(refused))}"
    known = "is faster" if plan.certificate.optimal else "faster was found"
    mixed = next((one for one in plan.alternatives if num_groups(plan, one.layout) > 1), None)
    if mixed is None:
        return f"over several groups nothing {known}"
    step = format_seconds(mixed.prediction.step_time_s)
    return (
        f"over several groups nothing {known}: the best that was tried takes {step},"
        f" {difference_in_words(mixed, chosen)}"
    )


def num_groups(plan: Plan, layout: Layout) -> int:
    """How many node groups the pipeline ranks of a layout are on; 1 where all count as alike."""
    meshes = layout.stage_meshes or ()
    return len({plan.cluster.group_index_of(mesh.ranks[0]) for mesh in meshes})
