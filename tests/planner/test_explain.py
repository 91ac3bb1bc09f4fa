"""Explanations agree with the numbers that they explain."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.api import plan
from shardwright.planner.explain import (
    LIMITS,
    difference_in_words,
    explain,
    time_shares,
    what_limits,
    why_not,
)
from shardwright.specs import Breakdown, Candidate, InputError, Plan, TrainingSpec
from tests.planner.conftest import tiny_model

PROFILE = resolve_cluster("dgx-h100", gpus=4)


@pytest.fixture(scope="module")
def made() -> Plan:
    training = TrainingSpec.model_validate({"global_batch": 8, "seq_len": 64})
    answer = plan(model=tiny_model(6, hidden=64), profile=PROFILE, training=training)
    assert answer.plan is not None
    return answer.plan


def test_every_field_of_the_breakdown_is_explained_once() -> None:
    named = [name for names in LIMITS.values() for name in names]
    assert sorted(named) == sorted(Breakdown.model_fields)


def test_shares_sum_to_the_step(made: Plan) -> None:
    shares = time_shares(made.prediction.breakdown)
    assert sum(seconds for _, seconds, _ in shares) == pytest.approx(made.prediction.step_time_s)
    assert sum(share for _, _, share in shares) == pytest.approx(1)
    assert what_limits(made.prediction).startswith(shares[0][0])


def test_what_does_not_fit_is_limited_by_memory(made: Plan) -> None:
    too_big = made.prediction.model_copy(update={"memory_verdict": "does_not_fit"})
    assert what_limits(too_big) == "memory"


def test_the_explanation_covers_every_rank_and_runner_up(made: Plan) -> None:
    found = explain(made)
    assert [stage.peak_bytes for stage in found.stages] == list(made.prediction.peak_memory_bytes)
    assert all(s.memory.total_bytes == s.peak_bytes for s in found.stages)
    assert len(found.runners_up) == len(made.alternatives) == 2
    assert len(found.lines()) > len(found.stages) + len(found.runners_up)


def test_the_difference_names_the_term_that_makes_it(made: Plan) -> None:
    chosen = Candidate(layout=made.layout, prediction=made.prediction)
    slow_s = made.prediction.step_time_s
    breakdown = made.prediction.breakdown
    slower = made.prediction.model_copy(
        update={
            "step_time_s": 2 * slow_s,
            "breakdown": breakdown.model_copy(update={"bubble": breakdown.bubble + slow_s}),
        }
    )
    words = difference_in_words(Candidate(layout=made.layout, prediction=slower), chosen)
    assert words.startswith("100.00% slower: bubble +")
    assert difference_in_words(chosen, chosen) == "equally fast"


def test_the_chosen_layout_is_recognised(made: Plan) -> None:
    asked = {"tp": made.layout.tp, "pp": made.layout.pp, "zero": made.layout.zero}
    assert why_not(made, asked, PROFILE).verdict == "chosen"


def test_another_layout_is_slower_or_tied_by_what_it_costs(made: Plan) -> None:
    asked = "tp=1,pp=4" if made.layout.pp != 4 else "tp=4,pp=1"
    answer = why_not(made, asked, PROFILE)
    assert answer.verdict in ("slower", "tied")
    assert answer.candidate is not None
    assert answer.candidate.layout.violations(made.model, made.cluster, made.training) == []
    ratio = answer.candidate.prediction.step_time_s / made.prediction.step_time_s
    assert ratio >= 1
    assert f"{ratio - 1:.2%} slower" in answer.reasons[0]


def test_a_layout_against_the_rules_gets_the_rule_and_the_nearest(made: Plan) -> None:
    answer = why_not(made, "tp=3", PROFILE)
    assert answer.verdict == "breaks_rules"
    assert "4 devices" in answer.reasons[0]
    assert answer.candidate is None
    assert answer.nearest is not None
    assert answer.nearest.layout.tp in (2, 4)


def test_a_layout_that_is_too_big_gets_the_bytes(made: Plan) -> None:
    (group,) = PROFILE.devices.groups
    needed = max(made.prediction.peak_memory_bytes)
    device = group.accelerator.model_copy(update={"usable_memory_bytes": needed})
    group = group.model_copy(update={"accelerator": device})
    devices = PROFILE.devices.model_copy(update={"groups": (group,)})
    tight = PROFILE.model_copy(update={"devices": devices})
    answer = why_not(made, "tp=1,pp=1,dp=4,micro_batch=2,zero=0,recompute=none", tight)
    assert answer.verdict == "does_not_fit"
    assert f"more than the {needed:,} bytes" in answer.reasons[0]


@pytest.mark.parametrize("asked", ["", "tpp=2", "tp=none"])
def test_nonsense_is_refused(made: Plan, asked: str) -> None:
    with pytest.raises(InputError):
        why_not(made, asked, PROFILE)
