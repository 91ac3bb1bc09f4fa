"""What was built against the plan: nothing that differs passes, and each is named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from shardwright.cost_models.pricing import step_model
from shardwright.runtime.dry_audit import audit_rank
from shardwright.runtime.dry_rank import BuiltRank, dry_rank
from shardwright.specs import Plan, Precision, Recompute
from tests.cost_models.profiles import cluster, profile
from tests.runtime.plans import plan_of, small_model, training_of

PROFILE = profile(cluster(ranks_per_node=8))
MODEL = small_model(tied=True)
TRAINING = training_of(precision=Precision.BF16, global_batch=8)


def priced(**choices: Any) -> Plan:
    """A plan with the record of a real price."""
    plan = plan_of(MODEL, TRAINING, cluster=PROFILE.devices, **choices)
    parts = step_model(MODEL, TRAINING, PROFILE, plan.software).memory(plan.layout)
    prediction = plan.prediction.model_copy(
        update={"memory": parts, "peak_memory_bytes": tuple(p.total_bytes for p in parts)}
    )
    return plan.model_copy(update={"prediction": prediction})


CHOICES: dict[str, Any] = {"tp": 2, "pp": 2, "dp": 2, "zero": 1}


@cache
def built(rank: int = 0) -> tuple[Plan, BuiltRank]:
    plan = priced(**CHOICES)
    return plan, dry_rank(plan, rank)


def differences(plan: Plan, found: BuiltRank) -> tuple[str, ...]:
    return audit_rank(plan, found, PROFILE).differences


@pytest.mark.parametrize(
    ("choices", "rank"),
    [
        ({"tp": 4, "dp": 2, "sequence_parallel": True}, 5),
        ({"tp": 2, "pp": 4, "recompute": Recompute(policy="full")}, 7),
        ({"dp": 8, "zero": 2}, 0),
        ({"dp": 8, "zero": 3, "zero_shard_degree": 4}, 6),
        ({"pp": 2, "vpp": 2, "dp": 4, "zero": 1, "schedule": "interleaved-1f1b"}, 0),
        ({"pp": 2, "dp": 4, "schedule": "gpipe", "boundaries": (3,)}, 7),
    ],
)
def test_a_rank_is_as_planned(choices: dict[str, Any], rank: int) -> None:
    plan = priced(**choices)
    report = audit_rank(plan, dry_rank(plan, rank), PROFILE)
    assert report.differences == ()
    assert all(check.agrees for check in report.checks)


def test_sixty_four_ranks() -> None:
    plan = plan_of(MODEL, training_of(global_batch=64), tp=2, pp=2, dp=16, zero=1)
    assert audit_rank(plan, dry_rank(plan, 37), None).differences == ()


@pytest.mark.parametrize(
    ("altered", "words"),
    [
        ({"boundaries": (3,)}, "layers: 0 1 built, 0-2 (3 layers) planned"),
        ({"zero": 0}, "optimizer"),
        ({"micro_batch": 2}, "calls made"),
        ({"recompute": Recompute(policy="full")}, "FLOPs"),
        ({"tp": 4, "dp": 1}, "group tp: 0 1 built, 0-3 (4 ranks) planned"),
    ],
)
def test_another_plan_than_what_was_built_is_caught(altered: dict[str, Any], words: str) -> None:
    _, found = built()
    told = differences(priced(**{**CHOICES, **altered}), found)
    assert any(words in line for line in told), told


def with_layout(plan: Plan, **changes: Any) -> Plan:
    """The file edited by hand so that everything but its price follows."""
    other = plan_of(MODEL, TRAINING, cluster=PROFILE.devices, **{**CHOICES, **changes})
    return plan.model_copy(update={"layout": other.layout, "schedule": other.schedule})


@pytest.mark.parametrize(
    ("altered", "words"),
    [
        ({"boundaries": (3,)}, "B of weights, its layout has"),
        ({"zero": 0}, "B of optimizer state, its layout has"),
        ({"micro_batch": 2}, "B of activations, its layout has"),
    ],
)
def test_a_consistently_altered_file_is_not_what_was_priced(
    altered: dict[str, Any], words: str
) -> None:
    plan, _ = built()
    edited = with_layout(plan, **altered)
    found = dry_rank(edited, 0)
    told = differences(edited, found)
    assert any(words in line for line in told), told
    assert audit_rank(edited, found, None).differences == ()


def test_two_swapped_ranks_are_caught() -> None:
    plan, found = built()
    for name, ranks, words in (
        ("tp", (0, 2), "group tp: 0 2 built, 0 1 planned"),
        ("dp", (0, 1), "group dp: 0 1 built, 0 2 planned"),
        ("embedding", (0, 5), "group embedding: 0 5 built, 0 4 planned"),
    ):
        swapped = replace(found, groups=found.groups | {name: ranks})
        assert differences(plan, swapped) == (words,)


def test_a_call_more_a_byte_more_a_parameter_less_are_caught() -> None:
    plan, found = built()
    call = ("all_reduce", 16, tuple(range(8)))
    assert found.calls[call] == 1
    (told,) = differences(plan, replace(found, calls=found.calls + type(found.calls)([call])))
    assert told == "all_reduce of 16 B in ranks 0-7 (8 ranks): 2 calls made, 1 planned"
    (told,) = differences(plan, replace(found, flops=found.flops + 1))
    assert told.startswith("FLOPs: ")
    first = found.kept[0]
    kept = [replace(first, weight_bytes=first.weight_bytes + 2), *found.kept[1:]]
    (told,) = differences(plan, replace(found, kept=kept))
    assert told.startswith(f"unit {first.name} keeps ")
    gone = next(shard for shard in found.parameters if shard.name.endswith("mlp.down.weight"))
    fewer = {shard: p for shard, p in found.parameters.items() if shard is not gone}
    assert f"{gone.name} is missing" in differences(plan, replace(found, parameters=fewer))


def test_live_bytes_may_differ_by_counts_and_sums_alone() -> None:
    plan, found = built()
    unbooked = 64 + 4 * len(found.parameters)
    planned = next(c for c in audit_rank(plan, found, None).checks if c.what == "live bytes")
    assert isinstance(planned.planned, int)
    for more, passes in ((0, True), (unbooked, True), (unbooked + 1, False), (-1, False)):
        other = replace(found, peak_bytes=planned.planned + more)
        assert (differences(plan, other) == ()) is passes


def test_what_does_not_fit_is_told() -> None:
    plan, found = built()
    small = plan.prediction.model_copy(update={"memory_capacity_bytes": 2**14})
    told = differences(plan.model_copy(update={"prediction": small}), found)
    assert len(told) == 2
    assert all("do not fit into 16.0 KiB" in line for line in told)


def test_without_its_prices_a_plan_has_no_record_to_check() -> None:
    plan, found = built()
    of = {prices is None: audit_rank(plan, found, prices) for prices in (None, PROFILE)}
    assert "price in the plan" not in [check.what for check in of[True].checks]
    assert of[False].checks[-1].what == "price in the plan"
