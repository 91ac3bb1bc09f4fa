"""A rank of a world that is not there."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from shardwright.runtime.fake_world import WithoutData, fake_rank
from shardwright.runtime.parallel.collectives import all_gather_single


def test_any_rank_of_any_world() -> None:
    for rank in (0, 16_383):
        with fake_rank(rank, 16_384):
            assert (dist.get_rank(), dist.get_world_size()) == (rank, 16_384)
            group = dist.new_group([rank, 77])
            assert sorted(dist.get_process_group_ranks(group)) == sorted((rank, 77))
    assert not dist.is_initialized()


def test_a_failure_leaves_no_process_group() -> None:
    with pytest.raises(ZeroDivisionError), fake_rank(0, 4):
        raise ZeroDivisionError
    assert not dist.is_initialized()


def test_tensors_have_sizes_but_no_data() -> None:
    with WithoutData():
        tensor = torch.zeros(2**40, dtype=torch.bfloat16)
        assert tensor.nbytes == tensor.untyped_storage().nbytes() == 2**41
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0


def test_numbers_that_are_read_are_positive() -> None:
    with WithoutData():
        whole, real = torch.zeros((), dtype=torch.int64), torch.zeros(2, dtype=torch.float64)
        assert int(whole) > 0
        assert all(isinstance(value, float) and value > 1 for value in real.tolist())


def test_collectives_return_at_once() -> None:
    with fake_rank(3, 8), WithoutData():
        full, own = torch.zeros(32), torch.zeros(4)
        all_gather_single(full, own, group=None)
        dist.all_reduce(full)
        assert full.shape == (32,)
