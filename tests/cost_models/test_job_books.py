"""Books of stages and units: which tensor-parallel ranks differ, and what ZeRO makes of a unit."""

from __future__ import annotations

import pytest

from shardwright.cost_models.job_books import JobBooks, distinct_tp_ranks
from shardwright.specs import Layout, SoftwareSpec
from tests.cost_models.test_units import TRAINING, llama


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "ranks"),
    [
        (8, 4, 1, (0,)),
        (8, 4, 4, (0,)),
        (9, 3, 2, (0,)),
        (8, 2, 4, (0,)),
        (6, 2, 4, (0, 1, 2)),
    ],
)
def test_ranks_that_may_be_slowest(
    heads: int, kv_heads: int, tp: int, ranks: tuple[int, ...]
) -> None:
    assert distinct_tp_ranks(llama(heads, kv_heads), tp) == ranks


@pytest.mark.parametrize(
    ("kv_heads", "tp", "shared_rows"), [(4, 4, 0), (2, 4, 2 * 2 * 16), (1, 8, 2 * 1 * 16)]
)
def test_shared_key_and_value_rows_are_summed_over_tp(
    kv_heads: int, tp: int, shared_rows: int
) -> None:
    model = llama(kv_heads=kv_heads)
    job = JobBooks(model, TRAINING, SoftwareSpec())
    chosen = Layout.of(model, TRAINING, tp=tp, dp=8 // tp)
    layer = job.books(chosen, 0)[0].units[1]
    assert job.shards(chosen, layer).replicated_numel == shared_rows * 128


def test_norms_are_summed_over_tp_under_sequence_parallelism_alone() -> None:
    model = llama()
    job = JobBooks(model, TRAINING, SoftwareSpec())
    for sequence_parallel, expected in ((False, 0), (True, 2 * 128)):
        chosen = Layout.of(model, TRAINING, tp=2, dp=4, sequence_parallel=sequence_parallel)
        layer = job.books(chosen, 0)[0].units[1]
        assert job.shards(chosen, layer).replicated_numel == expected


def test_ranks_that_differ_have_books_of_their_own() -> None:
    """Six query heads in two groups over four ranks: the first two hold two, the others one."""
    model = llama(heads=6, kv_heads=2)
    job = JobBooks(model, TRAINING, SoftwareSpec())
    chosen = Layout.of(model, TRAINING, tp=4, dp=2)
    own = [job.books_of_rank(chosen, 0, rank) for rank in range(4)]
    assert job.books(chosen, 0) == (own[0], own[1], own[2])
    assert own[3].num_parameters < own[0].num_parameters
