"""Latent attention counts as the library builds it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_hidden_layers": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_v3": {"num_hidden_layers": 4},
    "deepseek_v32": {"num_hidden_layers": 4},
    "glm4_moe_lite": {"num_hidden_layers": 4},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type])


def test_prediction_layers_count_apart() -> None:
    config = {
        "model_type": "deepseek_v3", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128,
        "moe_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "n_routed_experts": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2,
        "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "first_k_dense_replace": 1,
    }  # fmt: skip
    with_prediction = read(config | {"num_nextn_predict_layers": 1})
    layer = list(with_prediction.decoder.layers())[-1].num_parameters
    assert with_prediction.num_parameters == read(config).num_parameters
    assert with_prediction.num_prediction_parameters == layer + 2 * 64 * 64 + 3 * 64
