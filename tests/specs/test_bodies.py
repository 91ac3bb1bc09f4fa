"""What a residual branch computes counts its own parameters."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shardwright.specs import (
    AttentionBlock,
    LatentAttentionBlock,
    MlpBlock,
    MoeBlock,
    NormBlock,
    RotaryPositions,
    SparseIndexer,
    StateSpaceBlock,
)


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


def test_latent_attention_counts_ranks_norms_and_the_indexer() -> None:
    fields: dict[str, Any] = {
        "hidden_size": 16, "num_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 4,
        "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4, "rotary": None,
    }  # fmt: skip
    block = LatentAttentionBlock(**fields)
    queries = 16 * 8 + 8 + 8 * 2 * 6
    keys = 16 * (4 + 2) + 4 + 4 * 2 * 8
    assert block.num_parameters == queries + keys + 2 * 4 * 16
    indexer = SparseIndexer(num_heads=3, head_dim=5, top_k=2)
    sparse = LatentAttentionBlock(**fields, indexer=indexer)
    assert sparse.num_parameters - block.num_parameters == 8 * 15 + 16 * 5 + 10 + 16 * 3


def test_state_spaces_count_by_version() -> None:
    fields: dict[str, Any] = {
        "hidden_size": 8, "inner_size": 16, "state_size": 4, "conv_kernel": 3,
    }  # fmt: skip
    mamba = StateSpaceBlock(version="mamba", time_step_rank=2, **fields)
    assert mamba.num_parameters == (
        8 * 32 + 16 * 8 + 16 * 4 + 16 * (2 + 8) + 2 * 16 + 16 + 16 * 4 + 16
    )
    mamba2 = StateSpaceBlock(version="mamba2", num_heads=2, **fields)
    assert mamba2.num_parameters == 8 * (16 + 24 + 2) + 16 * 8 + 24 * 4 + 6 + 16
    with pytest.raises(ValidationError, match="mamba2 needs num_heads"):
        StateSpaceBlock(version="mamba2", **fields)


def test_experts_are_active_by_top_k() -> None:
    fields: dict[str, Any] = {
        "hidden_size": 8, "expert_size": 4, "num_experts": 6, "top_k": 2, "activation": "silu",
        "gated": True, "shared_size": 4, "shared_gate": True, "correction_bias": True,
    }  # fmt: skip
    block = MoeBlock(**fields)
    assert block.num_parameters == 6 * 96 + 96 + 8 + 6 * 9
    assert block.num_parameters - block.num_active_parameters == 4 * 96
    with pytest.raises(ValidationError, match=r"top_k \(7\) exceeds num_experts \(6\)"):
        MoeBlock(**fields | {"top_k": 7})
