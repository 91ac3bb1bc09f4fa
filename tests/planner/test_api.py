"""The answers that commands print: keys, determinism, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.api import PlanAnswer, estimate, plan
from shardwright.planner.search import Progress
from shardwright.specs import Breakdown, InputError, Plan, TrainingSpec
from shardwright.specs.sources import resolve_model
from tests.planner.conftest import measured, tiny_model

PROFILE = resolve_cluster("dgx-h100", gpus=4)
TRAINING = TrainingSpec.model_validate({"global_batch": 8, "seq_len": 64})
MODEL = tiny_model(6, hidden=64)

ANSWER_KEYS = {
    "schema", "feasible", "assumed", "layout", "prediction", "certificate", "ties",
    "alternatives", "baselines", "reasons", "suggestions",
}  # fmt: skip
LAYOUT_KEYS = {
    "tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch", "num_microbatches", "zero",
    "zero_shard_degree", "expert_zero_shard_degree", "sequence_parallel", "recompute", "offload",
    "loss_chunks", "compile", "schedule", "stages", "stage_meshes", "further_replicas",
}  # fmt: skip
PREDICTION_KEYS = {
    "step_time_s", "step_time_band_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu",
    "bubble_fraction", "peak_memory_bytes", "memory_capacity_bytes", "memory_verdict", "breakdown",
}  # fmt: skip
CERTIFICATE_KEYS = {
    "considered", "excluded_by_rules", "excluded_by_memory", "excluded_by_bound",
    "excluded_by_dominance", "simulated", "optimal", "gap", "space", "search_s", "counts",
}  # fmt: skip


def plan_of(**options: Any) -> PlanAnswer:
    return plan(model=MODEL, profile=PROFILE, training=TRAINING, **options)


def small(usable_bytes: int) -> HardwareProfile:
    (group,) = PROFILE.devices.groups
    device = group.accelerator.model_copy(update={"usable_memory_bytes": usable_bytes})
    group = group.model_copy(update={"accelerator": device})
    devices = PROFILE.devices.model_copy(update={"groups": (group,)})
    return PROFILE.model_copy(update={"devices": devices})


def test_the_json_of_a_plan_has_the_promised_keys() -> None:
    answer = plan_of(assumed={"precision": "bf16"})
    value = json.loads(json.dumps(answer.to_json_dict()))
    assert set(value) == ANSWER_KEYS
    assert value["feasible"] is True
    assert value["assumed"] == {"precision": "bf16"}
    assert set(value["layout"]) == LAYOUT_KEYS
    assert set(value["prediction"]) == PREDICTION_KEYS
    assert set(value["prediction"]["breakdown"]) == set(Breakdown.model_fields)
    assert set(value["certificate"]) == CERTIFICATE_KEYS
    for candidate in value["ties"] + value["alternatives"]:
        assert set(candidate["layout"]) == LAYOUT_KEYS
        assert set(candidate["prediction"]) == PREDICTION_KEYS
    breakdown_s = sum(value["prediction"]["breakdown"].values())
    assert breakdown_s == pytest.approx(value["prediction"]["step_time_s"])


def test_the_plan_is_complete_and_comes_back_byte_for_byte() -> None:
    made = plan_of(fix="pp=2").plan
    assert made is not None
    assert made.schedule is not None
    assert made.schedule.violations() == []
    assert made.schedule.num_micro_batches == made.layout.num_microbatches
    assert made.provenance.profile_hash == PROFILE.content_hash()
    assert Plan.from_json(made.to_json()).to_json() == made.to_json()


def test_equal_questions_have_equal_answers() -> None:
    def told(answer: PlanAnswer) -> dict[str, Any]:
        value = answer.to_json_dict()
        del value["certificate"]["search_s"]
        return value

    assert told(plan_of(top=4)) == told(plan_of(top=4))


def test_rows_differ_in_more_than_boundaries_and_come_in_order() -> None:
    made = plan_of(top=5).plan
    assert made is not None
    rows = [made.layout, *(candidate.layout for candidate in made.alternatives)]
    assert len(rows) == 5
    plain = {row.model_copy(update={"stages": rows[0].stages, "recompute": ()}) for row in rows}
    recomputes = {(row.tp, row.pp, row.micro_batch, row.recompute[0].policy) for row in rows}
    assert max(len(plain), len(recomputes)) > 1
    times = [made.prediction.step_time_s, *(c.prediction.step_time_s for c in made.alternatives)]
    assert times == sorted(times)


def test_what_is_fixed_and_forbidden_holds() -> None:
    made = plan_of(fix={"pp": 2, "schedule": "gpipe"}, forbid=["zero", "recompute"]).plan
    assert made is not None
    assert (made.layout.pp, made.layout.schedule, made.layout.zero) == (2, "gpipe", 0)
    assert {entry.policy for entry in made.layout.recompute} == {"none"}
    assert "fixed: pp = 2, schedule = gpipe" in made.certificate.space


def test_what_does_not_fit_has_reasons_and_no_plan() -> None:
    answer = plan(model=MODEL, profile=small(10**6), training=TRAINING)
    value = answer.to_json_dict()
    assert set(value) == ANSWER_KEYS
    assert (answer.feasible, value["layout"], value["prediction"]) == (False, None, None)
    assert "1,000,000 bytes" in value["reasons"][0]
    assert value["certificate"]["simulated"] == 0
    assert value["certificate"]["excluded_by_bound"] == 0


def test_an_estimate_prices_the_layout_that_was_named() -> None:
    answer = estimate(
        model=MODEL, profile=PROFILE, training=TRAINING, layout="tp=2,pp=2,stages=0-2/2-6,mb=2"
    )
    assert answer.feasible
    assert answer.plan is not None
    layout = answer.plan.layout
    assert (layout.tp, layout.pp, layout.dp, layout.micro_batch) == (2, 2, 1, 2)
    assert [stage.layers for stage in layout.stages] == [(0, 2), (2, 6)]
    assert set(answer.to_json_dict()) == ANSWER_KEYS


@pytest.mark.parametrize(("schedule", "vpp"), [("zb-h1", 1), ("zb-v", 2), ("1f1b", 1)])
def test_memory_that_a_split_backward_leaves_uncounted_is_said(schedule: str, vpp: int) -> None:
    """Books of other software leave it out; where both halves run at once there is none."""
    layout = f"pp=2,schedule={schedule},vpp={vpp}"
    answer = estimate(model=MODEL, profile=PROFILE, training=TRAINING, layout=layout)
    assert ("memory" in answer.assumed) == (schedule != "1f1b")
    assert answer.plan is not None
    assert answer.plan.assumed == answer.assumed


def test_an_estimate_equals_the_plan_of_the_same_layout() -> None:
    made = plan_of().plan
    assert made is not None
    from shardwright.planner.layouts import layout_in_words

    answer = estimate(
        model=MODEL, profile=PROFILE, training=TRAINING, layout=layout_in_words(made.layout)
    )
    assert answer.plan is not None
    assert answer.plan.layout == made.layout
    assert answer.plan.prediction == made.prediction


def test_an_estimate_that_does_not_fit_is_priced_all_the_same() -> None:
    answer = estimate(model=MODEL, profile=small(10**6), training=TRAINING, layout={"tp": 4})
    assert not answer.feasible
    assert answer.plan is not None
    assert answer.plan.prediction.memory_verdict == "does_not_fit"
    assert "more than the 1,000,000 bytes" in answer.reasons[0]


def test_an_estimate_against_the_rules_says_which() -> None:
    answer = estimate(model=MODEL, profile=PROFILE, training=TRAINING, layout={"tp": 4, "pp": 3})
    assert not answer.feasible
    assert answer.plan is None
    assert any("4 devices" in reason for reason in answer.reasons)
    assert set(answer.to_json_dict()) == ANSWER_KEYS


def test_a_time_limit_returns_the_best_found_with_its_gap() -> None:
    answer = plan_of(time_limit_s=1e-9)
    assert answer.certificate is not None
    assert answer.feasible
    assert answer.certificate.optimal == (answer.certificate.gap == 0)


def test_progress_is_told() -> None:
    told: list[Progress] = []
    plan_of(progress=told.append)
    assert told
    assert told[-1].simulated >= 1
    assert all(report.bound_s <= report.best_step_s * 1.5 for report in told)


@pytest.mark.parametrize(
    "options", [{"fix": "tp=3"}, {"fix": "tp"}, {"forbid": ["tpp"]}, {"top": 0},
                {"objective": "speed"}],
)  # fmt: skip
def test_bad_questions_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        plan_of(**options)


def test_adapters_are_planned_on_other_software_and_refused_on_ours() -> None:
    training = TRAINING.model_copy(update={"trainable": "lora:16"})
    assert plan(model=MODEL, profile=PROFILE, training=training).feasible
    with pytest.raises(InputError, match="lora"):
        plan(model=MODEL, profile=measured(PROFILE), training=training)


def test_every_family_and_dimension_is_estimated() -> None:
    layout = (
        "tp=2,cp=2,sp=on,recompute=selective:norm+mlp_act,loss_chunks=4,zero=2,offload=optimizer"
    )
    answer = estimate(model=MODEL, profile=PROFILE, training=TRAINING, layout=layout)
    assert answer.feasible
    assert answer.plan is not None
    assert answer.plan.software.framework == "generic"
    found = answer.plan.layout
    assert (found.cp, found.zero, found.offload, found.loss_chunks) == (2, 2, ("optimizer",), 4)


def test_planning_imports_no_torch() -> None:
    code = "import sys, shardwright.planner.api; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


ASSUMED = {"global_batch": "512"}


@pytest.mark.parametrize(
    ("layout", "batch"),
    [
        ("tp=2", 512),
        ("tp=2,micro_batch=3", 516),
        ("tp=1,micro_batch=5", 520),
        ("tp=2,micro_batch=2,m=7", 56),
        ("tp=2,pp=4,vpp=2,micro_batch=3,schedule=interleaved-1f1b", 513),
    ],
)
def test_an_assumed_batch_is_one_that_the_layout_shares_evenly(layout: str, batch: int) -> None:
    options: dict[str, Any] = {
        "model": resolve_model("llama-3-8b"), "profile": resolve_cluster("dgx-h100"),
        "training": TrainingSpec(global_batch=512, seq_len=8192), "layout": layout,
    }  # fmt: skip
    answer = estimate(**options, assumed=ASSUMED)
    assert answer.plan is not None, answer.reasons
    assert answer.plan.training.global_batch == batch
    assert answer.assumed["global_batch"] == str(batch)
    named = answer.plan.layout
    assert batch == named.dp * named.micro_batch * named.num_microbatches
    stated = estimate(**options)
    assert (stated.plan is None) == (batch != 512)


def test_a_plan_s_assumed_batch_is_shared_by_what_is_fixed() -> None:
    training = TrainingSpec(global_batch=512, seq_len=8192)
    answer = plan(
        model=resolve_model("llama-3-8b"), profile=resolve_cluster("dgx-h100"), training=training,
        fix="tp=2,cp=1,pp=2,micro_batch=3", assumed=ASSUMED, top=1,
    )  # fmt: skip
    assert answer.plan is not None, answer.reasons
    assert answer.plan.layout.micro_batch == 3
    assert answer.plan.training.global_batch == 504
    assert answer.assumed["global_batch"] == "504"
