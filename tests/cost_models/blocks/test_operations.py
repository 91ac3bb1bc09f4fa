"""Counts that follow from shapes."""

from __future__ import annotations

import pytest

from shardwright.cost_models.blocks.operations import (
    Attention,
    BlockBooks,
    Matmul,
    ParameterBooks,
    SavedTensor,
    dtype_bytes,
)


def test_flops() -> None:
    assert Matmul("m", m=3, n=5, k=7, dtype="fp32", batch=2).flops == 2 * 2 * 3 * 5 * 7
    shape = {"batch": 2, "heads": 3, "seq_q": 5, "seq_kv": 7, "head_dim": 11}
    forward, backward = (
        Attention("a", **shape, causal=True, backward=backward, dtype="bf16")
        for backward in (False, True)
    )
    one_product = 2 * 2 * 3 * 5 * 7 * 11
    assert (forward.flops, backward.flops) == (2 * one_product, 5 * one_product)


def test_sums_of_a_block() -> None:
    books = BlockBooks(
        name="b", forward=(), backward_input=(), backward_weight=(),
        parameters=(
            ParameterBooks("w", (8, 6), (4, 6), False, True),
            ParameterBooks("b", (8,), (4,), False, False),
        ),
        saved=(SavedTensor("x", 100), SavedTensor("y", 20)), output_bytes=20,
        forward_transient_bytes=0, backward_transient_bytes=0, input_transient_bytes=0,
            deferred=(), unsaved_forward_bytes=0,
    )  # fmt: skip
    assert (books.saved_bytes, books.num_parameters) == (120, 28)


def test_fp4_has_no_whole_bytes() -> None:
    assert [dtype_bytes(dtype) for dtype in ("fp64", "fp32", "bf16", "fp8")] == [8, 4, 2, 1]
    with pytest.raises(AssertionError):
        dtype_bytes("fp4")
