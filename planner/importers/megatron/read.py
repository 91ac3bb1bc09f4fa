"""Reads a Megatron-LM job: a launch script, a list of arguments, or a YAML file of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shardwright.planner.importers.assembling import layout_from_choices
from shardwright.planner.importers.launchers import Launch
from shardwright.planner.importers.megatron.arguments import Arguments, parse_arguments
from shardwright.planner.importers.megatron.bodies import num_kv_heads
from shardwright.planner.importers.megatron.config_files import zero_stage_of
from shardwright.planner.importers.megatron.hybrid import layers_of_pattern
from shardwright.planner.importers.megatron.layout import (
    Grid,
    context_degree,
    degree,
    grid_of,
    number_of,
    stated_recompute,
)
from shardwright.planner.importers.megatron.model import Shape, has_experts, model_of
from shardwright.planner.importers.megatron.software import software_of
from shardwright.planner.importers.megatron.sources import Found, find_launch
from shardwright.planner.importers.megatron.training import stated_precision, training_of
from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.registry import TARGET
from shardwright.planner.problem import ChoiceValue
from shardwright.specs import InputError, ModelSpec, TrainingSpec

_ENVIRONMENT = (
    "CUDA_", "NCCL_", "NVTE_", "TORCH_", "PYTORCH_", "OMP_", "UCX_", "MUSA_", "MCCL_", "HIP_",
    "HSA_", "RCCL_", "FI_", "GLOO_", "TP_SOCKET", "WORLD_SIZE", "RANK", "LOCAL_", "MASTER_",
    "TRITON_", "HCCL_", "ASCEND_", "GPU_MAX", "NVSHMEM_", "TE_", "ENABLE_", "NVLINK_", "USE_",
    "ACCELERATOR_", "CUBLAS",
)  # fmt: skip


@dataclass(slots=True)
class _Notes:
    assumed: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def read_megatron(
    path: Path, *, given: Mapping[str, str] | None = None, more: Iterable[str] = (),
    model: ModelSpec | None = None, world: int | None = None,
) -> Reading:  # fmt: skip
    """What a file says of a Megatron-LM job.

    ``given``: variables that the user gives to the script (``1`` is its first argument); they hold
    against its own assignments. ``more``: options behind those of the script. ``model`` and
    ``world``: in place of what the script says of the model and the number of devices.

    Raises:
        InputError: it is no such file, starts no training, or contradicts itself.
    """
    found = find_launch(path, given or {})
    found.launch.arguments = (*found.launch.arguments, *more)
    if world is not None:
        found.launch.gpus = world
    try:
        return _reading(path, found, model)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the model"
        raise InputError(
            f"{path}: {where}: {first['msg']} (of {first['input']!r:.60})"
            if first["loc"] else f"{path}: {first['msg']}",
            fix="correct the script",
        ) from None  # fmt: skip


def _reading(path: Path, found: Found, model: ModelSpec | None) -> Reading:
    launch = found.launch
    arguments = parse_arguments(launch.arguments, found.unknowns)
    notes = _Notes(unread=[*found.notes, *launch.unread, *arguments.unread])
    if model is None:
        shape = model_of(arguments, launch.program, path.stem)
    else:
        shape = Shape(model, notes=_differences(arguments, model))
    notes.assumed |= shape.assumed
    notes.unread += shape.notes
    if shape.missing:
        notes.unread.append(f"the model: {', '.join(shape.missing)} are not given" if len(
            shape.missing) > 1 else f"the model: {shape.missing[0]} is not given")  # fmt: skip
    zero_stage = zero_stage_of(arguments, found.read)
    grid = grid_of(
        arguments,
        _num_layers(arguments, shape),
        zero_stage,
        has_experts=has_experts(arguments, shape.spec),
    )
    notes.unread += grid.unread
    notes.conflicts += grid.conflicts
    world = _world(launch, grid.choices)
    dp = _data_parallel(world, arguments, grid, notes)
    training = training_of(arguments, dp=dp, assumed=notes.assumed, unread=notes.unread)
    if training is None:
        notes.unread.append("the batch or the sequence length is not stated")
    elif dp is not None:
        _check_batch(training, grid.choices, dp, notes)
    choices = _with_shards(arguments, grid.choices, dp)
    notes.conflicts += [
        f"{_NO_GRID} is not known: --{name}: {reason}"
        for name, reason in arguments.lost.items()
        if name in _OF_THE_GRID
    ]
    layout = None
    if not _impossible(notes) and dp is not None:
        layout = layout_from_choices(shape.spec, training, choices, world)
    return Reading(
        source=str(path), target=TARGET, model=shape.spec, training=training, layout=layout,
        choices=choices, gpus=world, nodes=launch.nodes, gpus_per_node=launch.gpus_per_node,
        accelerator=launch.accelerator, software=software_of(arguments),
        environment=environment_of(launch, found), arguments=tuple(arguments.as_read),
        stated=_stated(arguments, launch, grid, dp, world, zero_stage, notes),
        assumed=notes.assumed, unread=tuple(dict.fromkeys(notes.unread)),
        conflicts=tuple(dict.fromkeys(notes.conflicts)),
    )  # fmt: skip


def _differences(arguments: Arguments, model: ModelSpec) -> list[str]:
    """Sizes of the script that the model which the user names does not have."""
    sizes = {
        "num-layers": model.decoder.num_layers, "hidden-size": model.decoder.hidden_size,
    }  # fmt: skip
    return [
        f"--{name} {arguments.count(name)}: {model.name} has {size}, which holds"
        for name, size in sizes.items()
        if arguments.count(name) not in (None, size)
    ]


def _impossible(notes: _Notes) -> bool:
    return any(text.startswith(_NO_GRID) for text in notes.conflicts)


_NO_GRID = "the grid"
_OF_THE_GRID = frozenset(
    ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
     "expert-model-parallel-size", "expert-tensor-parallel-size", "micro-batch-size",
     "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank",
     "pipeline-model-parallel-layout", "decoder-first-pipeline-num-layers",
     "decoder-last-pipeline-num-layers", "recompute-granularity", "recompute-method",
     "recompute-num-layers", "recompute-modules", "zero-stage")
)  # fmt: skip


def _num_layers(arguments: Arguments, shape: Shape) -> int | None:
    if shape.spec is not None:
        return shape.spec.decoder.num_layers
    pattern = arguments.text("hybrid-layer-pattern")
    return len(layers_of_pattern(pattern)) if pattern else arguments.count("num-layers")


def _world(launch: Launch, choices: Mapping[str, ChoiceValue]) -> int | None:
    """Ranks in all; a program that nothing starts on several devices has one."""
    if launch.gpus is not None or launch.launcher != "python":
        return launch.gpus
    product = math.prod(number_of(choices, name) for name in ("tp", "cp", "pp"))
    return 1 if product == 1 and not launch.unread else None


def _data_parallel(
    world: int | None, arguments: Arguments, grid: Grid, notes: _Notes
) -> int | None:
    """Ranks with different data; None where the world is not known or does not divide."""
    if world is None:
        notes.unread.append("the number of devices is not stated")
        return None
    degrees = [degree(arguments, "tensor-model-parallel-size"), grid.stages.pp,
               context_degree(arguments)]  # fmt: skip
    product = math.prod(degrees)
    if world % product:
        notes.conflicts.append(
            f"{_NO_GRID} does not fit: {world} devices are no multiple of tp x pp x cp ="
            f" {' x '.join(map(str, degrees))} = {product}"
        )
        return None
    experts = number_of(grid.choices, "ep") * number_of(grid.choices, "etp")
    if world // grid.stages.pp % experts:
        notes.conflicts.append(
            f"{world // grid.stages.pp} devices of a stage are no multiple of ep x etp = {experts}"
        )
    return world // product


def _check_batch(
    training: TrainingSpec, choices: Mapping[str, ChoiceValue], dp: int, notes: _Notes
) -> None:
    share = dp * number_of(choices, "micro_batch")
    if training.global_batch % share:
        notes.conflicts.append(
            f"the batch of {training.global_batch} is no multiple of micro-batch x dp ="
            f" {choices.get('micro_batch', 1)} x {dp} = {share}"
        )


def _with_shards(
    arguments: Arguments, choices: dict[str, ChoiceValue], dp: int | None
) -> dict[str, ChoiceValue]:
    """With the ranks that share the optimizer's state, where several sets of ranks each do."""
    instances = degree(arguments, "num-distributed-optimizer-instances")
    if instances == 1 or dp is None or not choices.get("zero"):
        return choices
    ranks = dp * number_of(choices, "cp")
    inner = ranks * number_of(choices, "tp")
    edp = inner // (number_of(choices, "ep") * number_of(choices, "etp"))
    if ranks % instances:
        return choices
    return {
        **choices,
        "zero_shard_degree": ranks // instances,
        "expert_zero_shard_degree": max(1, edp // instances),
    }


def environment_of(launch: Launch, found: Found) -> dict[str, str]:
    """The variables that training software reads."""
    return {
        name: found.unknowns.shown(value)
        for name, value in sorted(launch.environment.items())
        if name.startswith(_ENVIRONMENT)
    }


def _stated(
    arguments: Arguments, launch: Launch, grid: Grid, dp: int | None, world: int | None,
    zero_stage: int | None, notes: _Notes,
) -> dict[str, Any]:  # fmt: skip
    """What the script itself says; None for what it leaves to defaults."""
    stages = grid.stages
    per_rank = stages.per_rank
    is_uneven = per_rank is not None and len(set(per_rank)) > 1 and stages.conflict is None
    experts = arguments.count("num-experts")
    heads = arguments.count("num-attention-heads")
    groups = None if heads is None else num_kv_heads(arguments, heads)
    has_vpp = stages.vpp > 1 or arguments.has("num-virtual-stages-per-pipeline-rank")
    zero = arguments.whole("zero-stage")
    return {
        "target": TARGET,
        "tp": arguments.count("tensor-model-parallel-size"),
        "pp": arguments.count("pipeline-model-parallel-size"),
        "cp": arguments.count("context-parallel-size")
        or arguments.count("ds-sequence-parallel-size"),
        "ep": arguments.count("expert-model-parallel-size"),
        "etp": arguments.count("expert-tensor-parallel-size"),
        "vpp": stages.vpp if has_vpp else None,
        "dp": dp,
        "world": world,
        "nodes": launch.nodes,
        "gpus_per_node": launch.gpus_per_node,
        "micro_batch": arguments.count("micro-batch-size"),
        "global_batch": arguments.count("global-batch-size"),
        "seq_len": arguments.count("seq-length") or arguments.count("encoder-seq-length"),
        "layers": arguments.count("num-layers"),
        "hidden": arguments.count("hidden-size"),
        "heads": heads,
        "kv_heads": arguments.count("num-query-groups") and groups,
        "ffn": arguments.count("ffn-hidden-size"),
        "vocab": arguments.count("vocab-size")
        or arguments.count("padded-vocab-size")
        or arguments.count("pad-vocab-size-to"),
        "experts": experts,
        "topk": arguments.count("moe-router-topk"),
        "moe_ffn": arguments.count("moe-ffn-hidden-size"),
        "mla": arguments.has("multi-latent-attention"),
        "stages": list(per_rank) if is_uneven and per_rank is not None else None,
        "virtual_stages": None if stages.letters is None else list(stages.letters),
        "precision": stated_precision(arguments),
        "recompute": stated_recompute(arguments),
        "sequence_parallel": arguments.has("sequence-parallel"),
        "distributed_optimizer": arguments.has("use-distributed-optimizer"),
        "zero_stage": zero if zero is not None else zero_stage,
        "consistent": not any("no multiple" in text for text in notes.conflicts),
    }
