"""Parts of global tensors: cutting, joining, boxes of flat ranges, and sums of what is shared."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.runtime.models.parameters import ParameterMaker
from shardwright.runtime.parallel.shards import (
    ParameterShard,
    replicated_numel,
    shard_of,
    sum_replicated_gradients,
)
from shardwright.specs import AttentionBlock
from tests.distributed import run_on_ranks


@st.composite
def shards(draw: st.DrawFn) -> ParameterShard:
    """Vectors, matrices and three-dimensional tensors, whole, cut once, or into row segments."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    dim = draw(st.sampled_from([None, *range(len(shape))]))
    size = shape[dim or 0]
    if dim is None:
        segments: tuple[tuple[int, int], ...] = ((0, size),)
    else:
        cuts = sorted(
            draw(st.sets(st.integers(0, size), min_size=2, max_size=6 if dim == 0 else 2))
        )
        pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
        segments = tuple((start, stop - start) for start, stop in pairs)
    return ParameterShard("w", shape, dim, segments, False, True)


def numbered(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(math.prod(shape)).view(shape)


@settings(deadline=None)
@given(shard=shards(), data=st.data())
def test_boxes_of_a_flat_range_are_exact_and_few(
    shard: ParameterShard, data: st.DataObject
) -> None:
    full = numbered(shard.global_shape)
    flat = shard.take(full).reshape(-1)
    assert tuple(shard.take(full).shape) == shard.local_shape
    start = data.draw(st.integers(0, shard.numel))
    stop = data.draw(st.integers(start, shard.numel))
    boxes = list(shard.boxes(start, stop))
    assert [n for box in boxes for n in _elements(full, box.offsets, box.sizes)] == flat[
        start:stop
    ].tolist()
    place = start
    for box in boxes:
        assert box.flat_start == place
        place += box.numel
    assert len(boxes) <= (2 * len(shard.global_shape) - 1) + 2 * len(shard.segments)


def _elements(
    full: torch.Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> Iterator[int]:
    place = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
    yield from full[place].reshape(-1).tolist()


@settings(deadline=None)
@given(shard=shards())
def test_put_is_the_inverse_of_take(shard: ParameterShard) -> None:
    full = numbered(shard.global_shape)
    again = torch.full(shard.global_shape, -1)
    shard.put(shard.take(full), again)
    held = again >= 0
    assert torch.equal(again[held], full[held])
    assert int(held.sum()) == shard.numel


def test_another_shape_is_refused() -> None:
    shard = ParameterShard("w", (3, 2), None, ((0, 3),), False, True)
    with pytest.raises(ValueError, match=r"w: \(2, 3\) is not \(3, 2\)"):
        shard.take(torch.zeros(2, 3))


BLOCK = AttentionBlock(
    hidden_size=5, num_heads=8, num_kv_heads=2, head_dim=3, qkv_bias=True, output_bias=True,
    rotary=None,
)  # fmt: skip


def qkv_shard(tp: int, tp_rank: int, columns: tuple[int, ...] = (5,)) -> ParameterShard:
    from shardwright.cost_models.blocks.splits import attention_split

    make = ParameterMaker(torch.float64, torch.device("cpu"), tp, tp_rank, False)
    heads = attention_split(BLOCK, tp, tp_rank)
    return shard_of(make.qkv("qkv", BLOCK, heads, columns))


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 8])
def test_each_row_is_owned_once(tp: int) -> None:
    counts = torch.zeros(12 * 3, 5)
    for rank in range(tp):
        shard = qkv_shard(tp, rank)
        local = torch.zeros(shard.numel)
        for start, stop in shard.owned_ranges():
            local[start:stop] = 1
        mine = torch.zeros(shard.global_shape)
        shard.put(local.view(shard.local_shape), mine)
        counts += mine
    assert torch.equal(counts, torch.ones_like(counts))


def _sum_shared_rows() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each rank's part of gradients that are 10^rank where held; what they are after the sum."""
    rank, tp = torch.distributed.get_rank(), 3
    make = ParameterMaker(torch.float64, torch.device("cpu"), tp, rank, True)
    shards = [
        qkv_shard(tp, rank), qkv_shard(tp, rank, ()), shard_of(make.whole("norm", (4,))),
        shard_of(make.columns("down", (2, 6), range(rank, rank + 2))),
    ]  # fmt: skip
    gradients = [(s, torch.full((s.numel,), 10.0**rank, dtype=torch.float64)) for s in shards]
    sum_replicated_gradients(gradients, torch.distributed.group.WORLD)
    return [(g, torch.tensor(replicated_numel(s))) for s, g in gradients]


@pytest.mark.multiprocess
def test_only_what_is_shared_is_summed() -> None:
    results = run_on_ranks(3, [_sum_shared_rows])
    # Query heads 0-2, 3-5, 6-7 read kv heads {0}, {0, 1}, {1}.
    held_by = {0: [0, 1], 1: [1, 2]}
    for rank, kv_heads in enumerate(([0], [0, 1], [1])):
        weight, bias, norm, down = (gradient for gradient, _ in results[rank][0])
        num_query = 3 if rank < 2 else 2
        own = [10.0**rank] * (num_query * 3)
        sums = [sum(10.0**r for r in held_by[head]) for head in kv_heads for _ in range(3)]
        assert bias.tolist() == own + sums + sums
        assert weight.view(-1, 5)[:, 2].tolist() == own + sums + sums
        assert norm.tolist() == [111.0] * 4
        assert down.tolist() == [10.0**rank] * 4
    assert [int(n) for _, n in results[0][0]] == [12 * 5, 12, 4, 4]
