"""Collectives and buffers of linear layers, by hand; the ledger's tests hold them to what runs."""

from __future__ import annotations

from shardwright.cost_models.blocks.linear import (
    gather_bytes,
    gather_operations,
    linear_matmuls,
    reduce_operations,
    reduce_peak,
)
from shardwright.cost_models.blocks.operations import Collective, Elementwise, Operation
from shardwright.cost_models.blocks.steps import Context

WHOLE = Context(1, 12, 4, 0, True, "fp32", "fp32")  # 3 positions per rank
UNEVEN = Context(2, 10, 4, 0, True, "fp32", "fp32")  # 3, 3, 3 and 1 with 2 of padding
PLAIN = Context(2, 10, 4, 0, False, "fp32", "fp32")


def collectives(operations: tuple[Operation, ...]) -> list[tuple[str, int]]:
    return [(op.kind, op.input_bytes) for op in operations if isinstance(op, Collective)]


def copied(operations: tuple[Operation, ...]) -> list[tuple[int, int]]:
    return [(op.num_bytes, op.kernels) for op in operations if isinstance(op, Elementwise)]


def test_whole_shards_of_one_sequence_need_no_copy() -> None:
    gather, reduce = (f("x", WHOLE, 5) for f in (gather_operations, reduce_operations))
    assert (collectives(gather), copied(gather)) == ([("all_gather", 3 * 5 * 4)], [])
    assert (collectives(reduce), copied(reduce)) == ([("reduce_scatter", 12 * 5 * 4)], [])
    assert gather_bytes(WHOLE, 5) == (240, 240)
    assert reduce_peak(WHOLE, 5) == 240 + 60


def test_uneven_shards_are_padded_and_copied() -> None:
    gather, reduce = (f("x", UNEVEN, 5) for f in (gather_operations, reduce_operations))
    full, local = 20 * 5 * 4, 6 * 5 * 4
    assert (collectives(gather), copied(gather)) == ([("all_gather", local)], [(2 * full, 4)])
    assert collectives(reduce) == [("reduce_scatter", 4 * local)]
    assert copied(reduce) == [(2 * full + 4 * local, 5)]  # blanked, then each rank's part
    assert gather_bytes(UNEVEN, 5) == (4 * local + full, full)
    assert reduce_peak(UNEVEN, 5) == 4 * local + full


def test_without_sequence_parallelism_one_all_reduce_in_place() -> None:
    assert gather_operations("x", PLAIN, 5) == ()
    assert collectives(reduce_operations("x", PLAIN, 5)) == [("all_reduce", 400)]
    assert gather_bytes(PLAIN, 5) == (0, 0)
    assert reduce_peak(PLAIN, 5) == 400
    alone = Context(2, 10, 1, 0, False, "fp32", "fp32")
    assert reduce_operations("x", alone, 5) == ()


def test_three_products_of_a_layer() -> None:
    products = linear_matmuls("up", 6, 5, 7, "bf16")
    assert [(p.name, p.m, p.n, p.k) for p in products] == [
        ("up.forward", 6, 5, 7),
        ("up.input_gradient", 6, 7, 5),
        ("up.weight_gradient", 5, 7, 6),
    ]
    assert len({p.flops for p in products}) == 1
