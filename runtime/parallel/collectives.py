"""Collectives of the runtime: along the sequence for tensor parallelism, and on flat buffers.

Hidden states are [B, T, D]; under sequence parallelism each rank holds [B, t, D] with
t = ceil(T / tp), zeros behind the last position. These are plain functions on tensors; the autograd
functions in `layers` call them, and free their inputs as early as they can.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright.cost_models.blocks.splits import sequence_shard_len, sequence_split
from shardwright.runtime.stopwatch import during

# The names of torch 2.13, and those that older releases have.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """What a layer needs to know about its tensor-parallel group."""

    group: dist.ProcessGroup | None = None
    size: int = 1
    rank: int = 0
    sequence_parallel: bool = False
    seq_len: int = 0
    """T, which local shapes do not tell under sequence parallelism."""

    @property
    def shards_sequence(self) -> bool:
        return self.sequence_parallel and self.size > 1

    def positions(self, length: int) -> range:
        """The global positions of this rank's rows; ``length`` where the sequence is whole."""
        if self.shards_sequence:
            return sequence_split(self.seq_len, self.size, self.rank)
        return range(length)

    def gather(self, x: Tensor) -> Tensor:
        """[B, t, D] -> [B, T, D] under sequence parallelism, else ``x`` itself."""
        return gather_sequence(x, self) if self.shards_sequence else x

    def reduce(self, x: Tensor) -> Tensor:
        """The sum over tp of [B, T, D]: this rank's [B, t, D] under sequence parallelism, else all
        of it, in place. Frees ``x`` early if the caller holds no other reference."""
        if self.size == 1:
            return x
        if self.shards_sequence:
            local = _rank_major(x, self)
            del x
            return _reduce_scatter(local, self)
        with during("tp_comm"):
            dist.all_reduce(x, group=self.group)
        return x

    def maximum_(self, x: Tensor) -> None:
        """The largest over tp, in place."""
        if self.size > 1:
            with during("tp_comm"):
                dist.all_reduce(x, op=dist.ReduceOp.MAX, group=self.group)

    def sum_(self, x: Tensor) -> None:
        """The sum over tp, in place."""
        if self.size > 1:
            with during("tp_comm"):
                dist.all_reduce(x, group=self.group)


def gather_sequence(x: Tensor, tp: TensorParallel) -> Tensor:
    """All ranks' [B, t, D] along the sequence, padding cut off: [B, T, D], contiguous."""
    batch, local_len, hidden = x.shape
    gathered = x.new_empty(tp.size, batch, local_len, hidden)
    with during("tp_comm"):
        all_gather_single(gathered.flatten(0, 1), x.contiguous(), group=tp.group)
    if batch == 1:  # rank-major is sequence-major
        return gathered.view(1, tp.size * local_len, hidden)[:, : tp.seq_len]
    full = x.new_empty(batch, tp.seq_len, hidden)
    for rank in range(tp.size):
        at = sequence_split(tp.seq_len, tp.size, rank)
        if at:
            full[:, at.start : at.stop].copy_(gathered[rank, :, : len(at)])
    return full


def _rank_major(x: Tensor, tp: TensorParallel) -> Tensor:
    """[B, T, D] -> [tp, B, t, D], zeros behind the last position; a view where that is possible."""
    batch, seq_len, hidden = x.shape
    local_len = sequence_shard_len(seq_len, tp.size)
    if batch == 1 and local_len * tp.size == seq_len:
        return x.view(tp.size, 1, local_len, hidden)
    padded = local_len * tp.size > seq_len
    make = x.new_zeros if padded else x.new_empty
    parts = make(tp.size, batch, local_len, hidden)
    for rank in range(tp.size):
        at = sequence_split(seq_len, tp.size, rank)
        if at:
            parts[rank, :, : len(at)].copy_(x[:, at.start : at.stop])
    return parts


def _reduce_scatter(parts: Tensor, tp: TensorParallel) -> Tensor:
    own = torch.empty_like(parts[0])
    with during("tp_comm"):
        reduce_scatter_single(own, parts.flatten(0, 1), group=tp.group)
    return own


def gather_flat(full: Tensor, shard: Tensor, group: dist.ProcessGroup | None) -> None:
    """Fill a flat buffer [d x n] from every rank's shard [n], which may be a view of it."""
    if group is None:
        full.copy_(shard)
    else:
        with during("dp_comm"):
            all_gather_single(full, shard, group=group)


def reduce_scatter_flat(shard: Tensor, full: Tensor, group: dist.ProcessGroup | None) -> None:
    """This rank's slice [n] of the sum over ranks of a flat buffer [d x n]; may be a view of it."""
    if group is None:
        shard.copy_(full)
    else:
        with during("dp_comm"):
            reduce_scatter_single(shard, full, group=group)
