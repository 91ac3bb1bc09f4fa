"""Groups of ranks, neighbours, and pairs that share a tied embedding."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch.distributed as dist

from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.specs import Layout, TrainingSpec
from tests.distributed import run_on_ranks
from tests.runtime.tiny_models import MODELS


def _members(choices: dict[str, Any]) -> dict[str, Any]:
    training = TrainingSpec(global_batch=6, seq_len=8)
    groups = ParallelGroups.create(Layout.of(MODELS["gpt2"], training, **choices))
    found: dict[str, Any] = {
        name: group and dist.get_process_group_ranks(group)
        for name in ("tp", "dp", "pp", "embedding", "world")
        for group in [getattr(groups, name)]
    }
    neighbours = (groups.previous_rank, groups.next_rank)
    return found | {"neighbours": neighbours, "pp_rank": groups.coordinates.pp}


@pytest.mark.multiprocess
def test_groups_follow_the_rank_order() -> None:
    """tp fastest, then dp, then pp."""
    cases: list[dict[str, Any]] = [{"tp": 2, "pp": 3}, {"dp": 3, "pp": 2}, {"tp": 3, "dp": 2}]
    results = run_on_ranks(6, [functools.partial(_members, case) for case in cases])
    world = [0, 1, 2, 3, 4, 5]
    assert results[3][0] == {
        "tp": [2, 3], "dp": None, "pp": [1, 3, 5], "embedding": None, "world": world,
        "neighbours": (1, 5), "pp_rank": 1,
    }  # fmt: skip
    assert results[5][0]["embedding"] == [1, 5]
    assert results[5][0]["neighbours"] == (3, 1)
    assert results[4][1] == {
        "tp": None, "dp": [3, 4, 5], "pp": [1, 4], "embedding": [1, 4], "world": world,
        "neighbours": (1, 1), "pp_rank": 1,
    }  # fmt: skip
    assert results[4][2] == {
        "tp": [3, 4, 5], "dp": [1, 4], "pp": None, "embedding": None, "world": world,
        "neighbours": (4, 4), "pp_rank": 0,
    }  # fmt: skip


def test_one_process_needs_no_groups() -> None:
    groups = ParallelGroups.create(
        Layout.of(MODELS["gpt2"], TrainingSpec(global_batch=1, seq_len=8))
    )
    assert groups == ParallelGroups.alone()
    assert (groups.tp, groups.dp, groups.pp, groups.world) == (None,) * 4
