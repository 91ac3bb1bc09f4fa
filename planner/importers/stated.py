"""What ``import --json`` says of a reading, under names that all software shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardwright.planner.problem import ChoiceValue
from shardwright.specs import Layout, ModelSpec, TrainingSpec
from shardwright.specs.bodies import AttentionBlock, LatentAttentionBlock, MlpBlock, MoeBlock


def stated_of(
    target: str,
    *,
    choices: Mapping[str, ChoiceValue],
    model: ModelSpec | None,
    training: TrainingSpec | None,
    layout: Layout | None,
    world: int | None,
    consistent: bool,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
) -> dict[str, Any]:
    """Degrees, batch and sizes; None for what a file leaves open."""
    degrees = [choices.get(name, 1) for name in ("tp", "cp", "pp")]
    rest = math.prod(degree for degree in degrees if isinstance(degree, int))
    stages = choices.get("stages")
    return {
        "target": target,
        "tp": choices.get("tp", 1),
        "pp": choices.get("pp", 1),
        "cp": choices.get("cp", 1),
        "ep": choices.get("ep", 1),
        "etp": choices.get("etp", 1),
        "vpp": choices.get("vpp"),
        "dp": None if world is None or world % rest else world // rest,
        "world": world,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "zero": choices.get("zero", 0),
        "micro_batch": choices.get("micro_batch"),
        "num_microbatches": None if layout is None else layout.num_microbatches,
        "global_batch": None if training is None else training.global_batch,
        "seq_len": None if training is None else training.seq_len,
        **_sizes(model),
        "stages": list(_counts(stages)) if isinstance(stages, tuple) else None,
        "precision": None if training is None else str(training.precision),
        "recompute": choices.get("recompute"),
        "sequence_parallel": choices.get("sequence_parallel", False),
        "consistent": consistent,
    }


def _counts(stops: tuple[int, ...]) -> list[int]:
    return [stop - start for start, stop in zip((0, *stops), stops, strict=False)]


def _sizes(model: ModelSpec | None) -> dict[str, Any]:
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk", "moe_ffn")
    found: dict[str, Any] = dict.fromkeys(names)
    found["mla"] = False
    if model is None:
        return found
    found |= {"layers": model.decoder.num_layers, "hidden": model.decoder.hidden_size,
              "vocab": model.vocab_size}  # fmt: skip
    for layer in model.decoder.layers():
        for body in (branch.body for branch in layer.branches):
            if isinstance(body, AttentionBlock):
                found |= {"heads": body.num_heads, "kv_heads": body.num_kv_heads}
            elif isinstance(body, LatentAttentionBlock):
                found |= {"heads": body.num_heads, "mla": True}
            elif isinstance(body, MlpBlock):
                found["ffn"] = body.ffn_size
            elif isinstance(body, MoeBlock):
                found |= {"experts": body.num_experts, "topk": body.top_k,
                          "moe_ffn": body.expert_size}  # fmt: skip
    return found
