"""Model blocks count their own parameters, and the model is their sum."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shardwright.specs import AttentionBlock, MlpBlock, NormBlock
from tests.specs.small import model


def attention(**changes: int | bool) -> AttentionBlock:
    fields = {
        "hidden_size": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8,
        "qkv_bias": False, "output_bias": False, "rotary": None,
    }  # fmt: skip
    return AttentionBlock.model_validate(fields | changes)


def test_parameters_of_blocks() -> None:
    assert attention().num_parameters == 16 * (32 + 2 * 16) + 32 * 16
    assert attention(qkv_bias=True).num_parameters == attention().num_parameters + 64
    assert attention(output_bias=True).num_parameters == attention().num_parameters + 16
    gated = MlpBlock(hidden_size=16, ffn_size=24, activation="silu", gated=True, bias=True)
    assert gated.num_parameters == 3 * 16 * 24 + 2 * 24 + 16
    plain = MlpBlock(hidden_size=16, ffn_size=24, activation="gelu", gated=False, bias=False)
    assert plain.num_parameters == 2 * 16 * 24
    norm = NormBlock(type="layer_norm", hidden_size=16, bias=True, epsilon=1e-5)
    assert norm.num_parameters == 32


def test_query_groups_must_be_whole() -> None:
    with pytest.raises(ValidationError, match=r"num_heads \(4\) must be a multiple"):
        attention(num_kv_heads=3)


def test_a_model_is_the_sum_of_its_blocks() -> None:
    small = model()
    layer = 16 * (16 + 2 * 8) + 16 * 16 + 3 * 16 * 24 + 2 * 16
    assert small.num_parameters == 2 * 96 * 16 + 4 * layer + 16
    assert small.decoder.num_layers == 4
    layers = list(small.decoder.layers())
    assert [one.repeat for one in layers] == [1] * 4
    assert sum(one.num_parameters for one in layers) == 4 * layer
    assert (small.embedding.vocab_size, small.head.tied, small.final_norm.bias) == (
        96,
        False,
        False,
    )
