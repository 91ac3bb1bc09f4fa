"""Reads a configuration of Hugging Face accelerate: DDP, FSDP, hybrid FSDP, or DeepSpeed by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.planner.importers.plain_yaml import parse_yaml
from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.stated import stated_of
from shardwright.planner.layout_text import normalise_choices
from shardwright.specs import InputError
from shardwright.specs.plan import read_text

_STRATEGIES = {
    "FULL_SHARD": (3, False), "SHARD_GRAD_OP": (2, False), "NO_SHARD": (0, False),
    "HYBRID_SHARD": (3, True), "HYBRID_SHARD_ZERO2": (2, True),
    "1": (3, False), "2": (2, False), "3": (0, False), "4": (3, True), "5": (2, True),
}  # fmt: skip
"""ZeRO stage as accelerate's own documentation maps it, and whether nodes hold whole copies."""
_PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "no": "fp32", "false": "fp32", "none": "fp32",
               "fp8": "fp8-delayed"}  # fmt: skip
_TRUE = ("true", "1", "yes", "on")


def read_accelerate(path: Path, *, world: int | None = None) -> Reading:
    """What a YAML or JSON file of ``accelerate config`` says of a job; ``world``: if not its own.

    Model, batch and sequence length are those of the training script, so that no layout can be
    built from it alone.

    Raises:
        InputError: the file cannot be read, or is not accelerate's.
    """
    fields = _load(path)
    unread: list[str] = []
    conflicts: list[str] = []
    nodes, processes = _count(fields, "num_machines"), _count(fields, "num_processes")
    if processes is not None and nodes is not None and processes % nodes:
        conflicts.append(f"{processes} processes are not alike on {nodes} machines")
    ranks = _ranks(processes, world, conflicts)
    per_node = processes // nodes if processes and nodes and processes % nodes == 0 else None
    choices = normalise_choices(_choices(fields, ranks, per_node, unread, conflicts))
    unread.append("model, batch and sequence length are those of the training script")
    stated = stated_of(
        "accelerate", choices=choices, model=None, training=None, layout=None, world=ranks,
        consistent=not conflicts, nodes=nodes, gpus_per_node=per_node,
    )  # fmt: skip
    word = str(fields.get("mixed_precision", "no")).lower()
    stated["precision"] = _PRECISIONS.get(word)
    stated["num_microbatches"] = choices.get("num_microbatches")
    if word not in _PRECISIONS:
        unread.append(f"mixed_precision {word}")
    return Reading(
        source=str(path),
        target="accelerate",
        choices=choices,
        gpus=ranks,
        nodes=nodes,
        gpus_per_node=per_node,
        stated=stated,
        unread=tuple(unread),
        conflicts=tuple(conflicts),
    )


def _load(path: Path) -> dict[str, Any]:
    text = read_text(path, what="accelerate")
    fix = "name a file that `accelerate config` writes, with distributed_type"
    try:
        fields = (
            json.loads(text) if text.lstrip()[:1] == "{" else parse_yaml(text, source=str(path))
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}", fix=fix) from None
    marks = ("distributed_type", "fsdp_config", "deepspeed_config", "megatron_lm_config")
    if not isinstance(fields, dict) or not any(mark in fields for mark in marks):
        raise InputError(
            f"{path} is no configuration of accelerate: it has no distributed_type", fix=fix
        )
    return fields


def _count(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}, not a count", fix="give 1, 2, 3, ...")
    return value


def _ranks(processes: int | None, given: int | None, conflicts: list[str]) -> int | None:
    if processes is not None and given is not None and processes != given:
        conflicts.append(f"num_processes is {processes}, not {given}")
    return processes if given is None else given


def _choices(
    fields: Mapping[str, Any],
    ranks: int | None,
    per_node: int | None,
    unread: list[str],
    conflicts: list[str],
) -> dict[str, Any]:
    kind = str(fields.get("distributed_type", "NO")).upper()
    found: dict[str, Any] = {}
    if kind == "FSDP":
        found = _fsdp(_inner(fields, "fsdp_config"), per_node, unread)
    elif kind == "DEEPSPEED":
        found = _deepspeed(_inner(fields, "deepspeed_config"), unread)
    elif kind == "MEGATRON_LM":
        found = _megatron(_inner(fields, "megatron_lm_config"), unread)
    elif kind not in ("MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_XPU", "MULTI_MUSA", "NO"):
        unread.append(f"distributed_type {kind}")
    found |= _mesh(_inner(fields, "parallelism_config"), ranks, conflicts)
    dynamo = _inner(fields, "dynamo_config")
    backend = str(dynamo.get("dynamo_backend", fields.get("dynamo_backend", "NO"))).upper()
    if backend not in ("NO", "EAGER", "NONE", "FALSE"):
        found["compile"] = True
    return found


