from __future__ import annotations

import pytest

from tests.cost_models.stacks.cases import sharding


def test_tokens_are_cut_by_context_then_by_sequence_parallelism() -> None:
    cut = sharding(batch=2, seq_len=64, cp=2, tp=4, sequence_parallel=True)
    assert (cut.local_len, cut.tokens, cut.stream_tokens) == (32, 64, 16)
    assert sharding(batch=2, seq_len=64, cp=2, tp=4).stream_tokens == 64


def test_one_rank_is_never_sequence_parallel() -> None:
    assert not sharding(tp=1, sequence_parallel=True).is_sequence_parallel


@pytest.mark.parametrize(
    ("tp", "heads", "kv_heads", "columns"),
    [(1, 12, 4, 100), (2, 6, 2, 50), (3, 4, 2, 34), (8, 2, 1, 13)],
)
def test_the_fullest_rank_counts(tp: int, heads: int, kv_heads: int, columns: int) -> None:
    cut = sharding(tp=tp)
    assert (cut.heads(12), cut.kv_heads(4), cut.columns(100)) == (heads, kv_heads, columns)


def test_operands_are_kept_narrow_where_software_does() -> None:
    assert sharding(matmul_bytes=1).operand_bytes == 2
    narrow = sharding(matmul_bytes=1, keeps_narrow=True)
    assert narrow.operand_bytes == 1
    assert narrow.keeps_narrow_copy
    assert not sharding(keeps_narrow=True).keeps_narrow_copy
