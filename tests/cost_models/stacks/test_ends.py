"""Embeddings, heads and the blocks between towers: their parameters, products and collectives."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.stacks import ends
from shardwright.cost_models.stacks.operations import Part, Product
from shardwright.specs import (
    ClassifierBlock,
    EmbeddingBlock,
    HeadBlock,
    PatchEmbeddingBlock,
    PoolerBlock,
    ProjectorBlock,
)
from tests.cost_models.stacks.cases import (
    backward,
    forward,
    messages,
    norm,
    part_parameters,
    product_flops,
    sharding,
    traffic_bytes,
)

EMBEDDINGS: list[dict[str, Any]] = [
    {},
    {"max_positions": 40, "num_token_types": 2, "norm": norm()},
    {"table_size": 24, "max_positions": 40, "table_positions": True, "norm": norm(24)},
    {"table_size": 24, "max_positions": 40},
    {"shared": True},
    {"num_relative_positions": 12, "norm": norm()},
]
HEADS: list[dict[str, Any]] = [
    {},
    {"tied": True},
    {"tied": True, "bias": True, "transform": norm()},
    {"transform": norm(), "transform_bias": False},
    {"table_size": 24},
    {"table_size": 24, "transform": norm(24), "bias": True},
]


def an_embedding(**changes: Any) -> EmbeddingBlock:
    return EmbeddingBlock.model_validate({"vocab_size": 160, "hidden_size": 64} | changes)


def a_head(**changes: Any) -> HeadBlock:
    plain = {"vocab_size": 160, "hidden_size": 64, "tied": False}
    return HeadBlock.model_validate(plain | changes)


@pytest.mark.parametrize("changes", EMBEDDINGS)
def test_embeddings_split_their_table_and_nothing_else(changes: dict[str, Any]) -> None:
    block = an_embedding(**changes)
    table = 0 if block.shared else 160 * (block.table_size or 64)
    assert part_parameters(ends.embedding(block, sharding())) == block.num_parameters
    quarter = part_parameters(ends.embedding(block, sharding(tp=4)))
    assert quarter == block.num_parameters - table * 3 / 4


@pytest.mark.parametrize("changes", HEADS)
def test_heads_split_their_table_and_its_bias(changes: dict[str, Any]) -> None:
    block = a_head(**changes)
    split = (0 if block.tied else 160 * (block.table_size or 64)) + 160 * block.bias
    assert part_parameters(ends.head(block, sharding())) == block.num_parameters
    assert part_parameters(ends.head(block, sharding(tp=4))) == block.num_parameters - split * 3 / 4


def test_a_narrow_table_is_projected() -> None:
    block = an_embedding(table_size=24)
    assert product_flops(forward(ends.embedding(block, sharding()))) == 2 * 64 * 24 * 64
    logits = 2 * 64 * (64 * 24 + 24 * 160)
    assert product_flops(forward(ends.head(a_head(table_size=24), sharding()))) == logits


@pytest.mark.parametrize(("parallel", "kind"), [(True, "reduce_scatter"), (False, "all_reduce")])
def test_vocabulary_parallel_lookups_are_summed(parallel: bool, kind: str) -> None:
    parts = ends.embedding(an_embedding(), sharding(tp=2, sequence_parallel=parallel))
    (one,) = messages(forward(parts))
    assert (one.kind, one.num_bytes) == (kind, 2 * 32 * 64 * 2)
    assert len(messages(backward(parts))) == parallel


def test_the_gradient_of_a_table_is_cleared_in_full() -> None:
    def moved(vocab: int) -> float:
        return traffic_bytes(ends.embedding(an_embedding(vocab_size=vocab), sharding())[0]
                             .backward_weight)  # fmt: skip

    assert moved(480) - moved(160) == 320 * 64 * 2


class TestLoss:
    def test_chunks_make_the_logits_again(self) -> None:
        whole, chunked = (ends.head(a_head(), sharding(), loss_chunks=n) for n in (1, 4))
        logits = 2 * 64 * 64 * 160
        assert product_flops(forward(chunked)) == product_flops(forward(whole)) == logits
        assert product_flops(backward(chunked)) - product_flops(backward(whole)) == logits
        input_gradient = 64 * 64 * 2
        kept = [part_of(parts).internal_bytes - input_gradient for parts in (whole, chunked)]
        assert kept[1] == kept[0] / 4

    def test_a_fused_loss_keeps_logits_in_their_own_dtype(self) -> None:
        (fused,) = ends.head(a_head(), sharding(), fused=True)
        (plain,) = ends.head(a_head(), sharding())
        assert plain.internal_bytes - fused.internal_bytes == 64 * 160 * (10 - 2)

    def test_adapters_leave_the_head_alone(self) -> None:
        (one,) = ends.head(a_head(), sharding(frozen=True, adapter_rank=4))
        assert not one.adapters
        assert not one.backward_weight

    def test_logits_stay_in_the_activations_dtype(self) -> None:
        (one,) = ends.head(a_head(), sharding(matmul_bytes=1))
        products = [op for op in (*one.forward, *one.backward_input) if isinstance(op, Product)]
        assert {op.width for op in products} == {"compute"}


def part_of(parts: list[Part]) -> Part:
    return parts[-1]


class TestImages:
    @pytest.mark.parametrize(
        "changes",
        [{}, {"num_frames": 2, "class_token": False, "positions": False},
         {"num_extra_tokens": 1, "mask_token": True, "norm": norm()}, {"bias": False}],
    )  # fmt: skip
    def test_patches_are_products_and_learned_tokens_are_not(self, changes: dict[str, Any]) -> None:
        plain = {"hidden_size": 64, "patch_size": 4, "num_patches": 16}
        block = PatchEmbeddingBlock.model_validate(plain | changes)
        parts = ends.patch_embedding(block, sharding(seq_len=block.num_tokens))
        assert part_parameters(parts) == block.num_parameters
        pixels = 3 * block.num_frames * 16
        assert product_flops(forward(parts)) == pytest.approx(2 * 2 * 16 * pixels * 64)

    @pytest.mark.parametrize(
        "changes",
        [{}, {"num_layers": 1}, {"merge": 4, "middle_size": 128, "norm": norm()},
         {"row_token": True, "bias": False}],
    )  # fmt: skip
    def test_projectors_read_merged_patches(self, changes: dict[str, Any]) -> None:
        plain = {"hidden_size": 64, "output_size": 96}
        block = ProjectorBlock.model_validate(plain | changes)
        parts = ends.projector(block, sharding())
        assert part_parameters(parts) == block.num_parameters
        read, middle = 64 * block.merge, block.middle_size or 96
        weights = read * 96 if block.num_layers == 1 else read * middle + middle * 96
        assert product_flops(forward(parts)) == 2 * 2 * 32 / block.merge * weights


def test_what_reads_one_token_is_paid_once_a_sequence() -> None:
    labels = ClassifierBlock(hidden_size=64, num_labels=10)
    parts = ends.classifier(labels, sharding())
    assert part_parameters(parts) == labels.num_parameters
    assert product_flops(forward(parts)) == 2 * 2 * 64 * 10
    first = PoolerBlock(hidden_size=64)
    parts = ends.pooler(first, sharding())
    assert part_parameters(parts) == first.num_parameters
    assert product_flops(forward(parts)) == 2 * 2 * 64**2


def test_a_pooler_with_a_learned_query_projects_every_token_for_it() -> None:
    block = PoolerBlock(hidden_size=64, ffn_size=128)
    parts = ends.pooler(block, sharding())
    assert part_parameters(parts) == block.num_parameters
    each_token, each_sequence = 2 * 64**2, 2 * 64**2 + 2 * 64 * 128
    assert product_flops(forward(parts)) == 2 * (2 * 32 * each_token + 2 * each_sequence)


def test_predictions_read_hidden_states_beside_embeddings() -> None:
    part = ends.prediction_entry(64, sharding(), 192)
    assert part.parameters == 2 * 64 * 64 + 192
    assert product_flops(part.forward) == 2 * 64 * 128 * 64