def _inner(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _truth(value: Any) -> bool:
    return str(value).lower() in _TRUE


def _fsdp(fields: Mapping[str, Any], per_node: int | None, unread: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    strategy = fields.get("fsdp_sharding_strategy", fields.get("sharding_strategy"))
    reshard = fields.get("fsdp_reshard_after_forward", "FULL_SHARD")
    if str(fields.get("fsdp_version", 1)) == "2":
        found["zero"] = 3
        found["reshard_after_forward"] = str(reshard).lower() not in ("false", "0", "no")
    else:
        name = str(strategy if strategy is not None else reshard).upper()
        zero, is_hybrid = _STRATEGIES.get(name, (3, False))
        if name not in _STRATEGIES:
            unread.append(f"fsdp_sharding_strategy {name}, taken as FULL_SHARD")
        found["zero"] = zero
        if is_hybrid and per_node is not None:
            found["zero_shard_degree"] = per_node
        elif is_hybrid:
            unread.append("hybrid sharding over the devices of a node, whose number is not said")
    if _truth(fields.get("fsdp_offload_params", False)):
        found["offload"] = "optimizer+parameters"
    if _truth(fields.get("fsdp_activation_checkpointing", False)):
        found["recompute"] = "full"
    return found


def _deepspeed(fields: Mapping[str, Any], unread: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    file = fields.get("deepspeed_config_file")
    if file not in (None, "none"):
        unread.append(f"DeepSpeed's own configuration is in {file}")
        return found
    stage = fields.get("zero_stage", 2)  # accelerate's default
    if str(stage) not in ("0", "1", "2", "3"):
        raise InputError(f"zero_stage is {stage!r}", fix="give 0, 1, 2 or 3")
    found["zero"] = int(stage)
    count = fields.get("gradient_accumulation_steps")
    if isinstance(count, int) and count > 0:
        found["num_microbatches"] = count
    offload = [
        ours
        for ours, name in (("optimizer", "offload_optimizer_device"),
                           ("parameters", "offload_param_device"))
        if str(fields.get(name, "none")).lower() not in ("none", "false")
    ]  # fmt: skip
    if offload:
        found["offload"] = "+".join(offload)
    return found


def _megatron(fields: Mapping[str, Any], unread: list[str]) -> dict[str, Any]:
    """accelerate's own integration of Megatron-LM."""
    found: dict[str, Any] = {}
    for ours, name in (("tp", "tp_degree"), ("pp", "pp_degree"),
                       ("num_microbatches", "num_micro_batches")):  # fmt: skip
        value = fields.get(f"megatron_lm_{name}")
        if isinstance(value, int) and value > 0:
            found[ours] = value
    if _truth(fields.get("megatron_lm_use_distributed_optimizer", False)):
        found["zero"] = 1
    if _truth(fields.get("megatron_lm_sequence_parallelism", False)):
        found["sequence_parallel"] = True
    if _truth(fields.get("megatron_lm_recompute_activations", False)):
        found["recompute"] = "selective"
    known = ("tp_degree", "pp_degree", "num_micro_batches", "use_distributed_optimizer",
             "sequence_parallelism", "recompute_activations", "gradient_clipping")  # fmt: skip
    unread += [f"field {name}" for name in fields if name.removeprefix("megatron_lm_") not in known]
    return found


def _mesh(fields: Mapping[str, Any], ranks: int | None, conflicts: list[str]) -> dict[str, Any]:
    """Degrees of ``parallelism_config``."""
    sizes = {
        name: fields.get(f"parallelism_config_{name}_size", fields.get(f"{name}_size", 1))
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    degrees = {name: value if isinstance(value, int) and value > 0 else 1
               for name, value in sizes.items()}  # fmt: skip
    found: dict[str, Any] = {}
    if degrees["tp"] > 1:
        found["tp"] = degrees["tp"]
    if degrees["cp"] > 1:
        method = fields.get("parallelism_config_cp_comm_strategy", "allgather")
        found |= {"cp": degrees["cp"],
                  "cp_kind": "ring" if method == "alltoall" else "all_gather"}  # fmt: skip
    elif degrees["sp"] > 1:
        found |= {"cp": degrees["sp"], "cp_kind": "all_to_all"}
    if degrees["dp_replicate"] > 1:
        found["zero_shard_degree"] = degrees["dp_shard"] * degrees["cp"]
    product = 1
    for degree in degrees.values():
        product *= degree
    if fields and ranks is not None and product > 1 and ranks % product:
        conflicts.append(f"degrees multiply to {product}, which does not divide {ranks} processes")
    return found
