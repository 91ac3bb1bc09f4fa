"""More mixtures of experts count as the library builds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "glm4_moe": {"num_hidden_layers": 4, "head_dim": 128},
    "dots1": {
        "num_hidden_layers": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
    },
    "ernie4_5_moe": {"num_hidden_layers": 4, "moe_layer_end_index": 3},
    "hunyuan_v1_moe": {"num_hidden_layers": 4, "head_dim": 64, "num_experts": 4},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type])


def test_dbrx_counts_as_published() -> None:
    config = {
        "model_type": "dbrx", "vocab_size": 100352, "d_model": 6144, "n_layers": 40, "n_heads": 48,
        "max_seq_len": 32768,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }  # fmt: skip
    assert read(config).num_parameters == 131_596_523_520  # dbrx-base's safetensors
