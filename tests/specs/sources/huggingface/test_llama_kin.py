"""Llama's relatives count as the library builds them, and remote code as its models hold."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import AttentionBlock
from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "internlm3": {"num_hidden_layers": 4},
    "seed_oss": {"num_hidden_layers": 4},
    "ernie4_5": {"num_hidden_layers": 4},
    "helium": {"num_hidden_layers": 4},
    "arcee": {"num_hidden_layers": 4},
    "apertus": {"num_hidden_layers": 4},
    "stablelm": {"num_hidden_layers": 4},
    "starcoder2": {"num_hidden_layers": 4},
    "persimmon": {"num_hidden_layers": 4},
    "hunyuan_v1_dense": {"num_hidden_layers": 4, "head_dim": 64},
    "nemotron": {"num_hidden_layers": 4, "num_key_value_heads": 8},
    "exaone": {"num_layers": 2},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type])


def test_qwen_states_gate_and_up_together() -> None:
    config = {
        "model_type": "qwen", "vocab_size": 151936, "hidden_size": 4096, "kv_channels": 128,
        "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
        "layer_norm_epsilon": 1e-6, "seq_length": 8192, "no_bias": True,
    }  # fmt: skip
    assert read(config).num_parameters == 7_721_324_544  # Qwen-7B's safetensors


def test_internlm2_is_llama_with_one_switch() -> None:
    config = {
        "model_type": "internlm2", "vocab_size": 92544, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "bias": False,
    }  # fmt: skip
    assert read(config).num_parameters == 7_737_708_544  # InternLM2-7B's safetensors


def test_baichuan_without_positions_uses_alibi() -> None:
    config = {
        "model_type": "baichuan", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "model_max_length": 128,
    }  # fmt: skip
    layer = next(read(config).decoder.layers())
    body = layer.branches[0].body
    assert isinstance(body, AttentionBlock)
    assert body.alibi
    assert body.rotary is None
    assert read(config).max_seq_len == 128
