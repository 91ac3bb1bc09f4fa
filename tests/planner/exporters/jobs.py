"""Jobs to export: small models of several families on clusters of the catalogue."""

from __future__ import annotations

from typing import Any

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.exporters.exported import Job
from shardwright.specs import Layout, ModelSpec, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import model_from_config

TRAINING = TrainingSpec(global_batch=64, seq_len=4096)
_SIZES: dict[str, Any] = {
    "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 4096, "vocab_size": 32000,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
}  # fmt: skip
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 128},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "head_dim": 128,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
    },
    "deepseek_v3": {
        "q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
        "v_head_dim": 64, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1,
        "moe_intermediate_size": 512, "first_k_dense_replace": 3, "n_group": 4, "topk_group": 2,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 1,
        "moe_layer_freq": 1, "num_key_value_heads": 16,
    },
    "gpt2": {
        "n_embd": 1024, "n_layer": 12, "n_head": 16, "n_positions": 4096, "n_ctx": 4096,
        "n_inner": 4096, "activation_function": "gelu_new", "hidden_act": "gelu_new",
        "layer_norm_epsilon": 1e-5, "num_key_value_heads": 16,
    },
}  # fmt: skip


def model_of(kind: str = "llama", **changes: Any) -> ModelSpec:
    config = {"model_type": kind, **_SIZES, **_KINDS[kind], **changes}
    return model_from_config(config, name=kind, source="test").spec


def job_of(
    kind: str = "llama",
    *,
    training: TrainingSpec = TRAINING,
    software: SoftwareSpec | None = None,
    model: ModelSpec | None = None,
    cluster: str = "h100-sxm5-80gb:8x16",
    environment: dict[str, str] | None = None,
    **choices: Any,
) -> Job:
    """A job on as many H100s as its layout takes, whole nodes of 8."""
    spec = model or model_of(kind)
    layout = Layout.of(spec, training, **choices)
    devices = resolve_cluster(cluster).devices
    return Job(spec, training, layout, devices, software or SoftwareSpec(), environment or {})
