"""Recomputation gives the same gradients and keeps nothing but the input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shardwright.runtime.ledger import Ledger
from shardwright.runtime.models.recompute import recomputed


def test_gradients_and_number_of_runs() -> None:
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    runs = 0

    def run(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return (x * weight).exp()

    x = torch.tensor([0.1, 0.2], requires_grad=True)
    y = recomputed(run, x)
    assert runs == 1
    y.sum().backward()
    assert runs == 2
    gradients = [x.grad, weight.grad]
    expected = torch.autograd.grad((x * weight).exp().sum(), [x, weight])
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True) if a is not None)
    assert None not in gradients


def test_only_the_output_is_alive_after_forward() -> None:
    x = torch.ones(100, requires_grad=True)
    with Ledger() as ledger:
        y = recomputed(lambda x: x.exp().sin().cos() + 1, x)
        assert ledger.live_bytes == y.untyped_storage().nbytes() == 400


def test_an_input_that_ties_nothing_to_the_graph_is_an_error() -> None:
    with pytest.raises(AssertionError):
        recomputed(torch.exp, torch.ones(2))
    with torch.no_grad():
        assert torch.equal(recomputed(torch.exp, torch.zeros(2)), torch.ones(2))
