"""Vocabulary-parallel cross-entropy: the full softmax without gathering the logits.

With z the logits less their maximum, s = sum(exp z) over the whole vocabulary of V rows, and label
smoothing a, one token's loss is  log s - (1 - a) z[label] - a / V sum(z).  Ranks exchange the
maximum, then (s, z[label], and sum(z) where a > 0) in one all_reduce; exp z takes the logits' place
and is all that is kept for backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.dtypes import promoted

IGNORE_INDEX = -100


def vocabulary_parallel_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    first_row: int,
    vocab_size: int,
    label_smoothing: float,
    tp: TensorParallel,
) -> Tensor:
    """The loss summed over tokens whose label is not -100, equal on every tp rank.

    Args:
        logits: [B, T, rows], this rank's columns from ``first_row`` on. Overwritten.
        labels: [B, T] int64.
    """
    loss: Tensor = _CrossEntropy.apply(logits, labels, first_row, vocab_size, label_smoothing, tp)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        first_row: int,
        vocab_size: int,
        label_smoothing: float,
        tp: TensorParallel,
    ) -> Tensor:
        z = logits.to(promoted(logits.dtype))
        maximum = z.amax(-1)
        tp.maximum_(maximum)
        z -= maximum[..., None]
        target, outside = _held_targets(labels, first_row, z.shape[-1])
        at_label = z.gather(-1, target).squeeze(-1).masked_fill_(outside, 0)
        parts = [at_label, z.sum(-1)] if label_smoothing else [at_label]
        sums = torch.stack([z.exp_().sum(-1), *parts])
        tp.sum_(sums)
        losses = sums[0].log().sub_(sums[1], alpha=1 - label_smoothing)
        if label_smoothing:
            losses.sub_(sums[2], alpha=label_smoothing / vocab_size)
        losses.masked_fill_(labels == IGNORE_INDEX, 0)
        ctx.save_for_backward(z, sums[0].clone(), labels)
        ctx.first_row, ctx.vocab_size, ctx.label_smoothing = first_row, vocab_size, label_smoothing
        ctx.dtype = logits.dtype
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, sum_exp, labels = ctx.saved_tensors
        smoothing: float = ctx.label_smoothing
        scale = (labels != IGNORE_INDEX) * gradient
        target, outside = _held_targets(labels, ctx.first_row, z.shape[-1])
        z *= (scale / sum_exp)[..., None]
        if smoothing:
            z -= (scale * (smoothing / ctx.vocab_size))[..., None]
        at_label = scale.mul_(smoothing - 1).masked_fill_(outside, 0)
        z.scatter_add_(-1, target, at_label[..., None])
        return z.to(ctx.dtype), None, None, None, None, None


def _held_targets(labels: Tensor, first_row: int, rows: int) -> tuple[Tensor, Tensor]:
    """Each label's own column [B, T, 1] (0 where not held), and where it is not held [B, T]."""
    target = labels - first_row
    outside = (target < 0) | (target >= rows)
    return target.masked_fill_(outside, 0)[..., None], outside
