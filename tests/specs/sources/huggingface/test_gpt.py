"""Decoders of GPT's kind count as the library builds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2},
    "gpt_bigcode": {"n_layer": 2},
    "gptj": {"n_layer": 2},
    "codegen": {"n_layer": 2},
    "gpt_neox": {"num_hidden_layers": 4},
    "phi": {"num_hidden_layers": 4},
    "falcon": {"num_hidden_layers": 4},
    "bloom": {"n_layer": 2},
    "mpt": {"n_layers": 2},
    "opt": {"num_hidden_layers": 4},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type])


@pytest.mark.parametrize(
    "fields",
    [
        {"new_decoder_architecture": True, "num_kv_heads": 1},
        {"multi_query": False, "parallel_attn": False, "bias": True},
    ],
)
def test_falcons_of_every_kind(fields: dict[str, Any]) -> None:
    assert_counts_as_built("falcon", {"num_hidden_layers": 2} | fields)


def test_opt_350m_has_a_narrow_table_and_norms_after_addition() -> None:
    fields = {
        "num_hidden_layers": 2, "hidden_size": 64, "ffn_dim": 128, "num_attention_heads": 4,
        "word_embed_proj_dim": 32, "do_layer_norm_before": False,
    }  # fmt: skip
    spec = assert_counts_as_built("opt", fields)
    assert spec.embedding.table_size == 32
    assert (
        read(fields | {"model_type": "opt", "vocab_size": 50272}).num_parameters
        == spec.num_parameters
    )
