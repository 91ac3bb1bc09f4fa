"""Activations between the projections of an MLP. Backward writes gradients over what was kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from shardwright.specs.bodies import Activation


def activate(up: Tensor, activation: Activation, gated: bool) -> Tensor:
    """act(up) of [B, T, F]; or, gated, act(gate) x up of [gate; up] in [B, T, 2 F]."""
    out: Tensor = (_Gated if gated else _Plain).apply(up, activation)  # type: ignore[no-untyped-call]
    return out


def _forward(x: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return F.silu(x)
    if activation == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def _forward_into(out: Tensor, x: Tensor, activation: Activation) -> None:
    aten = torch.ops.aten
    if activation == "silu":
        aten.silu.out(x, out=out)
    elif activation == "relu":
        aten.relu.out(x, out=out)
    else:
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        aten.gelu.out(x, approximate=approximate, out=out)


def _backward_(gradient: Tensor, x: Tensor, activation: Activation) -> None:
    """Overwrite ``x`` with the gradient with respect to it."""
    aten = torch.ops.aten
    if activation == "silu":
        aten.silu_backward.grad_input(gradient, x, grad_input=x)
    elif activation == "relu":
        aten.threshold_backward.grad_input(gradient, x, 0, grad_input=x)
    else:
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        aten.gelu_backward.grad_input(gradient, x, approximate=approximate, grad_input=x)


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, up: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(up)
        ctx.activation = activation
        return _forward(up, activation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (up,) = ctx.saved_tensors
        _backward_(gradient, up, ctx.activation)
        return up, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.activation = activation
        gate, up = gate_up.chunk(2, -1)
        return _forward(gate, activation).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        d_activated = gradient * up
        _forward_into(up, gate, ctx.activation)
        up *= gradient
        _backward_(d_activated, gate, ctx.activation)
        return gate_up, None
