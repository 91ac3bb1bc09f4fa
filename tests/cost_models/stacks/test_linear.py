"""Projections and norms: products of every pass, collectives around them, quantisation, LoRA."""

from __future__ import annotations

import pytest

from shardwright.cost_models.stacks.linear import (
    enter_tensor_parallel,
    leave_tensor_parallel,
    norm,
    products,
    projection,
)
from shardwright.cost_models.stacks.operations import Product
from tests.cost_models.stacks.cases import norm as norm_block
from tests.cost_models.stacks.cases import product_flops, sharding, traffic_bytes


def test_a_projection_and_its_two_gradients() -> None:
    part = projection("mlp", sharding(), 64, 16, 24, bias=True, replicated_parameters=5)
    assert part.forward == (Product(64, 24, 16),)
    assert part.backward_input == (Product(64, 16, 24),)
    assert part.backward_weight == (Product(16, 24, 64),)
    assert part.parameters == 16 * 24 + 24 + 5
    assert part.output_bytes == 64 * 24 * 2


def test_narrow_operands_are_quantised_in_both_passes() -> None:
    forward, d_input, d_weight, _ = products(sharding(matmul_bytes=1), 64, 16, 24)
    assert traffic_bytes(forward) == 64 * 16 * 3
    assert traffic_bytes(d_input) == 64 * (16 + 24) * 3
    assert not traffic_bytes(d_weight)
    wide, *_ = products(sharding(matmul_bytes=1), 64, 16, 24, width="compute")
    assert not traffic_bytes(wide)


def test_adapters_read_beside_frozen_weights() -> None:
    cut = sharding(frozen=True, adapter_rank=4)
    forward, d_input, d_weight, adapters = products(cut, 64, 16, 24)
    low = 2 * 64 * 4 * (16 + 24)
    assert adapters == 4 * (16 + 24)
    assert product_flops(forward) == product_flops(d_input) == 2 * 64 * 16 * 24 + low
    assert product_flops(d_weight) == low


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_what_enters_and_leaves_moves_as_much_either_way(sequence_parallel: bool) -> None:
    """Two calls of ``all_reduce`` send what four of gathering and scattering send; the gather for
    the weight gradient comes on top, beside other work (arXiv 2205.05198)."""
    cut = sharding(tp=4, sequence_parallel=sequence_parallel)
    whole = 2 * 32 * 64 * 2
    calls = [
        (op.kind, op.num_bytes, op.overlaps)
        for pair in (enter_tensor_parallel(cut, 64), leave_tensor_parallel(cut, 64))
        for side in pair
        for op in side
    ]
    if sequence_parallel:
        assert calls == [
            ("all_gather", whole / 4, False), ("reduce_scatter", whole, False),
            ("all_gather", whole / 4, True), ("reduce_scatter", whole, False),
            ("all_gather", whole / 4, False),
        ]  # fmt: skip
    else:
        assert calls == [("all_reduce", whole, False)] * 2


def test_frozen_weights_need_no_second_gather() -> None:
    cut = sharding(tp=4, sequence_parallel=True, frozen=True)
    _, back = enter_tensor_parallel(cut, 64)
    assert [op.kind for op in back] == ["reduce_scatter"]


def test_one_rank_sends_nothing() -> None:
    assert enter_tensor_parallel(sharding(), 64) == ((), ())
    assert leave_tensor_parallel(sharding(), 64) == ((), ())


def test_norms_work_on_their_share_of_the_stream() -> None:
    whole = norm(norm_block(), sharding(tp=4))
    split = norm(norm_block(), sharding(tp=4, sequence_parallel=True))
    assert whole is not None
    assert split is not None
    assert traffic_bytes(whole.forward) == 2 * 2 * 32 * 64 * 2
    assert traffic_bytes(split.forward) * 4 == traffic_bytes(whole.forward)
    assert whole.parameters == split.parameters == 64
    assert norm(None, sharding()) is None


def test_a_norm_that_only_products_read_may_be_kept_narrow() -> None:
    cut = sharding(matmul_bytes=1, keeps_narrow=True)
    outputs = [
        part.output_bytes
        for part in (norm(norm_block(), cut, is_operand=narrow) for narrow in (True, False))
        if part is not None
    ]
    assert outputs == [64 * 64, 2 * 64 * 64]
