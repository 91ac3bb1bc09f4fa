"""State spaces and hybrids count as the library builds them."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import InputError
from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "mamba": {"num_hidden_layers": 4},
    "mamba2": {"num_hidden_layers": 4},
    "falcon_mamba": {"num_hidden_layers": 4},
    "jamba": {"num_hidden_layers": 4},
    "bamba": {"num_hidden_layers": 4},
    "granitemoehybrid": {"num_hidden_layers": 4},
    "qwen3_next": {"num_hidden_layers": 4},
    "nemotron_h": {},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type])


def test_a_pattern_of_letters_is_a_layer_each() -> None:
    config = {
        "model_type": "nemotron_h", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "attention_head_dim": 16,
        "num_hidden_layers": 5, "hybrid_override_pattern": "M-M*-", "mamba_num_heads": 4,
        "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16,
    }  # fmt: skip
    kinds = [layer.branches[0].body.kind for layer in read(config).decoder.layers()]
    assert kinds == ["state_space", "mlp", "state_space", "attention", "mlp"]
    with pytest.raises(InputError, match=r"num_hidden_layers \(4\) is not the length"):
        read(config | {"num_hidden_layers": 4})
