"""Splits cover everything once, in order, as evenly as whole items allow."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.cost_models.blocks.splits import (
    attention_split,
    column_split,
    kv_heads_are_shared,
    sequence_shard_len,
    sequence_split,
    vocabulary_split,
)
from shardwright.specs import AttentionBlock


def attention(kv_heads: int, per_group: int) -> AttentionBlock:
    return AttentionBlock(
        hidden_size=8, num_heads=kv_heads * per_group, num_kv_heads=kv_heads, head_dim=2,
        qkv_bias=False, output_bias=False, rotary=None,
    )  # fmt: skip


@settings(deadline=None)
@given(kv_heads=st.integers(1, 12), per_group=st.integers(1, 8), data=st.data())
def test_each_query_head_once_with_the_kv_head_it_reads(
    kv_heads: int, per_group: int, data: st.DataObject
) -> None:
    block = attention(kv_heads, per_group)
    tp = data.draw(st.integers(1, block.num_heads))
    splits = [attention_split(block, tp, rank) for rank in range(tp)]
    assert [h for split in splits for h in split.query] == list(range(block.num_heads))
    for split in splits:
        read = [split.kv.start + head for head in split.kv_of_query]
        assert read == [head // per_group for head in split.query]
        assert set(read) == set(split.kv)
    assert [h for split in splits for h in split.owned_kv] == list(range(kv_heads))
    if not kv_heads_are_shared(block, tp):
        assert all(split.kv == split.owned_kv and split.is_grouped for split in splits)
        sizes = [len(split.kv) for split in splits]
    else:
        sizes = [len(split.query) for split in splits]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_uneven_groups_are_recognised() -> None:
    block = attention(kv_heads=2, per_group=4)
    middle = attention_split(block, 3, 1)
    assert (middle.query, middle.kv) == (range(3, 6), range(2))
    assert middle.kv_of_query == (0, 1, 1)
    assert not middle.is_grouped
    assert middle.owned_kv == range(1, 2)
    assert attention_split(block, 4, 1).is_grouped


@settings(deadline=None)
@given(size=st.integers(1, 200), data=st.data())
def test_columns_and_rows_are_even(size: int, data: st.DataObject) -> None:
    tp = data.draw(st.integers(1, size))
    for split in (column_split, vocabulary_split):
        parts = [split(size, tp, rank) for rank in range(tp)]
        assert parts[0].start == 0
        assert parts[-1].stop == size
        assert all(a.stop == b.start and 0 <= len(a) - len(b) <= 1 for a, b in pairwise(parts))


@settings(deadline=None)
@given(seq_len=st.integers(1, 100), tp=st.integers(1, 12))
def test_sequence_shards_cover_each_position_once(seq_len: int, tp: int) -> None:
    shard_len = sequence_shard_len(seq_len, tp)
    parts = [sequence_split(seq_len, tp, rank) for rank in range(tp)]
    assert [p for part in parts for p in part] == list(range(seq_len))
    assert all(len(part) == shard_len for part in parts if part.stop < seq_len)
    assert (shard_len - 1) * tp < seq_len <= shard_len * tp
