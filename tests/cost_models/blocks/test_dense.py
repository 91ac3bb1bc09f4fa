"""Details of blocks that show in their books; the ledger's tests hold all of them to what runs."""

from __future__ import annotations

from shardwright.cost_models.blocks.dense import (
    attention_books,
    embedding_books,
    head_books,
    mlp_books,
    norm_books,
)
from shardwright.cost_models.blocks.operations import Attention, BlockBooks, Collective
from shardwright.cost_models.blocks.steps import Context
from shardwright.specs import AttentionBlock, EmbeddingBlock, HeadBlock, MlpBlock, NormBlock
from shardwright.specs.model import RotaryPositions

ONE = Context(1, 8, 1, 0, False, "fp32", "fp32")
HALF = Context(1, 8, 2, 1, False, "fp32", "fp32")


def names(books: BlockBooks) -> list[str]:
    return [operation.name for operation in books.forward]


def attention(rotary: RotaryPositions | None = None) -> AttentionBlock:
    return AttentionBlock(
        hidden_size=12, num_heads=6, num_kv_heads=3, head_dim=2, qkv_bias=False,
        output_bias=False, rotary=rotary,
    )  # fmt: skip


def test_rotary_positions_turn_queries_and_keys_each_way() -> None:
    plain, turned = (attention_books(attention(r), ONE) for r in (None, RotaryPositions(base=10)))
    assert "rope" not in names(plain)
    assert names(turned).count("rope") == 1
    assert [op.name for op in turned.backward_input].count("rope") == 1


def test_the_core_has_this_ranks_heads() -> None:
    core = [op for op in attention_books(attention(), HALF).forward if isinstance(op, Attention)]
    assert [(op.heads, op.seq_q, op.seq_kv, op.head_dim) for op in core] == [(2, 8, 8, 2)]


def test_a_gated_mlp_keeps_both_halves_and_their_product() -> None:
    def saved(gated: bool) -> int:
        block = MlpBlock(hidden_size=12, ffn_size=10, activation="silu", gated=gated, bias=False)
        return mlp_books(block, ONE).saved_bytes

    assert saved(True) - saved(False) == 8 * 10 * 4
    assert saved(True) == (8 * 20 + 8 * 10 + 8 * 12) * 4


def test_norms_keep_their_statistics_and_output() -> None:
    def saved(bias: bool) -> int:
        kind = "layer_norm" if bias else "rms_norm"
        block = NormBlock(type=kind, hidden_size=12, bias=bias, epsilon=1e-5)
        return norm_books(block, "n", ONE, in_branch=True).saved_bytes

    assert (saved(True), saved(False)) == (8 * 12 * 4 + 2 * 8 * 4, 8 * 12 * 4 + 8 * 4)


def test_a_tied_head_has_no_parameters_and_accumulates_once() -> None:
    block = HeadBlock(vocab_size=9, hidden_size=12, tied=True)
    alone, together = (
        head_books(block, ONE, tied=True, label_smoothing=0.0, has_embedding=has_embedding)
        for has_embedding in (False, True)
    )
    assert alone.parameters == together.parameters == ()
    counts = [
        [op.name for op in books.backward_weight].count("accumulate_gradient")
        for books in (alone, together)
    ]
    assert counts == [1, 0]
    embedding = EmbeddingBlock(vocab_size=9, hidden_size=12)
    added = embedding_books(embedding, ONE, tied=True, has_head=True).backward_weight
    assert [op.name for op in added][-2:] == ["tied_gradient_add", "accumulate_gradient"]


def test_the_loss_exchanges_rows_and_a_third_one_for_smoothing() -> None:
    block = HeadBlock(vocab_size=9, hidden_size=12, tied=False)
    for smoothing, num_sums in ((0.0, 2), (0.1, 3)):
        books = head_books(block, HALF, tied=False, label_smoothing=smoothing)
        sizes = [op.input_bytes for op in books.forward if isinstance(op, Collective)]
        assert sizes == [8 * 4, num_sums * 8 * 4]
