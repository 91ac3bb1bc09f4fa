"""The layout that a Megatron-LM command line describes, told apart from how it was written.

A second reading of the options, by Megatron-LM's meaning of each, that shares no code with the
exporter: what `export_round_trip` holds exported plans against.
"""

from __future__ import annotations

import re
from typing import Any

from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.specs import Layout, ModelSpec, Recompute, TrainingSpec

_KINDS = {"p2p": "ring", "a2a": "all_to_all", "all_gather": "all_gather"}
_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def layout_of(arguments: Arguments, model: ModelSpec, training: TrainingSpec, world: int) -> Layout:
    """The layout, on ``world`` ranks."""
    tp = arguments.degree("--tensor-model-parallel-size")
    pp = arguments.degree("--pipeline-model-parallel-size")
    cp = arguments.degree("--context-parallel-size")
    dp = world // (tp * pp * cp)
    micro_batch = arguments.degree("--micro-batch-size")
    batch = arguments.number("--global-batch-size", micro_batch * dp)
    assert batch == training.global_batch
    counts = stage_layers(arguments, pp)
    vpp = len(counts) // pp
    choices: dict[str, Any] = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": vpp, "micro_batch": micro_batch,
        "sequence_parallel": arguments.has("--sequence-parallel"),
        "rank_order": "tp-cp-pp-dp" if arguments.has("--use-tp-pp-dp-mapping") else "tp-cp-dp-pp",
        "cp_kind": _KINDS[arguments.text("--cp-comm-type", "p2p") or "p2p"],
        "boundaries": tuple(sum(counts[: index + 1]) for index in range(len(counts) - 1)),
        "recompute": tuple(recomputed(arguments, count) for count in counts),
        "zero": zero_stage(arguments),
    }  # fmt: skip
    if arguments.has("--num-experts"):
        choices["ep"] = arguments.degree("--expert-model-parallel-size")
        choices["etp"] = arguments.number("--expert-tensor-parallel-size", tp)
    instances = arguments.degree("--num-distributed-optimizer-instances")
    if instances > 1:
        choices["zero_shard_degree"] = dp * cp // instances
        if "ep" in choices:
            edp = tp * cp * dp // (choices["etp"] * choices["ep"])
            choices["expert_zero_shard_degree"] = edp // instances
    offload = [
        name
        for name, flag in (("activations", "--cpu-offloading-num-layers"),
                           ("optimizer", "--optimizer-cpu-offload"))
        if arguments.has(flag)
    ]  # fmt: skip
    return Layout.of(model, training, offload=tuple(offload), **choices)


def zero_stage(arguments: Arguments) -> int:
    if arguments.has("--use-megatron-fsdp"):
        return _STRATEGIES[arguments.text("--data-parallel-sharding-strategy", "no_shard") or ""]
    return int(arguments.has("--use-distributed-optimizer"))


def stage_layers(arguments: Arguments, pp: int) -> list[int]:
    """Layers of every virtual stage in model order."""
    layers = arguments.number("--num-layers")
    assert layers is not None
    text = arguments.text("--pipeline-model-parallel-layout")
    if text is not None:
        text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
        text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text)
        return [letters.count("t") for letters in text.split("|")]
    first = arguments.number("--decoder-first-pipeline-num-layers")
    last = arguments.number("--decoder-last-pipeline-num-layers")
    if first is not None and last is not None:
        inner = (layers - first - last) // (pp - 2) if pp > 2 else 0
        return [first, *[inner] * (pp - 2), last]
    each = arguments.number("--num-layers-per-virtual-pipeline-stage", layers // pp)
    assert each is not None
    return [each] * (layers // each)


def recomputed(arguments: Arguments, num_layers: int) -> Recompute:
    """What a stage of so many layers recomputes."""
    granularity = arguments.text("--recompute-granularity")
    if granularity is None:
        return Recompute()
    if granularity == "selective":
        names = {"layernorm": "norm"}
        modules = [names.get(name, name) for name in arguments.values("--recompute-modules")]
        return Recompute.model_validate({"policy": "selective", "modules": tuple(modules) or None})
    if arguments.text("--recompute-method") == "uniform":
        return Recompute(policy="full")
    count = min(num_layers, arguments.number("--recompute-num-layers") or 0)
    return Recompute(policy="full", num_layers=count or None)
