"""What a log prints of the job itself: tables of arguments, and lines in words.

Names of what is found: ``tp``, ``pp``, ``vpp``, ``cp``, ``ep``, ``etp``, ``dp``, ``zero``,
``sequence_parallel``, ``recompute``, ``micro_batch``, ``num_microbatches``, ``global_batch``,
``tokens_per_step``, ``seq_len``, ``layers``, ``hidden``, ``heads``, ``kv_heads``, ``head_dim``,
``ffn_hidden``, ``vocab``, ``gated_mlp``, ``bias``, ``tied``, ``rotary``, ``experts``, ``topk``,
``expert_size``, ``precision``, ``optimizer``, ``gpus``, ``device_name``, ``total_steps``; and
``arguments``: the table as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from shardwright.planner.calibration.logs.reading import Notes

_ROW = re.compile(r"(?:^|[\]:|])\s*([a-z][a-z0-9_]*) \.{2,}\s+(\S.*?)\s*$")
_DEEPSPEED_ROW = re.compile(r"\[config\.py:\d+:print\]\s+([a-z][a-z0-9_]*) \.* ?(\S.*?)\s*$")
"""DeepSpeed pads with dots up to a width that some names fill."""
_ROW_END = re.compile(r"\.{2,}(?:default|updated)\s*$")
"""GPT-NeoX says behind a value where it is from."""
_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("gpus", r"using world size: (\d+)"),
        ("dp", r"using world size: .*data-parallel[- ]size: (\d+)"),
        ("cp", r"using world size: .*context-parallel size: (\d+)"),
        ("tp", r"using world size: .*(?:tensor-)?model-parallel size: (\d+)"),
        ("pp", r"using world size: .*pipeline-model-parallel size: (\d+)"),
        ("tp", r"using world size: .*tensor-model-parallel size: (\d+)"),
        ("num_microbatches", r"setting number of micro-?batches to constant (\d+)"),
        ("gpus", r"GLOBAL_RANK: \d+, MEMBER: \d+/(\d+)"),
        ("seq_len", r"Training starts at step .*sequence length (\d+)"),
        ("global_batch", r"Training starts at step .*global batch size (\d+)"),
        ("micro_batch", r"Training starts at step .*local batch size (\d+)"),
        ("micro_batch", r"Instantaneous batch size per device = ([\d,]+)"),
        ("global_batch", r"Total train batch size .*= ([\d,]+)"),
        ("num_microbatches", r"Gradient Accumulation steps = ([\d,]+)"),
        ("total_steps", r"Total optimization steps = ([\d,]+)"),
        ("tokens_per_step", r"Total batch size ([\d,]+) => gradient accumulation"),
        ("num_microbatches", r"=> gradient accumulation steps: (\d+)"),
        ("seq_len", r"Tokens / micro-batch / rank: \d+ x (\d+)"),
        ("micro_batch", r"Tokens / micro-batch / rank: (\d+) x"),
    )
)
_DEVICE = re.compile(r"\bCUDA capacity: (.+?) with [\d.]+ ?GiB")
_MESH = re.compile(r"Building \d+-D device mesh with \[([^\]]+)\], \[([\d, ]+)\]")
_MESH_NAMES = {"pp": "pp", "cp": "cp", "tp": "tp", "dp": "dp", "ep": "ep"}
_AGAIN = re.compile(r"Applied (full|selective) activation checkpointing")

TRUE = ("True", "true")

Arguments = Mapping[str, str]


def read_configuration(line: str, notes: Notes) -> bool:
    """Whether the line says something of the job."""
    if " .." in line or ":print]" in line:
        row = _DEEPSPEED_ROW.search(line) or _ROW.search(line)
        if row is not None:
            notes.stated.setdefault("arguments", {})[row[1]] = _ROW_END.sub("", row[2])
            return True
    found = False
    for name, pattern in _WORDS:
        match = pattern.search(line)
        if match is not None:
            notes.stated[name] = int(match[1].replace(",", ""))
            found = True
    return _torchtitan(line, notes) or found


def _torchtitan(line: str, notes: Notes) -> bool:
    device, mesh, again = (p.search(line) for p in (_DEVICE, _MESH, _AGAIN))
    if device is not None:
        notes.stated["device_name"] = device[1]
    if again is not None:
        notes.stated["recompute"] = again[1]
    if mesh is not None:
        _read_mesh(mesh, notes)
    return not device is again is mesh is None


def _read_mesh(mesh: re.Match[str], notes: Notes) -> None:
    """``['dp_replicate', 'dp_shard', 'tp'], [2, 8, 4]``"""
    names = re.findall(r"\w+", mesh[1])
    sizes = [int(size) for size in mesh[2].split(",")]
    if len(names) != len(sizes):
        return
    degrees = dict(zip(names, sizes, strict=True))
    replicas, shards = degrees.pop("dp_replicate", 1), degrees.pop("dp_shard", None)
    if shards is not None:
        degrees["dp"] = replicas * shards
        notes.stated |= {"zero": 3 if shards > 1 else 0}
        if replicas > 1 and shards > 1:
            notes.stated["zero_shard_degree"] = shards
    for name, size in degrees.items():
        if name in _MESH_NAMES:
            notes.stated[name] = size
    world = 1
    for name in ("dp", "pp", "cp", "tp"):
        world *= degrees.get(name, 1)
    notes.stated["gpus"] = world


def configuration_of(stated: Mapping[str, Any]) -> dict[str, Any]:
    """What the words say, and what the table of arguments says where the words do not."""
    arguments: Arguments = stated.get("arguments", {})
    found: dict[str, Any] = {}
    for name, read in _READERS:
        value = read(arguments)
        if value is not None:
            found.setdefault(name, value)
    return {**found, **stated}


def _number(*names: str) -> Callable[[Arguments], int | None]:
    def read(arguments: Arguments) -> int | None:
        for name in names:
            text = arguments.get(name, "")
            if re.fullmatch(r"\d[\d,]*", text):
                return int(text.replace(",", ""))
        return None

    return read


def _switch(name: str, *, on: Any = True, off: Any = False) -> Callable[[Arguments], Any]:
    def read(arguments: Arguments) -> Any:
        if name not in arguments:
            return None
        return on if arguments[name] in TRUE else off

    return read


def _kv_heads(arguments: Arguments) -> int | None:
    grouped = arguments.get("group_query_attention")
    return _number("num_query_groups")(arguments) if grouped in TRUE else None


def _precision(arguments: Arguments) -> str | None:
    if arguments.get("fp8", "None") not in ("None", "False", ""):
        recipe = arguments.get("fp8_recipe", "delayed")
        named = {"delayed": "fp8-delayed", "tensorwise": "fp8-tensor", "blockwise": "fp8-block",
                 "mxfp8": "mxfp8"}  # fmt: skip
        return named.get(recipe)
    for name, precision in (
        ("bf16", "bf16"), ("fp16", "fp16"), ("bfloat16_enabled", "bf16"), ("fp16_enabled", "fp16"),
    ):  # fmt: skip
        if arguments.get(name) in TRUE:
            return precision
    return "fp32" if "bf16" in arguments and "fp16" in arguments else None


def _zero(arguments: Arguments) -> int | None:
    stage = _number("zero_stage", "zero_optimization_stage")(arguments)
    strategy = arguments.get("data_parallel_sharding_strategy")
    if arguments.get("use_megatron_fsdp", arguments.get("use_custom_fsdp")) in TRUE:
        sharded = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        return sharded.get(strategy or "")
    if arguments.get("use_torch_fsdp2") in TRUE:
        return 3
    if stage is not None and arguments.get("deepspeed", "True") in TRUE:
        return stage
    return _switch("use_distributed_optimizer", on=1, off=0)(arguments)  # type: ignore[no-any-return]


def _recompute(arguments: Arguments) -> str | None:
    for name in ("recompute_granularity", "activations_checkpoint_granularity"):
        if arguments.get(name, "None") != "None":
            return arguments[name]
    for name in ("checkpoint_activations", "recompute_activations"):
        if arguments.get(name) in TRUE:
            return "full" if name == "checkpoint_activations" else "selective"
    method = arguments.get("activations_checkpoint_method", "None")
    if method != "None":
        return "full"
    known = ("recompute_granularity", "checkpoint_activations", "activations_checkpoint_method")
    return "none" if any(name in arguments for name in known) else None


def _rotary(arguments: Arguments) -> bool | None:
    kind = arguments.get("position_embedding_type", arguments.get("pos_emb"))
    if arguments.get("use_rotary_position_embeddings") in TRUE:
        return True
    return None if kind is None else kind in ("rope", "rotary")


def _tied(arguments: Arguments) -> bool | None:
    for name in ("untie_embeddings_and_output_weights", "no_weight_tying"):
        if name in arguments:
            return arguments[name] not in TRUE
    return None


_READERS: tuple[tuple[str, Callable[[Arguments], Any]], ...] = (
    ("tp", _number("tensor_model_parallel_size", "model_parallel_size")),
    ("pp", _number("pipeline_model_parallel_size", "pipe_parallel_size")),
    ("vpp", _number("virtual_pipeline_model_parallel_size")),
    ("cp", _number("context_parallel_size")),
    ("ep", _number("expert_model_parallel_size", "moe_expert_parallel_size")),
    ("etp", _number("expert_tensor_parallel_size")),
    ("dp", _number("data_parallel_size")),
    ("gpus", _number("world_size")),
    ("zero", _zero),
    ("sequence_parallel", _switch("sequence_parallel")),
    ("recompute", _recompute),
    ("micro_batch", _number("micro_batch_size", "train_micro_batch_size_per_gpu")),
    ("num_microbatches", _number("gradient_accumulation_steps")),
    ("global_batch", _number("global_batch_size", "train_batch_size")),
    ("seq_len", _number("seq_length", "encoder_seq_length")),
    ("layers", _number("num_layers", "encoder_num_layers")),
    ("hidden", _number("hidden_size")),
    ("heads", _number("num_attention_heads")),
    ("kv_heads", _kv_heads),
    ("head_dim", _number("kv_channels")),
    ("ffn_hidden", _number("ffn_hidden_size")),
    ("vocab", _number("padded_vocab_size", "vocab_size")),
    ("gated_mlp", _switch("swiglu")),
    ("bias", _switch("add_bias_linear")),
    ("tied", _tied),
    ("rotary", _rotary),
    ("experts", _number("num_experts")),
    ("topk", _number("moe_router_topk")),
    ("expert_size", _number("moe_ffn_hidden_size")),
    ("precision", _precision),
    ("optimizer", lambda arguments: arguments.get("optimizer")),
)
