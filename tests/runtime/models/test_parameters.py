"""Which part of which global tensor a parameter is."""

from __future__ import annotations

import pytest
import torch

from shardwright.cost_models.blocks.splits import attention_split
from shardwright.runtime.models.parameters import ParameterMaker
from shardwright.runtime.parallel.shards import shard_of
from shardwright.specs import AttentionBlock

BLOCK = AttentionBlock(
    hidden_size=10, num_heads=4, num_kv_heads=2, head_dim=3, qkv_bias=True, output_bias=False,
    rotary=None,
)  # fmt: skip


def maker(tp: int, tp_rank: int, *, sp: bool = False) -> ParameterMaker:
    return ParameterMaker(torch.float32, torch.device("cpu"), tp, tp_rank, sp)


def test_qkv_rows_in_order() -> None:
    parameter = maker(2, 1).qkv("qkv.weight", BLOCK, attention_split(BLOCK, 2, 1), (10,))
    shard = shard_of(parameter)
    # 12 query rows, then 6 of keys and 6 of values: the second half of each
    assert shard.segments == ((6, 6), (15, 3), (21, 3))
    assert (shard.global_shape, tuple(parameter.shape)) == ((24, 10), (12, 10))
    assert not shard.tp_replicated
    assert shard.shared is None


def test_shared_kv_heads_are_replicated_in_part() -> None:
    shards = [
        shard_of(maker(4, rank).qkv("qkv.bias", BLOCK, attention_split(BLOCK, 4, rank), ()))
        for rank in range(4)
    ]
    assert all(shard.tp_replicated and shard.shared == (12, 12) for shard in shards)
    assert [shard.segments for shard in shards[:2]] == [
        ((0, 3), (12, 3), (18, 3)),
        ((3, 3), (12, 3), (18, 3)),
    ]
    assert [shard.owned for shard in shards[:2]] == [shards[0].segments, ((3, 3),)]


@pytest.mark.parametrize(("tp", "sp", "replicated"), [(1, True, False), (2, False, False),
                                                      (2, True, True)])  # fmt: skip
def test_whole_parameters_are_partial_under_sequence_parallelism(
    tp: int, sp: bool, replicated: bool
) -> None:
    for rank in range(tp):
        shard = shard_of(maker(tp, rank, sp=sp).whole("norm.weight", (10,)))
        assert shard.tp_replicated == replicated
        assert shard.owned_ranges() == ([(0, 10)] if rank == 0 else [])


def test_matrices_decay_and_vectors_do_not() -> None:
    make = maker(2, 0)
    assert shard_of(make.rows("w", (6, 4), [range(3)])).weight_decay
    assert shard_of(make.columns("w", (6, 4), range(2))).weight_decay
    assert not shard_of(make.rows("b", (6,), [range(3)])).weight_decay
