"""Gathering and reducing along uneven sequences, on real ranks."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist

from shardwright.runtime.parallel.collectives import (
    TensorParallel,
    gather_flat,
    reduce_scatter_flat,
)
from tests.distributed import run_on_ranks


def _round_trip(batch: int, seq_len: int) -> None:
    """The parts of a sum, gathered, are the sum; padding is zero."""
    size, rank = dist.get_world_size(), dist.get_rank()
    tp = TensorParallel(dist.group.WORLD, size, rank, sequence_parallel=True, seq_len=seq_len)
    full = torch.arange(float(batch * seq_len * 2)).view(batch, seq_len, 2) + 1
    local = tp.reduce(full * (rank + 1))
    at = tp.positions(seq_len)
    factor = size * (size + 1) / 2
    assert torch.equal(local[:, : len(at)], full[:, at.start : at.stop] * factor)
    assert not local[:, len(at) :].any()
    gathered = tp.gather(local)
    assert torch.equal(gathered, full * factor)
    assert gathered.is_contiguous()


def _without_sequence() -> None:
    rank = dist.get_rank()
    tp = TensorParallel(dist.group.WORLD, dist.get_world_size(), rank, False, 5)
    x = torch.full((1, 5, 2), float(rank))
    assert tp.gather(x) is x
    assert tp.reduce(x) is x
    assert torch.equal(x, torch.full((1, 5, 2), 3.0))
    assert tp.positions(5) == range(5)
    most = torch.tensor([float(rank), -float(rank)])
    tp.maximum_(most)
    assert most.tolist() == [2.0, 0.0]


def _flat() -> None:
    rank = dist.get_rank()
    full = torch.zeros(6)
    own = full[2 * rank : 2 * rank + 2]  # a view of the buffer that is filled
    own += rank + 1
    gather_flat(full, own, dist.group.WORLD)
    assert full.tolist() == [1, 1, 2, 2, 3, 3]
    reduce_scatter_flat(own, full * (rank + 1), dist.group.WORLD)
    assert own.tolist() == [6.0 * (rank + 1)] * 2


@pytest.mark.multiprocess
def test_on_three_ranks() -> None:
    shapes = [(1, 6), (2, 6), (1, 7), (2, 7), (3, 1)]  # in the last, two ranks hold padding only
    run_on_ranks(3, [*(functools.partial(_round_trip, *s) for s in shapes), _without_sequence,
                     _flat])  # fmt: skip


def test_one_rank_communicates_nothing() -> None:
    tp = TensorParallel(sequence_parallel=True, seq_len=4)
    x = torch.ones(1, 4, 2)
    assert tp.gather(x) is x
    assert tp.reduce(x) is x
    full, own = torch.zeros(3), torch.ones(3)
    gather_flat(full, own, None)
    reduce_scatter_flat(own, full * 2, None)
    assert (full.tolist(), own.tolist()) == ([1.0] * 3, [2.0] * 3)
