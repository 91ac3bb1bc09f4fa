"""Encoders count as the library builds them, with their pooler or with a head."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import InputError
from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "bert": {"num_hidden_layers": 4},
    "roberta": {"num_hidden_layers": 4},
    "xlm-roberta": {"num_hidden_layers": 4},
    "camembert": {"num_hidden_layers": 4},
    "electra": {"num_hidden_layers": 4},
    "deberta-v2": {"num_hidden_layers": 4},
    "modernbert": {"num_hidden_layers": 4},
    "distilbert": {"n_layers": 2},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type], "AutoModel")


@pytest.mark.parametrize("model_type", CASES)
def test_the_head_of_masked_language_modelling_takes_the_poolers_place(model_type: str) -> None:
    if model_type in ("deberta-v2", "distilbert"):
        pytest.skip("the library builds another head")
    spec = assert_counts_as_built(model_type, CASES[model_type], "AutoModelForMaskedLM", head="mlm")
    assert spec.is_language_model


def test_deberta_v3_counts_its_distances() -> None:
    fields = {
        "num_hidden_layers": 2, "relative_attention": True, "position_buckets": 256,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    }  # fmt: skip
    assert_counts_as_built("deberta-v2", fields, "AutoModel")


def test_decoders_have_no_head_to_choose() -> None:
    config = {
        "model_type": "gpt2", "vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4,
    }  # fmt: skip
    with pytest.raises(InputError, match="no mlm head to choose"):
        read(config, head="mlm")


def test_what_is_no_language_model_says_so() -> None:
    config = {
        "model_type": "bert", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    spec = read(config)
    assert not spec.is_language_model
    with pytest.raises(InputError, match="test has no vocabulary head"):
        _ = spec.head
