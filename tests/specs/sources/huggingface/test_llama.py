"""Llama and its first circle count and read as the library builds them."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import AttentionBlock
from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 4},
    "mistral": {"num_hidden_layers": 4},
    "qwen2": {"num_hidden_layers": 4},
    "qwen3": {"num_hidden_layers": 4},
    "gemma": {"num_hidden_layers": 4},
    "gemma2": {"num_hidden_layers": 4},
    "gemma3_text": {"num_hidden_layers": 4},
    "olmo": {"num_hidden_layers": 4},
    "olmo2": {"num_hidden_layers": 4},
    "olmo3": {"num_hidden_layers": 4},
    "exaone4": {"num_hidden_layers": 4},
    "smollm3": {"num_hidden_layers": 4},
    "granite": {"num_hidden_layers": 4},
    "cohere": {"num_hidden_layers": 4},
    "cohere2": {"num_hidden_layers": 4},
    "glm": {"num_hidden_layers": 4},
    "glm4": {"num_hidden_layers": 4},
    "phi3": {"num_hidden_layers": 4},
    "ministral": {"num_hidden_layers": 4, "head_dim": 64},
    "ministral3": {"num_hidden_layers": 4},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type])


SMALL = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8,
    "num_attention_heads": 4,
}  # fmt: skip


def attentions(config: dict[str, Any]) -> list[AttentionBlock]:
    layers = read(SMALL | config).decoder.layers()
    bodies = [layer.branches[0].body for layer in layers]
    return [body for body in bodies if isinstance(body, AttentionBlock)]


def test_gemma_3_has_five_windows_to_one_full_layer_and_two_bases() -> None:
    found = attentions({"model_type": "gemma3_text", "sliding_window": 32})
    windows = [body.sliding_window for body in found]
    assert windows == [32, 32, 32, 32, 32, None, 32, 32]
    bases = {body.rotary.base for body in found if body.rotary}
    assert bases == {1e4, 1e6}


def test_gemma_2_caps_scores_and_logits_and_scales_embeddings() -> None:
    spec = read(SMALL | {"model_type": "gemma2"})
    assert spec.head.softcap == 30.0
    assert spec.embedding.scale == 8.0
    assert {body.softcap for body in attentions({"model_type": "gemma2"})} == {50.0}


def test_cohere_2_rotates_in_windows_only() -> None:
    found = attentions({"model_type": "cohere2", "sliding_window": 32})
    assert all((body.rotary is None) == (body.sliding_window is None) for body in found)
    assert read(SMALL | {"model_type": "cohere2"}).decoder.num_layers == 8


def test_glm_rotates_half_of_a_head() -> None:
    (first, *_) = attentions({"model_type": "glm", "head_dim": 16, "num_key_value_heads": 2})
    assert first.rotary is not None
    assert (first.rotary.size, first.rotary.interleaved) == (8, True)
