"""The books of single ranks; `benchmarks.step_ledger` holds them against real steps."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.cost_models.rank_books import RankBooks, groups_of_rank
from shardwright.cost_models.step import StepModel
from shardwright.specs import Layout, Recompute, ScheduleName
from tests.cost_models.profiles import profile
from tests.cost_models.test_units import TRAINING, llama


def test_a_rank_alone_calls_nobody() -> None:
    model = llama()
    books = RankBooks(model, TRAINING, Layout.of(model, TRAINING), 0)
    assert not books.calls()
    assert books.layers == tuple(range(6))
    assert sum(parameter.numel for parameter in books.parameters) == model.num_parameters
    assert books.parameter_bytes == 2 * model.num_parameters


@pytest.mark.parametrize(
    "choices",
    [
        {"tp": 2, "dp": 4},
        {"tp": 2, "pp": 2, "dp": 2},
        {"dp": 8, "zero": 1, "zero_shard_degree": 4},
        {"pp": 2, "dp": 4, "zero": 3, "zero_shard_degree": 2},
    ],
)
def test_groups_are_those_of_the_grid(choices: dict[str, Any]) -> None:
    model = llama()
    layout = Layout.of(model, TRAINING, **choices)
    world = layout.world_size
    for rank in range(8):
        groups = groups_of_rank(layout, rank)
        for axis in ("tp", "dp", "pp"):
            assert list(groups[axis]) == next(g for g in world.groups(axis) if rank in g)
        assert len(groups["shard"]) == layout.zero_shard_degree
        assert set(groups["shard"]) & set(groups["replica"]) == {rank}
        assert len(groups["shard"]) * len(groups["replica"]) == layout.dp
        assert set(groups["shard"]) | set(groups["replica"]) <= set(groups["dp"])


def test_the_ends_of_a_pipeline_share_a_group() -> None:
    model = llama()
    layout = Layout.of(model, TRAINING, pp=4, dp=2)
    ends = [groups_of_rank(layout, rank)["embedding"] for rank in range(8)]
    assert ends == [(0, 6), (1, 7), (2,), (3,), (4,), (5,), (0, 6), (1, 7)]


def test_calls_count_every_micro_batch_and_the_two_sums_once() -> None:
    model = llama()
    layout = Layout.of(model, TRAINING, tp=2, dp=2, pp=2)
    calls = RankBooks(model, TRAINING, layout, 0).calls()
    assert calls["all_reduce", 8, (0, 2)] == 1
    assert calls["all_reduce", 16, tuple(range(8))] == 1
    sequence_bytes = 128 * 128 * 2
    assert calls["send_recv", sequence_bytes, (0, 4)] == layout.micro_batches == 8
    per_micro_batch = 1 + 3 * (2 + 2)  # the embedding; of each layer two forward, two backward
    assert calls["all_reduce", sequence_bytes, (0, 1)] == per_micro_batch * 8


def test_recomputation_costs_flops_and_saves_memory() -> None:
    model = llama()
    kept, again = (
        RankBooks(model, TRAINING, Layout.of(model, TRAINING, dp=4, recompute=policy), 0)
        for policy in (None, Recompute(policy="full"))
    )
    assert kept.flops() < again.flops() < kept.flops() * 4 / 3
    assert kept.memory().activations > again.memory().activations
    assert kept.kept() == again.kept()


def test_ranks_of_one_stage_may_hold_more_or_less() -> None:
    """Query heads are spread unevenly: rank 0 has more than rank 3."""
    model = llama(heads=6, kv_heads=2)
    layout = Layout.of(model, TRAINING, tp=4, pp=2)
    each = [RankBooks(model, TRAINING, layout, rank) for rank in range(4)]
    sizes = [books.memory().total_bytes for books in each]
    assert sizes[3] < sizes[0]
    fullest = StepModel(model, TRAINING, profile()).memory(layout)[0]
    assert max(sizes) == fullest.total_bytes - fullest.fixed
    state = [sum(unit.optimizer_bytes for unit in books.kept()) for books in each]
    assert state == [books.memory().optimizer_state for books in each]


def test_a_tied_weight_of_two_stages_of_a_rank_is_there_once() -> None:
    model = llama(tie_word_embeddings=True)
    layout = Layout.of(model, TRAINING, pp=2, vpp=2, schedule="zb-v")
    books = RankBooks(model, TRAINING, layout, 0)
    names = [parameter.name for parameter in books.parameters]
    assert names.count("embedding.weight") == 1
    assert [unit.name for unit in books.kept()].count("tied_embedding") == 1
    assert books.groups["embedding"] == (0,)


def test_a_custom_schedule_has_the_books_of_the_one_that_it_repeats() -> None:
    model = llama()
    known = Layout.of(model, TRAINING, pp=2, dp=2)
    custom = known.model_copy(update={"schedule": ScheduleName.CUSTOM})
    for rank in range(4):
        one, other = (
            RankBooks(model, TRAINING, layout, rank, schedule_of(known))
            for layout in (known, custom)
        )
        assert one.calls() == other.calls()
        assert one.memory() == other.memory()
