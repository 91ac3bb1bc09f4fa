"""The model of a torchtitan configuration: a flavor, or a file that registers sizes of its own.

Such a file is read, never run: only calls whose arguments are plain numbers and words count.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.planner.exporters.torchtitan.facts import FLAVORS
from shardwright.planner.exporters.torchtitan.model import CLASSES, flavor_model
from shardwright.specs import InputError, ModelSpec
from shardwright.specs.sources import model_from_config

_LIMIT_BYTES = 2**20
_DEBUG: dict[str, dict[str, Any]] = {
    "llama3": {"dim": 256, "n_layers": 6, "n_heads": 16, "vocab_size": 2048, "rope_theta": 5e5},
    "qwen3": {
        "vocab_size": 2048, "max_seq_len": 4096, "head_dim": 128, "dim": 256, "n_layers": 8,
        "n_heads": 16, "n_kv_heads": 8, "hidden_dim": 3072, "enable_weight_tying": True,
    },
}  # fmt: skip
"""The flavor ``debugmodel`` of release 0.2.2."""


def model_of_flavor(name: str, flavor: str) -> ModelSpec | None:
    """The model of a name and a flavor, with or without its attention kernel; None if unknown."""
    plain = flavor.removesuffix("_flex").removesuffix("_varlen").removesuffix("_irope")
    name = {"llama3_ft": "llama3"}.get(name, name)
    if plain.startswith("debugmodel") and name in _DEBUG and plain == "debugmodel":
        return model_of_sizes(name, _DEBUG[name])
    return flavor_model(name, plain) if (name, plain) in FLAVORS else None


def model_of_module(path: Path) -> tuple[ModelSpec | None, str | None]:
    """The model that a Python file gives sizes of, and why there is none."""
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            return None, f"{path.name} is too large to read"
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None, f"{path.name}, which defines the model, cannot be read"
    families = {name: family for family, name in CLASSES.items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            family = families.get(node.func.id)
            sizes = None if family is None else _arguments(node)
            if family is not None and sizes is not None:
                model = model_of_sizes(family, sizes)
                return model, None if model else f"the sizes in {path.name} make no model"
    return None, f"{path.name} gives no model's sizes as plain numbers"


def _arguments(node: ast.Call) -> dict[str, Any] | None:
    """Keyword arguments that are literals, or calls of such; None where any is not."""
    found: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            return None
        if isinstance(keyword.value, ast.Call):
            inner = _arguments(keyword.value)
            name = getattr(keyword.value.func, "id", None)
            if inner is None or name not in ("RoPEScalingArgs", "MoEArgs"):
                return None
            found[keyword.arg] = inner
            continue
        try:
            found[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            return None
    return found if not node.args else None


def model_of_sizes(family: str, sizes: Mapping[str, Any]) -> ModelSpec | None:
    """The model of a family's arguments, through the Hugging Face config of the same layers."""
    try:
        config = _CONFIGS[family](sizes)
        return model_from_config(config, name=family, source=f"torchtitan {family}").spec
    except (InputError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _common(sizes: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    given = {**defaults, **sizes}
    return {
        "hidden_size": given["dim"],
        "num_hidden_layers": given["n_layers"],
        "num_attention_heads": given["n_heads"],
        "num_key_value_heads": given.get("n_kv_heads") or given["n_heads"],
        "vocab_size": given["vocab_size"],
        "rms_norm_eps": given["norm_eps"],
        "rope_theta": given["rope_theta"],
        "max_position_embeddings": given["max_seq_len"],
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": bool(given.get("enable_weight_tying", False)),
    }


def _llama3(sizes: Mapping[str, Any]) -> dict[str, Any]:
    config = _common(
        sizes, dim=4096, n_layers=32, n_heads=32, vocab_size=128256, norm_eps=1e-5,
        rope_theta=10000, max_seq_len=131072,
    )  # fmt: skip
    scaling = {"scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192,
               **sizes.get("rope_scaling_args", {})}  # fmt: skip
    config |= {"model_type": "llama", "mlp_bias": False}
    config["intermediate_size"] = llama3_ffn_size(
        config["hidden_size"], sizes.get("multiple_of", 256), sizes.get("ffn_dim_multiplier")
    )
    if scaling["scaling_factor"] != 1.0:
        config["rope_scaling"] = {
            "rope_type": "llama3", "factor": scaling["scaling_factor"],
            **{key: scaling[key] for key in scaling if key != "scaling_factor"},
        }  # fmt: skip
    return config


def llama3_ffn_size(hidden: int, multiple: int, factor: float | None) -> int:
    """8/3 of the hidden size, times a factor, rounded up to a multiple."""
    size = int(2 * 4 * hidden / 3)
    size = size if factor is None else int(factor * size)
    return multiple * -(-size // multiple)


def _qwen3(sizes: Mapping[str, Any]) -> dict[str, Any]:
    config = _common(
        sizes, dim=1024, n_layers=28, n_heads=16, n_kv_heads=8, vocab_size=151936, norm_eps=1e-6,
        rope_theta=1000000, max_seq_len=4096,
    )  # fmt: skip
    config |= {
        "model_type": "qwen3",
        "head_dim": sizes.get("head_dim", 128),
        "intermediate_size": sizes.get("hidden_dim", 3072),
    }
    if sizes.get("moe_enabled"):
        config |= {
            "model_type": "qwen3_moe",
            "moe_intermediate_size": sizes.get("moe_inter_dim", 768),
            "num_experts": sizes["moe_args"]["num_experts"],
            "num_experts_per_tok": sizes["moe_args"]["top_k"],
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def _deepseek(sizes: Mapping[str, Any]) -> dict[str, Any]:
    config = _common(
        sizes, dim=2048, n_layers=27, n_heads=16, vocab_size=102400, norm_eps=1e-5,
        rope_theta=10000.0, max_seq_len=4096 * 4,
    )  # fmt: skip
    experts = {"num_experts": 8, "num_shared_experts": 1, "top_k": 1, "score_func": "sigmoid",
               **sizes.get("moe_args", {})}  # fmt: skip
    is_sigmoid = experts["score_func"] == "sigmoid"
    config |= {
        "model_type": "deepseek_v3" if is_sigmoid else "deepseek_v2",
        "q_lora_rank": sizes.get("q_lora_rank", 0) or None,
        "kv_lora_rank": sizes.get("kv_lora_rank", 512),
        "qk_nope_head_dim": sizes.get("qk_nope_head_dim", 128),
        "qk_rope_head_dim": sizes.get("qk_rope_head_dim", 64),
        "v_head_dim": sizes.get("v_head_dim", 128),
        "intermediate_size": sizes.get("inter_dim", 10944),
        "moe_intermediate_size": sizes.get("moe_inter_dim", 1408),
        "first_k_dense_replace": sizes.get("n_dense_layers", 1),
        "moe_layer_freq": 1,
        "n_routed_experts": experts["num_experts"],
        "n_shared_experts": experts["num_shared_experts"] or None,
        "num_experts_per_tok": experts["top_k"],
        "n_group": experts.get("num_expert_groups") or 1,
        "topk_group": experts.get("num_limited_groups") or 1,
        "scoring_func": experts["score_func"],
        "topk_method": "noaux_tc" if is_sigmoid else "group_limited_greedy",
    }
    if sizes.get("rope_factor", 40) != 1.0:
        config["rope_scaling"] = {
            "rope_type": "yarn", "type": "yarn", "factor": sizes.get("rope_factor", 40),
            "original_max_position_embeddings": sizes.get("original_seq_len", 4096),
        }  # fmt: skip
    return config


_CONFIGS = {"llama3": _llama3, "qwen3": _qwen3, "deepseek_v3": _deepseek}
