"""Encoder-decoders count as the library builds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "t5": {},
    "mt5": {},
    "umt5": {},
    "bart": {},
    "mbart": {},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type], "AutoModelForSeq2SeqLM")


def test_two_towers_and_the_edges_between_them() -> None:
    config = {
        "model_type": "t5", "vocab_size": 96, "d_model": 64, "d_ff": 128, "num_layers": 3,
        "num_heads": 4, "d_kv": 16, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    }  # fmt: skip
    spec = read(config)
    assert [(tower.name, tower.num_layers) for tower in spec.towers] == [
        ("encoder", 3), ("decoder", 2),
    ]  # fmt: skip
    assert [edge.kind for edge in spec.edges] == ["tied_weight", "hidden"]
    first, second = list(spec.decoder.layers())
    assert [branch.body.kind for branch in first.branches] == ["attention", "attention", "mlp"]
    assert first.num_parameters - second.num_parameters == 4 * 32  # distance biases
