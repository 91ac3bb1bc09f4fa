"""Names that families share."""

from __future__ import annotations

import pytest

from shardwright.specs.sources.huggingface.fields import (
    Config,
    RopeConfig,
    activation,
    record_fields,
    unknown_fields,
)
from shardwright.specs.sources.huggingface.gpt import Gpt2Config


def test_activations_have_one_name_each() -> None:
    assert activation("gelu_new") == activation("gelu_pytorch_tanh") == "gelu_tanh"
    with pytest.raises(ValueError, match="'elu' is not one of"):
        activation("elu")


def test_fields_are_read_under_the_names_of_the_family() -> None:
    assert record_fields({"n_embd": 8, "junk": 1}, Gpt2Config) == {"hidden_size": 8}
    assert record_fields({"n_embd": 8, "hidden_size": 9}, Gpt2Config) == {"hidden_size": 9}


def test_what_is_harmless_passes_silently_and_the_rest_is_named() -> None:
    config = {"torch_dtype": "bfloat16", "scale_attn_weights": True, "novelty": 3}
    assert unknown_fields(config, Config) == ["novelty = 3"]
    assert unknown_fields({"scale_attn_weights": False}, Config) == ["scale_attn_weights = False"]


def test_equal_frequencies_are_a_step() -> None:
    rope = RopeConfig(
        rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
        original_max_position_embeddings=8192,
    )  # fmt: skip
    assert rope.scaling == "step"
