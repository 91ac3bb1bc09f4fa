"""Cross-entropy over split vocabularies equals torch's over the whole."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from shardwright.cost_models.blocks.splits import vocabulary_split
from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.loss import vocabulary_parallel_cross_entropy
from tests.distributed import run_on_ranks

VOCAB = 11


def problem() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, VOCAB, generator=generator, dtype=torch.float64) * 30
    labels = torch.randint(VOCAB, (2, 5), generator=generator)
    labels[0, :3] = -100
    return logits, labels


def losses_and_gradients(smoothing: float, tp: TensorParallel) -> tuple[Tensor, Tensor, range]:
    full, labels = problem()
    own = vocabulary_split(VOCAB, tp.size, tp.rank)
    logits = full[..., own.start : own.stop].clone().requires_grad_()
    overwritten = logits.clone()
    loss = vocabulary_parallel_cross_entropy(overwritten, labels, own.start, VOCAB, smoothing, tp)
    (gradient,) = torch.autograd.grad(loss * 0.5, logits)
    return loss.detach(), gradient, own


def expected(smoothing: float) -> tuple[Tensor, Tensor]:
    logits, labels = problem()
    logits.requires_grad_()
    loss = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing
    )
    (gradient,) = torch.autograd.grad(loss * 0.5, logits)
    return loss.detach(), gradient


def check(smoothing: float, tp: TensorParallel) -> None:
    loss, gradient, own = losses_and_gradients(smoothing, tp)
    whole_loss, whole_gradient = expected(smoothing)
    torch.testing.assert_close(loss, whole_loss, rtol=1e-13, atol=0)
    mine = whole_gradient[..., own.start : own.stop]
    torch.testing.assert_close(gradient, mine, rtol=1e-10, atol=1e-14)


def _on_this_rank(smoothing: float) -> Any:
    size, rank = dist.get_world_size(), dist.get_rank()
    check(smoothing, TensorParallel(dist.group.WORLD, size, rank, False, 5))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_one_rank(smoothing: float) -> None:
    check(smoothing, TensorParallel())


@pytest.mark.multiprocess
def test_uneven_vocabularies() -> None:
    run_on_ranks(3, [functools.partial(_on_this_rank, smoothing) for smoothing in (0.0, 0.3)])


def test_half_precision_logits_give_a_float32_loss() -> None:
    logits, labels = problem()
    half = logits.to(torch.bfloat16)
    loss = vocabulary_parallel_cross_entropy(half, labels, 0, VOCAB, 0.0, TensorParallel())
    reference = F.cross_entropy(half.double().flatten(0, 1), labels.flatten(), reduction="sum")
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(reference), rel=1e-6)
