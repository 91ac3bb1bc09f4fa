"""Norms equal torch's, with the residual stream's gradient added."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from shardwright.runtime.models.norms import normalize

SIZE = 6


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, SIZE), (SIZE,), (SIZE,))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return F.rms_norm(x, (SIZE,), weight, 1e-5)
    return F.layer_norm(x, (SIZE,), weight, bias, 1e-5)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("in_branch", [False, True])
def test_values_and_gradients(has_bias: bool, in_branch: bool) -> None:
    found = []
    for ours in (True, False):
        x, weight, bias = (tensor.requires_grad_() for tensor in inputs())
        leaves = [x, weight, bias] if has_bias else [x, weight]
        given = bias if has_bias else None
        normed, stream = (
            normalize(x, weight, given, 1e-5) if ours else (reference(x, weight, given), x)
        )
        total = (normed * torch.linspace(-1, 2, SIZE, dtype=torch.float64)).sum()
        if in_branch:
            total = total + (stream**2).sum()
        found.append([normed.detach(), *torch.autograd.grad(total, leaves)])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def test_half_precision_is_computed_in_float32() -> None:
    x, weight, _ = inputs(torch.bfloat16)
    exact = reference(x.double(), weight.double(), None)
    normed, stream = normalize(x * 1, weight, None, 1e-5)
    assert normed.dtype == stream.dtype == torch.bfloat16
    torch.testing.assert_close(normed.double(), exact, rtol=2**-8, atol=0)  # one rounding
