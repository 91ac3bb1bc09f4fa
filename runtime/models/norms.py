"""Norms over the hidden dimension that hand the residual stream through.

``normalize`` returns the normed tensor and the stream itself; its backward gets the gradients of
both and adds them in place. So autograd never has two gradients to add, and no copy of a hidden
state is made for that. In a split backward the weights' gradients, which are small and fall out of
the input's, are computed with it and handed over later.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shardwright.runtime.parallel.deferred import weight_gradients
from shardwright.runtime.parallel.dtypes import promoted


def normalize(
    x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor]:
    """(norm of x, x) for x [B, t, D]: layer norm with a ``bias``, else root-mean-square norm."""
    if bias is None:
        normed, stream = _RmsNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
    else:
        normed, stream = _LayerNorm.apply(x, weight, bias, epsilon)  # type: ignore[no-untyped-call]
    return normed, stream


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        wide = promoted(x.dtype)
        size = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        scale.square_().add_(size * epsilon).rsqrt_().mul_(math.sqrt(size))
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight).to(x.dtype), x

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor, stream_gradient: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        unit = x * scale
        product = unit * gradient
        d_weight = product.flatten(0, -2).sum(0).to(weight.dtype)
        projection = product.mul_(weight).mean(-1, keepdim=True)
        del product
        dx = gradient * weight.to(unit.dtype)
        dx.addcmul_(unit, projection, value=-1).mul_(scale)
        del unit
        if stream_gradient is not None:
            dx += stream_gradient
        return dx.to(x.dtype), *weight_gradients((weight,), lambda: (d_weight,)), None


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        normed, mean, scale = torch.native_layer_norm(x, x.shape[-1:], weight, bias, epsilon)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        return normed, x

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor, stream_gradient: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        dx, d_weight, d_bias = torch.ops.aten.native_layer_norm_backward(
            gradient, x, x.shape[-1:], mean, scale, weight, bias, [True, True, True]
        )
        if stream_gradient is not None:
            dx += stream_gradient
        vectors = weight_gradients((weight, bias), lambda: (d_weight, d_bias))
        return dx, *vectors, None
