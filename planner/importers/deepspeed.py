"""Reads a DeepSpeed configuration: batch, precision, ZeRO, offloading and optimizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.stated import stated_of
from shardwright.planner.layout_text import normalise_choices
from shardwright.specs import InputError
from shardwright.specs.plan import read_text

_MARKS = (
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "bfloat16",
    "fp16", "optimizer", "gradient_accumulation_steps",
)  # fmt: skip
_READ = {
    *_MARKS, "gradient_clipping", "scheduler", "tensor_parallel", "data_types", "steps_per_print",
    "communication_data_type", "wall_clock_breakdown", "zero_allow_untested_optimizer", "pipeline",
    "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comms_logger", "dump_state",
    "sequence_parallel_size", "prescale_gradients", "gradient_predivide_factor", "checkpoint",
    "train_micro_batch_size_per_gpu", "zero_force_ds_cpu_optimizer", "activation_checkpointing",
    "memory_breakdown", "data_efficiency", "curriculum_learning", "compile",
}  # fmt: skip
"""Fields that are read, or that change neither layout nor price."""


def read_deepspeed(path: Path, *, world: int | None = None) -> Reading:
    """What a JSON file says of a job; ``world``: ranks, which such a file does not say.

    The model and the sequence length are those of the training script, so that no layout can be
    built from it alone; ``choices`` hold on any world.

    Raises:
        InputError: the file is no JSON, or not DeepSpeed's.
    """
    fields = _load(path)
    unread: list[str] = []
    conflicts: list[str] = []
    choices = normalise_choices(_choices(fields, unread))
    micro, count = choices.get("micro_batch"), choices.get("num_microbatches")
    batch = _number(fields, "train_batch_size")
    world = _world(choices, batch, world, conflicts)
    precision = _precision(fields, unread, conflicts)
    unread += [f"field {name}" for name in sorted(set(fields) - _READ)]
    unread.append("model and sequence length are those of the training script")
    stated = stated_of(
        "deepspeed", choices=choices, model=None, training=None, layout=None, world=world,
        consistent=not conflicts,
    )  # fmt: skip
    optimizer = fields.get("optimizer")
    stated |= {
        "global_batch": batch,
        "num_microbatches": count,
        "micro_batch": micro,
        "precision": precision,
        "optimizer": optimizer.get("type") if isinstance(optimizer, dict) else None,
    }
    return Reading(
        source=str(path),
        target="deepspeed",
        choices=choices,
        gpus=world,
        stated=stated,
        unread=tuple(unread),
        conflicts=tuple(conflicts),
    )


def _load(path: Path) -> dict[str, Any]:
    text = read_text(path, what="DeepSpeed")
    fix = "name the JSON file that --deepspeed or --deepspeed_config gets"
    try:
        fields = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}", fix=fix) from None
    if not isinstance(fields, dict) or not any(mark in fields for mark in _MARKS):
        raise InputError(
            f"{path} is no configuration of DeepSpeed: it has none of {', '.join(_MARKS)}", fix=fix
        )
    return fields


def _number(fields: Mapping[str, Any], name: str) -> int | None:
    """A count; None where it is left to the script (``auto``) or absent."""
    value = fields.get(name)
    if value is None or value == "auto":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}, not a count", fix="give 1, 2, 3, ... or auto")
    return value


def _choices(fields: Mapping[str, Any], unread: list[str]) -> dict[str, Any]:
    zero = fields.get("zero_optimization", {})
    if isinstance(zero, bool):
        zero = {"stage": int(zero)}  # as before stages had numbers
    if not isinstance(zero, dict):
        raise InputError("zero_optimization is no object", fix='write {"stage": 2}')
    found: dict[str, Any] = {"zero": _stage(zero, unread)}
    for name, ours in (("train_micro_batch_size_per_gpu", "micro_batch"),
                       ("gradient_accumulation_steps", "num_microbatches")):  # fmt: skip
        value = _number(fields, name)
        if value is not None:
            found[ours] = value
    offload = [
        ours
        for ours, old in (("optimizer", "cpu_offload"), ("parameters", "cpu_offload_params"))
        if _is_offloaded(zero, "offload_optimizer" if ours == "optimizer" else "offload_param", old)
    ]
    if offload:
        found["offload"] = "+".join(offload)
    shard = zero.get("mics_shard_size")
    if isinstance(shard, int) and shard > 1:
        found["zero_shard_degree"] = shard
    if zero.get("zero_hpz_partition_size", 1) not in (1, None):
        unread.append("zero_hpz_partition_size: a second copy of the weights within each node")
    for name in ("zero_quantized_weights", "zero_quantized_gradients"):
        if zero.get(name):
            unread.append(f"{name}: collectives in fewer bits")
    found |= _tensor(fields, unread)
    return found


def _stage(zero: Mapping[str, Any], unread: list[str]) -> int:
    stage = zero.get("stage", 0)
    if stage == "auto":
        unread.append("zero_optimization.stage is left to the script")
        return 0
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise InputError(f"zero_optimization.stage is {stage!r}", fix="give 0, 1, 2 or 3")
    return int(stage)


def _is_offloaded(zero: Mapping[str, Any], name: str, old: str) -> bool:
    inner = zero.get(name)
    if isinstance(inner, dict):
        return inner.get("device", "none") not in ("none", None)
    return bool(zero.get(old, False))


def _tensor(fields: Mapping[str, Any], unread: list[str]) -> dict[str, Any]:
    """Tensor and sequence parallelism; stages of a pipeline are code."""
    found: dict[str, Any] = {}
    tensor = fields.get("tensor_parallel", {})
    size = tensor.get("autotp_size", 0) if isinstance(tensor, dict) else 0
    if isinstance(size, int) and size > 1:
        found["tp"] = size
    sequence = fields.get("sequence_parallel_size", 1)
    if isinstance(sequence, int) and sequence > 1:
        found |= {"cp": sequence, "cp_kind": "all_to_all"}
    pipeline = fields.get("pipeline", {})
    stages = pipeline.get("stages") if isinstance(pipeline, dict) else None
    if isinstance(stages, int) and stages > 1:
        found["pp"] = stages
    checkpointing = fields.get("activation_checkpointing")
    if isinstance(checkpointing, dict):
        unread.append("activation_checkpointing: whether layers recompute is code of the script")
        if checkpointing.get("cpu_checkpointing"):
            unread.append("activation_checkpointing.cpu_checkpointing: inputs kept on the host")
    return found


def _world(
    choices: Mapping[str, Any], batch: int | None, given: int | None, conflicts: list[str]
) -> int | None:
    """Ranks: DeepSpeed's batch is micro-batch x accumulation x data-parallel ranks."""
    micro, count = choices.get("micro_batch"), choices.get("num_microbatches")
    part = int(choices.get("tp", 1)) * int(choices.get("cp", 1)) * int(choices.get("pp", 1))
    if batch is None or micro is None or count is None:
        return given
    if batch % (micro * count):
        conflicts.append(
            f"train_batch_size {batch} is not a multiple of micro-batch {micro} x accumulation"
            f" {count}"
        )
        return given
    ranks: int = batch // (micro * count) * part
    if given is not None and given != ranks:
        conflicts.append(
            f"train_batch_size {batch} = {micro} x {count} x ranks is of {ranks} ranks, not {given}"
        )
        return given
    return ranks


def _precision(fields: Mapping[str, Any], unread: list[str], conflicts: list[str]) -> str | None:
    sections = {
        "bf16": fields.get("bf16", fields.get("bfloat16")), "fp16": fields.get("fp16"),
    }  # fmt: skip
    enabled = {
        name: section.get("enabled", False)
        for name, section in sections.items()
        if isinstance(section, dict)
    }
    if "auto" in enabled.values():
        unread.append("precision is left to the script (auto)")
        return None
    on = [name for name, value in enabled.items() if value]
    if len(on) > 1:
        conflicts.append("bf16 and fp16 are both enabled")
        return None
    bf16 = sections["bf16"]
    if on == ["bf16"] and isinstance(bf16, dict) and bf16.get("bf16_master_weights_and_grads"):
        return "bf16-pure"
    return on[0] if on else "fp32"
