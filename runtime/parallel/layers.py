"""Tensor-parallel layers as autograd functions with explicit collectives.

    column   y[B, T, O / tp] = gather(x) W^T + b        backward: dx = reduce(dy W)
    row      y[B, t, D] = reduce(x W^T) + b + residual  backward: dx = gather(dy) W

``gather`` and ``reduce`` are those of `TensorParallel`: all_gather and reduce_scatter along the
sequence under sequence parallelism, identity and all_reduce without. A column layer keeps its own
part of its input and gathers it again for the weight gradient.

Every residual stream tensor has one consumer in the graph, so autograd never adds gradients itself:
a norm hands the stream through and adds its gradient in place (`models/norms.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.deferred import weight_gradients
from shardwright.runtime.parallel.dtypes import promoted


def column_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tp: TensorParallel) -> Tensor:
    """[B, t, D] -> [B, T, O]; ``weight`` [O, D] and ``bias`` [O] are this rank's rows."""
    y: Tensor = _ColumnLinear.apply(x, weight, bias, tp)  # type: ignore[no-untyped-call]
    return y


def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, tp: TensorParallel
) -> Tensor:
    """[B, T, I] -> [B, t, D], plus bias and residual; ``weight`` [D, I] is this rank's columns."""
    y: Tensor = _RowLinear.apply(x, weight, bias, residual, tp)  # type: ignore[no-untyped-call]
    return y


def embed(tokens: Tensor, weight: Tensor, first_row: int, tp: TensorParallel) -> Tensor:
    """Rows of the embedding: tokens [B, T] -> [B, t, D]; ``weight`` holds rows from
    ``first_row`` on."""
    x: Tensor = _Embed.apply(tokens, weight, first_row, tp)  # type: ignore[no-untyped-call]
    return x


def add_positions(x: Tensor, positions: Tensor, tp: TensorParallel) -> Tensor:
    """Add learned positions [P, D] to [B, t, D], in place."""
    y: Tensor = _AddPositions.apply(x, positions, tp)  # type: ignore[no-untyped-call]
    return y


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """dy^T x of [.., O] and [.., D]: the weight gradient [O, D] of y = x W^T."""
    return torch.mm(_rows(gradient).t(), _rows(x))


def _saved(ctx: Any) -> tuple[Tensor, Tensor]:
    """Input and weight. The input without its history (``detach`` keeps a reference to it), so
    that while it waits for its weight gradient it does not keep the graph behind it alive."""
    x, weight = ctx.saved_tensors
    return x.data, weight


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight for [.., K] and [K, N]."""
    return _shaped(torch.mm(_rows(x), weight), x)


def _shaped(y: Tensor, like: Tensor) -> Tensor:
    """[rows, N] as [.., N]. Not a view for autograd: the next function may write in place."""
    return torch.ops.aten._unsafe_view(y, [*like.shape[:-1], y.shape[1]])  # type: ignore[no-any-return]


class _ColumnLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tp: TensorParallel
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.tp = bias, tp
        full = tp.gather(x)
        if bias is None:
            return _product(full, weight.t())
        return _shaped(torch.addmm(bias, _rows(full), weight.t()), full)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = _saved(ctx)
        tp: TensorParallel = ctx.tp
        dx = tp.reduce(_product(gradient, weight))
        # An activation hands its own input on as the gradient: history, which would be kept too.
        dy, has_bias = gradient.data, ctx.bias is not None

        def compute() -> tuple[Tensor | None, ...]:
            d_bias = _rows(dy).sum(0) if has_bias else None
            return weight_gradient(dy, tp.gather(x)), d_bias

        return dx, *weight_gradients((weight, ctx.bias), compute), None


class _RowLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor,
        tp: TensorParallel,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.tp = bias, tp
        y = tp.reduce(_product(x, weight.t()))
        if bias is not None:
            y += bias
        y += residual
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = _saved(ctx)
        full = ctx.tp.gather(gradient)
        dx = _product(full, weight)
        # The bias is added behind the sum over tp: its gradient is that of this rank's positions.
        bias, own = ctx.bias, gradient if ctx.bias is not None else None

        def compute() -> tuple[Tensor | None, ...]:
            d_bias = None if own is None else _rows(own).sum(0)
            return weight_gradient(full, x), d_bias

        return dx, *weight_gradients((weight, bias), compute), gradient, None


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, weight: Tensor, first_row: int, tp: TensorParallel
    ) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight, ctx.first_row, ctx.tp = weight, first_row, tp
        if tp.size == 1:
            return F.embedding(tokens, weight)
        return tp.reduce(_embed_held(tokens, weight, first_row))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (tokens,) = ctx.saved_tensors
        weight, first_row, tp = ctx.weight, ctx.first_row, ctx.tp

        def compute() -> tuple[Tensor]:
            return (_embedding_gradient(gradient, tokens, weight, first_row, tp),)

        return None, *weight_gradients((weight,), compute), None, None


def _embedding_gradient(
    gradient: Tensor, tokens: Tensor, weight: Tensor, first_row: int, tp: TensorParallel
) -> Tensor:
    """Of the rows of ``weight`` [rows, D], from the gradient [B, t, D] of what was looked up."""
    rows, index = weight.shape[0], tokens
    if tp.size > 1:
        index = tokens - first_row
        index.masked_fill_((index < 0) | (index >= rows), rows)
    # Sums of many rows for one token (a space, say) would lose bits in half precision. Index
    # ``rows``, one behind the last, is the padding index, which the kernel leaves out.
    full = tp.gather(gradient).to(promoted(weight.dtype))
    d_weight = torch.ops.aten.embedding_dense_backward(full, index, rows, rows, False)
    return d_weight.to(weight.dtype)  # type: ignore[no-any-return]


def _embed_held(tokens: Tensor, weight: Tensor, first_row: int) -> Tensor:
    """Rows of the tokens that this rank holds, zeros for others."""
    index = tokens - first_row
    outside = (index < 0) | (index >= len(weight))
    x = F.embedding(index.masked_fill_(outside, 0), weight)
    return x.masked_fill_(outside[..., None], 0)


class _AddPositions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, tp: TensorParallel) -> Tensor:
        at = tp.positions(x.shape[1])
        ctx.at, ctx.positions = at, positions
        x[:, : len(at)].add_(positions[at.start : at.stop])
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        at: range = ctx.at
        shape = ctx.positions.shape

        def compute() -> tuple[Tensor]:
            d_positions = gradient.new_zeros(shape)
            torch.sum(gradient[:, : len(at)], 0, out=d_positions[at.start : at.stop])
            return (d_positions,)

        return gradient, *weight_gradients((ctx.positions,), compute), None
