"""The runtime's operations as they are measured, against the books that are priced from them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest
import torch

from shardwright.cost_models.blocks.dense import (
    attention_books,
    embedding_books,
    head_books,
    mlp_books,
    norm_books,
)
from shardwright.cost_models.blocks.operations import BlockBooks, Elementwise, Matmul, Operation
from shardwright.cost_models.blocks.steps import Context
from shardwright.cost_models.compute import MATMUL_FORMS, matmul_form
from shardwright.cost_models.shards import UnitShards
from shardwright.hardware_profiles.measure.operation import (
    RuntimeOperations,
    TimedOperation,
    load_operations,
    time_operation,
)
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.timing import Arena, Call, Timer
from shardwright.hardware_profiles.profile import Point
from shardwright.specs import Precision, TrainingSpec
from shardwright.specs.model import (
    AttentionBlock,
    EmbeddingBlock,
    HeadBlock,
    MlpBlock,
    NormBlock,
    RotaryPositions,
)
from shardwright.specs.training import DType

CPU = torch.device("cpu")
HIDDEN, TOKENS = 64, 32

DTYPES: dict[DType, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

PRICED_BY_BYTES = {"layer_norm.weight_gradient", "positions.forward", "positions.weight_gradient"}
"""Booked operations without a curve of their own: fused into another, or once per micro-batch."""


def runtime() -> RuntimeOperations:
    module = MeasurePlan().operations
    assert module is not None
    return load_operations(module)


def operations(dtype: DType) -> list[TimedOperation]:
    arena = Arena(2**22, DTYPES[dtype], CPU)
    return list(runtime().elementwise_operations(arena, dtype, TOKENS * HIDDEN, HIDDEN))


def block_books(context: Context, *, llama: bool) -> Iterator[BlockBooks]:
    """Every block of a Llama or a GPT-2."""
    bias = not llama
    norm = NormBlock(
        type="rms_norm" if llama else "layer_norm", hidden_size=HIDDEN, bias=bias, epsilon=1e-5
    )
    yield norm_books(norm, "norm", context, in_branch=True)
    rotary = RotaryPositions(base=1e4) if llama else None
    attention = AttentionBlock(
        hidden_size=HIDDEN, num_heads=4, num_kv_heads=4, head_dim=16, qkv_bias=bias,
        output_bias=bias, rotary=rotary,
    )  # fmt: skip
    yield attention_books(attention, context)
    mlp = MlpBlock(
        hidden_size=HIDDEN, ffn_size=HIDDEN, activation="silu" if llama else "gelu_tanh",
        gated=llama, bias=bias,
    )  # fmt: skip
    yield mlp_books(mlp, context)
    positions = None if llama else 64
    embedding = EmbeddingBlock(vocab_size=256, hidden_size=HIDDEN, max_positions=positions)
    yield embedding_books(embedding, context, tied=False, has_head=False)
    head = HeadBlock(vocab_size=256, hidden_size=HIDDEN, tied=False)
    yield head_books(head, context, tied=False, label_smoothing=0.0)


def booked(dtype: DType, *, llama: bool) -> list[Operation]:
    dtypes = TrainingSpec(global_batch=1, seq_len=1, precision=Precision(dtype)).dtypes
    context = Context(1, TOKENS, 1, 0, False, dtype, dtypes.gradient)
    found: list[Operation] = []
    for books in block_books(context, llama=llama):
        found += chain(books.forward, books.backward_input, books.backward_weight)
    shards = UnitShards(1000, 0, 1, 0, dtypes)
    return [*found, shards.norm(), *shards.update(clips=True)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("llama", [True, False], ids=["llama", "gpt2"])
def test_every_booked_operation_is_measured_under_its_name(dtype: DType, llama: bool) -> None:
    measured = {(op.name, op.dtype) for op in operations(dtype)}
    names = {
        (op.name, op.dtype) for op in booked(dtype, llama=llama) if isinstance(op, Elementwise)
    }
    assert {key for key in names - measured if key[0] not in PRICED_BY_BYTES} == set()


@pytest.mark.parametrize("llama", [True, False], ids=["llama", "gpt2"])
def test_booked_products_name_their_form(llama: bool) -> None:
    products = [op for op in booked("fp32", llama=llama) if isinstance(op, Matmul)]
    assert {matmul_form(op) for op in products} == set(MATMUL_FORMS)
    assert all(op.name.endswith(f".{matmul_form(op)}") for op in products)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_measured_size_is_the_booked_one(dtype: DType) -> None:
    """Operations on hidden states: books of a block with as many tokens give as many bytes."""
    sizes = {op.name: op.x for op in operations(dtype)}
    llama = {op.name: op for op in booked(dtype, llama=True) if isinstance(op, Elementwise)}
    for name in ("rms_norm.forward", "rms_norm.backward", "rope", "qkv_gradient", "residual_add"):
        assert sizes[name] == llama[name].num_bytes, name


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_operation_runs(dtype: DType) -> None:
    for operation in operations(dtype):
        call = operation.make_call()
        call.run()
        assert (operation.x > 0) == (operation.name != "backward_start"), operation.name


def test_parts_come_before_what_they_are_part_of() -> None:
    seen: set[str] = set()
    for operation in operations("fp32"):
        assert set(operation.parts) <= seen, operation.name
        seen.add(operation.name)


def test_attention_flops_are_those_of_the_books() -> None:
    arena = Arena(2**22, torch.float32, CPU)
    found = {op.name: op for op in runtime().attention_operations(arena, "fp32", 4, 32, 16)}
    product = 2 * 4 * 32 * 32 * 16
    assert found["forward"].x == 2 * product
    assert found["backward"].x == 5 * product
    for operation in found.values():
        operation.make_call().run()


class TestParts:
    def timed(self, parts: tuple[str, ...], part_s: float) -> float:
        operation = TimedOperation("whole", "fp32", 1.0, lambda: Call(spin), 0, parts)
        timer = Timer(CPU, point_s=0.0, min_samples=5, kept_bytes=1)
        known = {"part": Point(1.0, part_s, 0.0, 5)}
        return time_operation(timer, operation, known).median_s

    def test_the_seconds_of_parts_are_taken_off(self) -> None:
        assert self.timed((), 1e-4) - self.timed(("part",), 1e-4) == pytest.approx(1e-4, rel=0.5)

    def test_an_operation_is_never_free(self) -> None:
        assert self.timed(("part",), 1.0) > 0


def spin() -> None:
    """About half a millisecond of work."""
    sum(range(20000))
