"""What a residual branch computes counts its own parameters."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shardwright.specs import AttentionBlock, MlpBlock, NormBlock, RotaryPositions


def attention(**changes: object) -> AttentionBlock:
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


def test_rotary_positions_need_an_even_head() -> None:
    with pytest.raises(ValidationError, match="even head_dim, not 7"):
        attention(head_dim=7, rotary=RotaryPositions(base=1e4))


def test_rotary_scaling_needs_frequencies_in_order() -> None:
    with pytest.raises(ValidationError, match=r"low_freq_factor \(4\) is not below"):
        RotaryPositions(base=1e4, low_freq_factor=4.0, high_freq_factor=4.0)
