"""Activations equal torch's, gated or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from shardwright.runtime.models.mlp import activate
from shardwright.specs.bodies import Activation

REFERENCE: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("activation", sorted(REFERENCE))
@pytest.mark.parametrize("gated", [False, True])
def test_values_and_gradients(activation: Activation, gated: bool) -> None:
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    act = REFERENCE[activation]
    gate, up = x.chunk(2, -1)
    expected = act(gate) * up if gated else act(x)
    ours = activate(x * 1, activation, gated)  # a tensor of its own, which backward overwrites
    torch.testing.assert_close(ours, expected, rtol=1e-13, atol=1e-13)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    (mine,) = torch.autograd.grad((ours * weights).sum(), x)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), x)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
