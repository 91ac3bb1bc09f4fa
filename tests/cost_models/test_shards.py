"""The architecture's table *Units*, and the collectives of each ZeRO stage."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shardwright.cost_models.blocks.operations import Collective
from shardwright.cost_models.shards import UnitShards
from shardwright.specs import Precision, TrainingSpec


def unit(zero: int, degree: int, *, precision: str = "bf16", replicated: int = 0) -> UnitShards:
    """Ten elements: padded to 12 over 4 ranks."""
    training = TrainingSpec(global_batch=1, seq_len=1, precision=Precision(precision))
    return UnitShards(10, replicated, degree, zero, training.dtypes)


def calls(found: Iterable[tuple[Collective, str]]) -> list[tuple[str, str, int]]:
    return [(call.kind, group, call.input_bytes) for call, group in found]


@pytest.mark.parametrize(
    ("zero", "degree", "weights", "gradients", "state"),
    [
        (0, 1, 10 * 2, 10 * 4, 10 * 12),
        (1, 4, 12 * 2, 12 * 4, 3 * 12),
        (2, 4, 12 * 2, 3 * 4, 3 * 12),
        (3, 4, 3 * 2, 3 * 4, 3 * 12),
        (3, 1, 10 * 2, 10 * 4, 10 * 12),
    ],
)
def test_what_is_kept(zero: int, degree: int, weights: int, gradients: int, state: int) -> None:
    shards = unit(zero, degree)
    kept = (shards.weight_bytes, shards.gradient_bytes, shards.optimizer_bytes)
    assert kept == (weights, gradients, state)


def test_without_a_master_copy_the_moments_alone_are_state() -> None:
    assert unit(1, 4, precision="fp32").optimizer_bytes == 3 * 8


def test_what_is_whole_for_a_while() -> None:
    assert (unit(3, 4).gathered_bytes, unit(3, 4).arriving_bytes) == (12 * 2, 12 * 4)
    assert (unit(2, 4).gathered_bytes, unit(2, 4).arriving_bytes) == (0, 12 * 4)
    assert (unit(1, 4).gathered_bytes, unit(1, 4).arriving_bytes) == (0, 0)


def test_collectives_of_each_stage() -> None:
    zero_0, zero_1, zero_2, zero_3 = unit(0, 1), unit(1, 4), unit(2, 4), unit(3, 4)
    assert calls(zero_0.reduction()) == [("all_reduce", "replica", 40)]
    assert calls(zero_1.reduction()) == [
        ("reduce_scatter", "shard", 48), ("all_reduce", "replica", 12),
    ]  # fmt: skip
    assert calls(zero_1.publishing()) == [("all_gather", "shard", 6)]
    assert calls(zero_3.reduction()) == [("all_reduce", "replica", 12)]
    assert calls(zero_3.gathering()) == [("all_gather", "shard", 6)]
    assert calls(zero_3.scattering()) == [("reduce_scatter", "shard", 48)]
    assert calls(zero_2.publishing()) == [("all_gather", "shard", 6)]
    assert calls(zero_3.tied_sum()) == [("all_reduce", "embedding", 12)]
    for never in (zero_0.gathering(), zero_0.scattering(), zero_0.publishing(),
                  zero_1.gathering(), zero_1.scattering(), zero_2.gathering(),
                  zero_3.publishing()):  # fmt: skip
        assert calls(never) == []


def test_replicated_gradients_are_summed_over_tp_once_where_they_are_complete() -> None:
    assert calls(unit(1, 4, replicated=3).reduction())[0] == ("all_reduce", "tp", 12)
    assert calls(unit(3, 4, replicated=3).scattering())[0] == ("all_reduce", "tp", 12)
    assert calls(unit(3, 4, replicated=3).reduction()) == [("all_reduce", "replica", 12)]


def test_passes_over_the_own_slice() -> None:
    shards = unit(1, 4)
    assert shards.norm().num_bytes == 3 * 4
    passes = {op.name: op.num_bytes for op in shards.update(clips=True)}
    assert passes == {
        "zero_gradients": 12 * 4,
        "scale_gradients": 2 * 3 * 4,
        "adamw": 3 * (4 + 2 * 12),
        "cast": 3 * (4 + 2),
    }
    unclipped = [op.name for op in unit(0, 1, precision="fp32").update(clips=False)]
    assert unclipped == ["zero_gradients", "adamw"]
