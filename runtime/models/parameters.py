"""Makes local parameters and says which part of which global tensor each is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from shardwright.cost_models.blocks.splits import HeadSplit, kv_heads_are_shared
from shardwright.runtime.parallel.shards import ParameterShard, Segment
from shardwright.specs.model import AttentionBlock


@dataclass(frozen=True, slots=True)
class ParameterMaker:
    """Makes the uninitialised parameters of one tensor-parallel rank.

    Matrices decay, vectors do not.
    """

    dtype: torch.dtype
    device: torch.device
    tp: int
    tp_rank: int
    sequence_parallel: bool

    @property
    def _shards_sequence(self) -> bool:
        return self.sequence_parallel and self.tp > 1

    def whole(self, name: str, shape: Sequence[int]) -> nn.Parameter:
        """Held by every tp rank. Its gradient is partial where ranks see different positions."""
        return self._make(ParameterShard(
            name, tuple(shape), None, ((0, shape[0]),), self._shards_sequence, len(shape) > 1,
            owned=None if self.tp_rank == 0 else (),
        ))  # fmt: skip

    def rows(
        self, name: str, shape: Sequence[int], segments: Sequence[range], *, tied: bool = False
    ) -> nn.Parameter:
        """Cut along the first dimension into ``segments``, one behind the other."""
        cut = tuple((segment.start, len(segment)) for segment in segments)
        return self._make(
            ParameterShard(name, tuple(shape), 0, cut, False, len(shape) > 1, tied=tied)
        )

    def columns(self, name: str, shape: Sequence[int], columns: range) -> nn.Parameter:
        """Cut along the second dimension."""
        cut = ((columns.start, len(columns)),)
        return self._make(ParameterShard(name, tuple(shape), 1, cut, False, True))

    def qkv(
        self, name: str, block: AttentionBlock, heads: HeadSplit, columns: Sequence[int]
    ) -> nn.Parameter:
        """Rows [q heads; k heads; v heads] of this rank; shape (rows, *columns)."""
        shared = kv_heads_are_shared(block, self.tp)
        shape = (block.query_size + 2 * block.kv_size, *columns)
        return self._make(ParameterShard(
            name, shape, 0, _qkv_segments(block, heads.query, heads.kv), shared, len(shape) > 1,
            shared=(block.query_size, 2 * block.kv_size) if shared else None,
            owned=_qkv_segments(block, heads.query, heads.owned_kv) if shared else None,
        ))  # fmt: skip

    def _make(self, shard: ParameterShard) -> nn.Parameter:
        data = torch.empty(shard.local_shape, dtype=self.dtype, device=self.device)
        parameter = nn.Parameter(data)
        parameter.shard = shard  # type: ignore[attr-defined]
        return parameter


def _qkv_segments(block: AttentionBlock, query: range, kv: range) -> tuple[Segment, ...]:
    size = block.head_dim
    first_key, first_value = block.query_size, block.query_size + block.kv_size
    segments = (
        (query.start * size, len(query) * size),
        (first_key + kv.start * size, len(kv) * size),
        (first_value + kv.start * size, len(kv) * size),
    )
    return tuple(segment for segment in segments if segment[1])
