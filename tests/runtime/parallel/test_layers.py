"""Layers of one rank equal torch's own; the tests of stages have the parallel ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.layers import (
    add_positions,
    column_linear,
    embed,
    row_linear,
    weight_gradient,
)

ALONE = TensorParallel()


def check_same(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor) -> None:
    """The same output and the same gradient of every input."""
    found = []
    for function in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        y = function(*leaves)
        weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
        gradients = torch.autograd.grad((y * weights).sum(), leaves)
        found.append([y.detach(), *gradients])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def random(*shape: int) -> Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape))
    )


def test_column_and_row_linear() -> None:
    x, weight, bias = random(2, 5, 3), random(4, 3), random(4)
    check_same(lambda x, w, b: column_linear(x, w, b, ALONE), F.linear, x, weight, bias)
    check_same(lambda x, w: column_linear(x, w, None, ALONE), F.linear, x, weight)
    check_same(
        lambda x, w, b, r: row_linear(x, w, b, r, ALONE),
        lambda x, w, b, r: F.linear(x, w, b) + r,
        x, weight, bias, random(2, 5, 4),
    )  # fmt: skip


def test_embedding_and_positions() -> None:
    tokens = torch.tensor([[1, 0, 1], [2, 2, 2]])
    check_same(
        lambda table, positions: add_positions(embed(tokens, table, 0, ALONE), positions, ALONE),
        lambda table, positions: F.embedding(tokens, table) + positions[:3],
        random(4, 3), random(6, 3),
    )  # fmt: skip


def test_many_gradients_of_one_row_keep_their_bits_in_bf16() -> None:
    """Added one by one in bf16, 1000 ones would stop at 256."""
    table = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    embed(torch.zeros(1, 1000, dtype=torch.int64), table, 0, ALONE).sum().backward()
    assert table.grad is not None
    assert table.grad.tolist() == [[1000.0], [0.0]]


def test_weight_gradient_on_its_own() -> None:
    x, gradient = random(2, 5, 3), random(2, 5, 4)
    expected = torch.einsum("bto,bti->oi", gradient, x)
    torch.testing.assert_close(weight_gradient(gradient, x), expected)
