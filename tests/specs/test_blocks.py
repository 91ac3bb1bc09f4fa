"""The blocks before, around and behind a tower's bodies count their own parameters."""

from __future__ import annotations

from shardwright.specs import (
    ClassifierBlock,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    MoeBlock,
    NormBlock,
    PatchEmbeddingBlock,
    PoolerBlock,
    ProjectorBlock,
    ResidualBranch,
)

NORM = NormBlock(type="layer_norm", hidden_size=8, bias=True, epsilon=1e-5)


def test_embeddings_count_tables_types_positions_and_their_norm() -> None:
    block = EmbeddingBlock(
        vocab_size=96, hidden_size=8, max_positions=32, num_token_types=2, norm=NORM
    )
    assert block.num_parameters == (96 + 32 + 2) * 8 + 16
    shared = block.model_copy(update={"shared": True})
    assert shared.num_parameters == (32 + 2) * 8 + 16
    narrow = EmbeddingBlock(vocab_size=96, hidden_size=8, table_size=4)
    assert narrow.num_parameters == 96 * 4 + 4 * 8


def test_patches_count_the_class_token_and_its_position() -> None:
    block = PatchEmbeddingBlock(hidden_size=8, patch_size=4, num_patches=9)
    assert block.num_tokens == 10
    assert block.num_parameters == 8 * (3 * 16 + 1) + 8 * 10 + 8


def test_heads_count_their_table_bias_and_transform() -> None:
    assert HeadBlock(vocab_size=96, hidden_size=8, tied=True).num_parameters == 0
    masked = HeadBlock(vocab_size=96, hidden_size=8, tied=True, bias=True, transform=NORM)
    assert masked.num_parameters == 96 + 8 * 9 + 16


def test_small_dense_ends() -> None:
    assert ClassifierBlock(hidden_size=8, num_labels=10).num_parameters == 90
    assert PoolerBlock(hidden_size=8).num_parameters == 72
    assert ProjectorBlock(hidden_size=8, output_size=4).num_parameters == 9 * 4 + 5 * 4


def test_poolers_projectors_and_experts_of_every_kind() -> None:
    attention_pooler = PoolerBlock(hidden_size=8, ffn_size=16)
    assert attention_pooler.num_parameters == 8 + 4 * 72 + 16 + 2 * 8 * 16 + 16 + 8
    merged = ProjectorBlock(hidden_size=8, output_size=4, merge=4, middle_size=32, norm=NORM)
    assert merged.num_parameters == 16 + 33 * 32 + 33 * 4
    experts = MoeBlock(
        hidden_size=8, expert_size=4, num_experts=6, top_k=2, activation="silu", gated=True
    )
    layer = LayerBlock(branches=(ResidualBranch(body=experts, pre_norm=NORM),), repeat=3)
    assert layer.num_parameters == 3 * (6 * 96 + 48 + 16)
    assert layer.num_active_parameters == 3 * (2 * 96 + 48 + 16)
