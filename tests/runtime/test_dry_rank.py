"""Ranks without data against the same ranks of real launches: fake is real."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from shardwright.runtime.dry_rank import BuiltRank, dry_rank, watch_step
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.specs import Plan, Precision, Recompute
from tests.distributed import run_on_ranks
from tests.runtime.plans import plan_of, small_model, training_of

SCALAR_BYTES = 4
FULL = Recompute(policy="full")
CASES: dict[int, list[dict[str, Any]]] = {
    2: [
        {"tp": 2, "sequence_parallel": True},
        {"dp": 2, "zero": 2, "micro_batch": 2},
        {"dp": 2, "zero": 3, "recompute": FULL},
        {"pp": 2, "boundaries": (3,)},
    ],
    4: [
        {"tp": 2, "pp": 2},
        {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True},
        {"dp": 4, "zero": 1, "zero_shard_degree": 2},
        {"pp": 2, "vpp": 2, "dp": 2, "schedule": "interleaved-1f1b"},
    ],
}


def plan(**choices: Any) -> Plan:
    tied = choices.get("pp", 1) == 2
    model = small_model(tied=tied, num_layers=4 if tied else 2)
    return plan_of(model, training_of(precision=Precision.BF16), **choices)


def on_this_rank(choices: dict[str, Any]) -> dict[str, Any]:
    made = plan(**choices)
    return facts(watch_step(made, ParallelGroups.create(made.layout), draws_weights=True))


def facts(built: BuiltRank) -> dict[str, Any]:
    return {
        "rank": built.rank,
        "shards": sorted(built.parameters, key=lambda shard: shard.name),
        "shapes": {shard.name: tuple(p.shape) for shard, p in built.parameters.items()},
        "parameter_bytes": built.parameter_bytes,
        "groups": built.groups,
        "calls": built.calls,
        "flops": built.flops,
        "kept": built.kept,
        "building_peak_bytes": built.building_peak_bytes,
        "peak_bytes": built.peak_bytes,
    }


@pytest.mark.multiprocess
@pytest.mark.parametrize("world", sorted(CASES))
def test_a_dry_rank_is_the_real_rank(world: int) -> None:
    real = run_on_ranks(
        world, [partial(on_this_rank, choices) for choices in CASES[world]], timeout_s=300.0
    )
    for index, choices in enumerate(CASES[world]):
        for rank in (0, world - 1):
            dry, ran = facts(dry_rank(plan(**choices), rank)), real[rank][index]
            differing = {name: (dry[name], ran[name]) for name in dry if dry[name] != ran[name]}
            # A fake scalar is first a real one; real weights are drawn tile by tile.
            more, less = differing.pop("peak_bytes", (0, 0))
            assert 0 <= more - less <= SCALAR_BYTES
            differing.pop("building_peak_bytes", None)
            assert dry["building_peak_bytes"] <= ran["building_peak_bytes"]
            assert not differing, (choices, rank)
