"""Operations of known names, sizes and lengths: what a plan may name instead of the runtime's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch

from shardwright.hardware_profiles.measure.operation import TimedOperation
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.timing import Arena, Call
from shardwright.specs.training import DType

HEAD_S = 2e-3
"""How long the attention core takes for each head; backward takes twice as long."""


def tiny_plan(**changes: object) -> MeasurePlan:
    """Few sizes of the operations below, with no time to spare."""
    choices = {
        "operations": __name__, "dtypes": ("fp32",), "budget_s": 0.02, "largest_extent": 64,
        "head_dims": (8,), "sequences": (16, 32), "elementwise_bytes": (2**10, 2**12),
        "hidden": 16, "collective_bytes": (2**10, 2**12, 2**14), "arena_bytes": 2**16,
        "longest_call_s": 1e-6, "min_samples": 3,
    }  # fmt: skip
    return MeasurePlan.model_validate(choices | changes)


def elementwise_operations(
    arena: Arena, dtype: DType, numel: int, hidden: int
) -> Iterator[TimedOperation]:
    """One in the operands' dtype after its part, and one that is booked in fp32 always."""
    size = numel * arena.element_bytes
    yield TimedOperation("start", dtype, 0, partial(_negate, arena, 1), 1)
    whole = partial(_negate, arena, numel)
    yield TimedOperation("negate", dtype, 2 * size, whole, size, parts=("start",))
    yield TimedOperation("wide", "fp32", 8 * numel, whole, size)


def linear_operations(
    arena: Arena, dtype: DType, tokens: int, out: int, inner: int
) -> Iterator[TimedOperation]:
    for form in ("forward", "input_gradient", "weight_gradient"):
        make_call = partial(_negate, arena, tokens)
        yield TimedOperation(form, dtype, 2 * tokens * out * inner, make_call, tokens)


def attention_operations(
    arena: Arena, dtype: DType, heads: int, seq_len: int, head_dim: int
) -> Iterator[TimedOperation]:
    flops = heads * seq_len**2 * head_dim
    for name, factor in (("forward", 1), ("backward", 2)):
        seconds = factor * heads * HEAD_S
        yield TimedOperation(name, dtype, factor * flops, partial(_sleep, seconds), heads)


def _negate(arena: Arena, numel: int) -> Call:
    tensor = arena.take(numel)
    return Call(lambda: torch.neg(tensor), warm=(tensor,))


def _sleep(seconds: float) -> Call:
    return Call(lambda: time.sleep(seconds))
