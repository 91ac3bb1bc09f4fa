"""Rows for tests: one that states everything, and changes of it."""

from __future__ import annotations

import copy
from typing import Any

from shardwright.planner.validation.rows import Row

WHOLE: dict[str, Any] = {
    "id": "run-1",
    "kind": "training_run",
    "quality": "high",
    "status": "ok",
    "stack": "some-stack",
    "problem": "p",
    "memory_kind": "device",
    "model": {
        "name": "GPT", "layers": 4, "hidden": 1024, "heads": 16, "kv_heads": 16,
        "ffn_hidden": 4096, "vocab": 51200, "seq_len": 1024, "experts": None, "topk": None,
        "hf_config": None, "gated_mlp": False, "ffn_hidden_is": "dense width", "other": None,
    },
    "hardware": {
        "gpu": "A100-SXM4-80GB", "gpu_mem_gb": 80, "gpus": 8, "gpus_per_node": 8,
        "intra_node": None, "inter_node": None, "accelerator": "A100-SXM4-80GB",
    },
    "parallel": {
        "tp": 2, "pp": 2, "dp": 2, "cp": 1, "ep": None, "vpp": 1, "zero": 1,
        "zero_shard_degree": "all", "sequence_parallel": False, "recompute": "full",
        "recompute_modules": None, "micro_batch": 2, "global_batch": 16, "num_microbatches": 4,
        "precision": "bf16", "schedule": "1f1b", "other": None, "as_printed": {}, "compile": None,
    },
    "measured": {
        "iteration_time_s": 2.0, "tokens_per_s_per_gpu": None, "peak_mem_gib": None,
        "peak_mem_gb": 20, "mem_note": None,
    },
    "derived": None,
    "memory_hints": None,
    "notes": "",
}  # fmt: skip


def value(**changes: Any) -> dict[str, Any]:
    """A whole row with changes: dicts change single fields of a part, all else replaces it."""
    made = copy.deepcopy(WHOLE)
    for key, change in changes.items():
        if isinstance(change, dict) and isinstance(made.get(key), dict):
            made[key] |= change
        else:
            made[key] = change
    return made


def row(**changes: Any) -> Row:
    return Row.model_validate({k: v for k, v in value(**changes).items() if v is not None})
