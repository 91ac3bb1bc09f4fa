"""Full recomputation: keep a layer's input only, and run its forward again in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from shardwright.runtime.stopwatch import during


def recomputed(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``run(x)``, whose inner tensors are not kept.

    Parameters that ``run`` reads get their gradients in backward as if it had been called plainly.
    ``x`` must require a gradient: it is what ties the call to the graph.
    """
    assert x.requires_grad or not torch.is_grad_enabled()
    y: Tensor = _Recomputed.apply(run, x)  # type: ignore[no-untyped-call]
    return y


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad(), during("recompute"):
            leaf = x.detach().requires_grad_()
            # The edge, not the output: nothing reads the output's storage again.
            edge = get_gradient_edge(ctx.run(leaf))
        torch.autograd.backward([edge], [gradient])
        return None, leaf.grad
