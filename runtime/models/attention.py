"""Causal self-attention between its projections: rotary positions and the fused core.

Queries, keys and values lie in one tensor [B, T, heads x head_dim], query heads first. They are
rotated in place, and in backward their storage takes their gradients; so the tensor that the
projection wrote is the only one of its size that lives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from shardwright.cost_models.blocks.splits import HeadSplit
from shardwright.specs.model import RotaryPositions


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTables:
    """Constants that all layers of a stage share."""

    cosine: Tensor | None
    """[T, head_dim / 2]; None without rotary positions."""
    sine: Tensor | None
    mask: Tensor | None
    """[T, T] of 0 and -inf, where a sliding window is shorter than the sequence."""
    kv_of_query: Tensor | None
    """The kv head that each query head reads, where they are not grouped evenly."""


def rotary_tables(
    rotary: RotaryPositions, head_dim: int, seq_len: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [seq_len, head_dim / 2] of each position's rotation.

    Pair i turns by position x base^(-2i / head_dim). ``llama3`` divides slow frequencies (fewer
    than ``low_freq_factor`` turns within the original context) by ``factor``, keeps fast ones
    (more than ``high_freq_factor``), and interpolates between.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequency = rotary.base**-exponent
    if rotary.scaling == "llama3":
        turns = rotary.original_max_positions * frequency / (2 * math.pi)
        span = rotary.high_freq_factor - rotary.low_freq_factor
        keep = ((turns - rotary.low_freq_factor) / span).clamp(0, 1)
        frequency = frequency * (keep + (1 - keep) / rotary.factor)
    angle = torch.outer(torch.arange(seq_len, dtype=torch.float64), frequency)
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


def window_mask(window: int, seq_len: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[T, T]: 0 where a token sees another (itself and the window - 1 before), else -inf."""
    position = torch.arange(seq_len, device=device)
    distance = position[:, None] - position[None, :]
    hidden = (distance < 0) | (distance >= window)
    return torch.zeros(seq_len, seq_len, dtype=dtype, device=device).masked_fill_(hidden, -math.inf)


def attend(qkv: Tensor, heads: HeadSplit, tables: AttentionTables, causal: bool) -> Tensor:
    """[B, T, (q + 2 kv) x head_dim] -> [B, T, q x head_dim]. Overwrites ``qkv``."""
    out: Tensor = _Attend.apply(qkv, heads, tables, causal)  # type: ignore[no-untyped-call]
    return out


class _Attend(torch.autograd.Function):
    """The core's own graph is kept for backward, whichever kernel the device has for it."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: HeadSplit, tables: AttentionTables, causal: bool
    ) -> Tensor:
        num_query, num_kv = len(heads.query), len(heads.kv)
        by_head = qkv.view(*qkv.shape[:2], num_query + 2 * num_kv, -1)
        if tables.cosine is not None:
            rotate_(by_head[:, :, : num_query + num_kv], tables, backwards=False)
        parts = by_head.split([num_query, num_kv, num_kv], dim=2)
        with torch.enable_grad():
            leaves = [part.transpose(1, 2).detach().requires_grad_() for part in parts]
            out = _core(leaves[0], leaves[1], leaves[2], tables, causal)
        ctx.graph, ctx.qkv, ctx.tables = (leaves, out), by_head, tables
        return out.detach().transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (leaves, out), by_head = ctx.graph, ctx.qkv
        del ctx.graph, ctx.qkv
        num_query, num_kv = leaves[0].shape[1], leaves[1].shape[1]
        parts = by_head.split([num_query, num_kv, num_kv], dim=2)
        d_out = gradient.view(*gradient.shape[:2], num_query, -1).transpose(1, 2)
        gradients = torch.autograd.grad(out, leaves, d_out)
        del leaves, out
        for part, part_gradient in zip(parts, gradients, strict=True):
            part.copy_(part_gradient.transpose(1, 2))
        del gradients, part_gradient
        if ctx.tables.cosine is not None:
            rotate_(by_head[:, :, : num_query + num_kv], ctx.tables, backwards=True)
        return by_head.flatten(2), None, None, None


def _core(q: Tensor, k: Tensor, v: Tensor, tables: AttentionTables, causal: bool) -> Tensor:
    """Attention of [B, heads, T, head_dim]; kv heads may be fewer."""
    if tables.kv_of_query is not None:
        k, v = k.index_select(1, tables.kv_of_query), v.index_select(1, tables.kv_of_query)
    mask, seq_len = tables.mask, q.shape[2]
    return F.scaled_dot_product_attention(
        q, k, v,
        attn_mask=None if mask is None else mask[:seq_len, :seq_len],
        is_causal=causal and mask is None,
        enable_gqa=k.shape[1] != q.shape[1],
    )  # fmt: skip


def rotate_(x: Tensor, tables: AttentionTables, *, backwards: bool) -> None:
    """Turn the pairs (i, i + head_dim / 2) of [B, T, heads, head_dim], in place."""
    assert tables.cosine is not None
    assert tables.sine is not None
    cosine = tables.cosine[: x.shape[1], None]
    sine = tables.sine[: x.shape[1], None]
    sign = -1 if backwards else 1
    first, second = x.chunk(2, -1)
    turned = first * sine
    first.mul_(cosine).addcmul_(second, sine, value=-sign)
    second.mul_(cosine).add_(turned, alpha=sign)
