"""Who owns what under tensor parallelism: heads, ffn columns, vocabulary rows, positions.

The runtime cuts its parameters and the books count their operations by these functions alone.
Parts are contiguous, differ by at most one item and come larger first; nothing is padded but the
positions of a sequence under sequence parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.specs.model import AttentionBlock
from shardwright.specs.world import split_evenly


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """The query and kv heads (global numbers) that one tensor-parallel rank holds."""

    query: range
    kv: range
    kv_of_query: tuple[int, ...]
    """For each own query head, the own kv head (counted from ``kv.start``) that it reads."""
    owned_kv: range
    """The part of ``kv`` that no lower rank holds: each kv head is owned once."""

    @property
    def is_grouped(self) -> bool:
        """Whether every kv head is read by the same number of adjacent query heads."""
        per_kv, rest = divmod(len(self.query), len(self.kv))
        if rest:
            return False
        return self.kv_of_query == tuple(head // per_kv for head in range(len(self.query)))


def attention_split(block: AttentionBlock, tp: int, tp_rank: int) -> HeadSplit:
    """Heads of one rank: whole kv groups where there are enough, else query heads.

    Where kv heads < tp the query heads are split, and each rank holds the kv heads that its query
    heads read, so a kv head may be held by several ranks (`kv_heads_are_shared`).
    """
    per_group = block.num_heads // block.num_kv_heads
    if not kv_heads_are_shared(block, tp):
        kv = split_evenly(block.num_kv_heads, tp)[tp_rank]
        query = range(kv.start * per_group, kv.stop * per_group)
        owned = kv
    else:
        queries = split_evenly(block.num_heads, tp)
        query = queries[tp_rank]
        kv = _kv_read_by(query, per_group)
        held_before = _kv_read_by(queries[tp_rank - 1], per_group).stop if tp_rank else 0
        owned = range(max(kv.start, held_before), kv.stop)
    kv_of_query = tuple(head // per_group - kv.start for head in query)
    return HeadSplit(query, kv, kv_of_query, owned)


def _kv_read_by(query: range, per_group: int) -> range:
    return range(query.start // per_group, (query.stop - 1) // per_group + 1)


def kv_heads_are_shared(block: AttentionBlock, tp: int) -> bool:
    """Whether kv heads are held by several tensor-parallel ranks."""
    return block.num_kv_heads < tp


def column_split(size: int, tp: int, tp_rank: int) -> range:
    """The ffn columns of one rank."""
    return split_evenly(size, tp)[tp_rank]


def vocabulary_split(vocab_size: int, tp: int, tp_rank: int) -> range:
    """The vocabulary rows of one rank."""
    return split_evenly(vocab_size, tp)[tp_rank]


def sequence_shard_len(seq_len: int, tp: int) -> int:
    """Positions per rank under sequence parallelism, the last rank's padding included."""
    return -(-seq_len // tp)


def sequence_split(seq_len: int, tp: int, tp_rank: int) -> range:
    """The real positions (without padding) of one rank under sequence parallelism."""
    shard_len = sequence_shard_len(seq_len, tp)
    return range(min(seq_len, tp_rank * shard_len), min(seq_len, (tp_rank + 1) * shard_len))
