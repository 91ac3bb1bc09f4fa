"""The helper itself: results come back by rank, failures are told, nothing hangs."""

from __future__ import annotations

import functools
import multiprocessing
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed import RanksFailedError, run_on_ranks

pytestmark = pytest.mark.multiprocess


def _sum_of_ranks(scale: int) -> torch.Tensor:
    tensor = torch.tensor([float(dist.get_rank() * scale)])
    dist.all_reduce(tensor)
    return tensor


def _fail_on_rank_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank one is unwell")
    dist.barrier()


def _hang() -> None:
    time.sleep(60)


def test_results_by_rank_and_case() -> None:
    cases = [functools.partial(_sum_of_ranks, 1), functools.partial(_sum_of_ranks, 10)]
    results = run_on_ranks(3, cases)
    assert [[t.item() for t in rank] for rank in results] == [[3.0, 30.0]] * 3


def test_a_failure_is_told_with_its_traceback() -> None:
    with pytest.raises(RanksFailedError, match="rank one is unwell"):
        run_on_ranks(2, [_fail_on_rank_one])
    assert not multiprocessing.active_children()


def test_a_hang_ends() -> None:
    with pytest.raises(RanksFailedError, match="no answer within 2"):
        run_on_ranks(2, [_hang], timeout_s=2.0)
    assert not multiprocessing.active_children()
