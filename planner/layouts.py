"""Layouts from named choices, and the named choices of a layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardwright.planner.layout_text import DEGREES, SHARD_DEGREES, recompute_from, recompute_text
from shardwright.planner.problem import ChoiceValue, Problem
from shardwright.specs import InputError, Layout
from shardwright.specs.meshes import on_mesh, replica_sets
from shardwright.specs.ranges import MOST_DEVICES, MOST_LAYERS


def even_boundaries(problem: Problem, num_stages: int) -> tuple[int, ...]:
    """The layers at which stages 1, 2, ... start where units are spread as evenly as possible.

    Stages hold a unit at least, so that the first may be the embedding alone and the last the head.
    """
    base, extra = divmod(problem.num_units, num_stages)
    return tuple(stage * base + min(stage, extra) - 1 for stage in range(1, num_stages))


def boundaries_of(stops: tuple[int, ...], problem: Problem) -> tuple[int, ...]:
    """Boundaries of a parsed ``stages`` value; raises `InputError` where they do not fit."""
    if stops[-1] != problem.num_layers:
        raise InputError(
            f"the stages end at layer {stops[-1]}, but {problem.model.name} has"
            f" {problem.num_layers} layers",
            fix=f"let the last stage stop at {problem.num_layers}",
        )
    return stops[:-1]


def layout_of(problem: Problem, choices: Mapping[str, ChoiceValue]) -> Layout:
    """The layout that the named choices describe; what they leave open takes its plainest value.

    ``dp`` is what remains of the world. Rules are not checked here: see `Layout.violations`.
    """
    given: dict[str, Any] = dict(choices)
    stops = given.pop("stages", None)
    if isinstance(stops, tuple):
        _match_stages(given, stops)
        given["boundaries"] = boundaries_of(stops, problem)
    degrees = {name: int(given.get(name, 1)) for name in DEGREES}
    _check_sizes(degrees)
    if "dp" not in given:
        given["dp"] = max(1, problem.world // (degrees["tp"] * degrees["cp"] * degrees["pp"]))
    num_stages = degrees["pp"] * degrees["vpp"]
    if "boundaries" not in given and degrees["vpp"] == 1 and degrees["pp"] <= problem.num_units:
        given["boundaries"] = even_boundaries(problem, degrees["pp"])
    if given.get("schedule") == "none":
        del given["schedule"]
    offload = str(given.pop("offload", "none"))
    if offload != "none":
        given["offload"] = tuple(offload.split("+"))
    given["recompute"] = recompute_from(str(given.get("recompute", "none")), num_stages)
    return Layout.of(problem.model, problem.training, **given)


def _match_stages(given: dict[str, Any], stops: tuple[int, ...]) -> None:
    """Take pp from the number of stages, or check it."""
    vpp = int(given.get("vpp", 1))
    if len(stops) % vpp == 0 and given.setdefault("pp", len(stops) // vpp) * vpp == len(stops):
        return
    pp = given.get("pp", 1)
    raise InputError(
        f"pp = {pp}{f' x vpp = {vpp}' if vpp > 1 else ''}, but {len(stops)} stages are given",
        fix=f"give pp x vpp = {pp * vpp} stages, or set pp to fit them",
    )


def _check_sizes(degrees: Mapping[str, int]) -> None:
    """Refuse, before a stage is made, degrees that no cluster and no model has together."""
    world = math.prod(degrees[name] for name in ("tp", "cp", "pp", "dp"))
    if world > MOST_DEVICES:
        raise InputError(
            f"tp x cp x pp x dp = {world:,} is more devices than any cluster has",
            fix=f"keep the product at {MOST_DEVICES:,} or less",
        )
    num_stages = degrees["pp"] * degrees["vpp"]
    if num_stages > MOST_LAYERS:
        raise InputError(
            f"pp x vpp = {num_stages:,} is more stages than any model has layers",
            fix="lower pp or vpp",
        )


def named_choices(layout: Layout) -> dict[str, ChoiceValue]:
    """A layout's own values of all names that do not follow from the others."""
    named: dict[str, ChoiceValue] = {name: getattr(layout, name) for name in DEGREES}
    named |= {
        "cp_kind": layout.cp_kind,
        "micro_batch": layout.micro_batch,
        "zero": layout.zero,
        **{name: getattr(layout, name) for name in SHARD_DEGREES},
        "reshard_after_forward": layout.reshard_after_forward,
        "sequence_parallel": layout.sequence_parallel,
        "recompute": recompute_text(layout.recompute),
        "offload": "+".join(sorted(layout.offload)) or "none",
        "loss_chunks": layout.loss_chunks,
        "compile": layout.compile,
        "schedule": "none" if layout.schedule is None else str(layout.schedule),
        "rank_order": layout.rank_order,
        "stages": tuple(stage.layers[1] for stage in layout.stages),
    }
    return named


def layout_in_words(layout: Layout) -> str:
    """The choices of a layout as `parse_choices` reads them, without the plainest values.

    Where pipeline ranks have grids of their own, also their devices, and every set of replicas.
    """
    if layout.stage_meshes is not None:
        return " + ".join(map(_meshes_in_words, replica_sets(layout)))
    named, plain = named_choices(layout), _plain(layout)
    parts = [
        f"{name}={str(value).lower()}" for name, value in named.items()
        if name != "stages" and value != plain[name]
    ]  # fmt: skip
    if layout.pp > 1:
        ranges = (f"{stage.layers[0]}-{stage.layers[1]}" for stage in layout.stages)
        parts.append(f"stages={'/'.join(ranges)}")
    return ",".join(parts)


def _meshes_in_words(part: Layout) -> str:
    """One set of replicas: ``tp=4/2`` where the tp of its pipeline ranks differ."""
    meshes = part.stage_meshes
    assert meshes is not None
    words = layout_in_words(on_mesh(part, max(meshes, key=lambda mesh: mesh.tp)))
    degrees = [str(mesh.tp) for mesh in meshes]
    if len(set(degrees)) > 1:
        rest = [one for one in words.split(",") if not one.startswith("tp=")]
        words = ",".join([f"tp={'/'.join(degrees)}", *rest])
    devices = "/".join(f"{mesh.ranks[0]}-{mesh.ranks[-1]}" for mesh in meshes)
    return f"{words},num_microbatches={part.micro_batches},devices={devices}"


def _plain(layout: Layout) -> dict[str, ChoiceValue | None]:
    """What `layout_in_words` leaves out; micro_batch is always said."""
    edp = layout.world_size.edp or 1
    return {
        **dict.fromkeys(DEGREES, 1),
        "cp_kind": "ring",
        "micro_batch": None,
        "zero": 0,
        "zero_shard_degree": layout.dp * layout.cp if layout.zero else 1,
        "expert_zero_shard_degree": edp if layout.zero else 1,
        "reshard_after_forward": True,
        "sequence_parallel": False,
        "recompute": "none",
        "offload": "none",
        "loss_chunks": 1,
        "compile": False,
        "schedule": "none",
        "rank_order": "tp-cp-dp-pp",
    }
