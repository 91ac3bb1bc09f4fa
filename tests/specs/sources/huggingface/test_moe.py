"""Mixtures of experts count as the library builds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_hidden_layers": 4},
    "qwen2_moe": {"num_hidden_layers": 4},
    "qwen3_moe": {"num_hidden_layers": 4},
    "olmoe": {"num_hidden_layers": 4},
    "phimoe": {"num_hidden_layers": 4},
    "granitemoe": {"num_hidden_layers": 4},
    "granitemoeshared": {"num_hidden_layers": 4},
    "gpt_oss": {"num_hidden_layers": 4},
    "minimax_m2": {"num_hidden_layers": 4},
    "llama4_text": {"num_hidden_layers": 4},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type])


def test_active_parameters_leave_idle_experts_out() -> None:
    config = {
        "model_type": "mixtral", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_local_experts": 8,
        "num_experts_per_tok": 2, "num_key_value_heads": 2,
    }  # fmt: skip
    spec = read(config)
    assert spec.num_parameters - spec.num_active_parameters == 3 * 6 * 3 * 64 * 96


def test_llama_4_interleaves_experts_and_leaves_positions_out_of_every_fourth_layer() -> None:
    config = {
        "model_type": "llama4_text", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
        "intermediate_size_mlp": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "interleave_moe_layer_step": 2,
    }  # fmt: skip
    layers = list(read(config).decoder.layers())
    assert [layer.branches[1].body.kind for layer in layers] == ["mlp", "moe"] * 2
