"""What would help is priced and planned again by other means, and sorted."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.hardware_profiles.profile import HardwareProfile, Parameter
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import stack_parameters
from shardwright.planner.api import estimate, plan
from shardwright.planner.explain.sensitivity import FACTORS, Sensitivity, sensitivities
from shardwright.planner.layouts import layout_in_words
from shardwright.specs import Plan, TrainingSpec
from shardwright.specs.sources import resolve_model

PROFILE = resolve_cluster("dgx-h100:2")
TRAINING = TrainingSpec(global_batch=64, seq_len=4096)


@pytest.fixture(scope="module")
def made() -> Plan:
    answer = plan(
        model=resolve_model("llama-3-8b"), profile=PROFILE, training=TRAINING,
        fix="tp=2,pp=1,cp=1",
    )  # fmt: skip
    assert answer.plan is not None
    return answer.plan


@pytest.fixture(scope="module")
def found(made: Plan) -> dict[str, Sensitivity]:
    return {one.what: one for one in sensitivities(made, PROFILE)}


def by_hand(what: str, factor: float) -> HardwareProfile:
    """The cluster with more of one thing, changed field by field."""
    (group,) = PROFILE.devices.groups
    device = group.accelerator
    tier = "intra_node" if what.startswith("intra") else "inter_node"
    if what.endswith("node_bandwidth"):
        link = getattr(group, tier)
        faster = {"bandwidth_bytes_per_s": link.bandwidth_bytes_per_s * factor}
        group = group.model_copy(update={tier: link.model_copy(update=faster)})
    else:
        fields: dict[str, dict[str, Any]] = {
            "flops_per_s": {
                "peak_flops_per_s": {k: v * factor for k, v in device.peak_flops_per_s.items()}
            },
            "memory_bandwidth": {
                "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s * factor
            },
            "memory": {"usable_memory_bytes": int(device.usable_memory_bytes * factor),
                       "memory_bytes": int(device.memory_bytes * factor)},
        }  # fmt: skip
        changed = fields[what]
        group = group.model_copy(update={"accelerator": device.model_copy(update=changed)})
    clock = stack_parameters("generic", PROFILE)["clock.sustained_ratio"]
    kept = Parameter(name="clock.sustained_ratio", value=clock, unit="1", kind="user",
                     fitted_from="as it was")  # fmt: skip
    devices = PROFILE.devices.model_copy(update={"groups": (group,)})
    return PROFILE.model_copy(
        update={"devices": devices, "parameters": (*PROFILE.parameters, kept)}
    )


@pytest.mark.parametrize(
    "what", ["flops_per_s", "memory_bandwidth", "intra_node_bandwidth", "inter_node_bandwidth"]
)
def test_the_same_layout_is_priced_again(
    made: Plan, found: dict[str, Sensitivity], what: str
) -> None:
    one = found[what]
    assert [gain.factor for gain in one.gains] == list(FACTORS)
    for gain in one.gains:
        again = estimate(
            model=made.model, profile=by_hand(what, gain.factor), training=made.training,
            software=made.software, layout=layout_in_words(made.layout),
        )  # fmt: skip
        assert again.plan is not None
        tokens_per_s = again.plan.prediction.tokens_per_s
        assert gain.tokens_per_s == pytest.approx(tokens_per_s, rel=1e-12)
        assert gain.gain == pytest.approx(tokens_per_s / made.prediction.tokens_per_s - 1)
        assert gain.layout == made.layout
    assert "priced again" in one.how_in_words()


def test_more_memory_is_planned_again_under_what_was_asked(
    made: Plan, found: dict[str, Sensitivity]
) -> None:
    for gain in found["memory"].gains:
        again = plan(
            model=made.model, profile=by_hand("memory", gain.factor), training=made.training,
            software=made.software, fix="tp=2,pp=1,cp=1", top=1,
        )  # fmt: skip
        assert again.plan is not None
        assert gain.tokens_per_s == pytest.approx(again.plan.prediction.tokens_per_s, rel=1e-9)
        assert (gain.layout.tp, gain.layout.pp) == (2, 1)


def test_a_larger_batch_is_planned_again(made: Plan, found: dict[str, Sensitivity]) -> None:
    (gain,) = found["global_batch"].gains
    training = made.training.model_copy(update={"global_batch": 128})
    again = plan(
        model=made.model, profile=PROFILE, training=training, software=made.software,
        fix="tp=2,pp=1,cp=1", top=1,
    )  # fmt: skip
    assert again.plan is not None
    assert gain.factor == 2
    assert gain.tokens_per_s == pytest.approx(again.plan.prediction.tokens_per_s, rel=1e-9)


def test_the_most_useful_comes_first_and_says_so(made: Plan) -> None:
    ordered = sensitivities(made, PROFILE)
    gains = [one.largest_gain for one in ordered]
    assert gains == sorted(gains, reverse=True)
    assert ordered[0].what == "flops_per_s"
    assert (
        ordered[0].in_words().startswith(f"FLOP/s: +10%: {ordered[0].gains[0].gain:+.1%} tokens/s")
    )


def test_what_the_cluster_has_not_is_left_out() -> None:
    profile = resolve_cluster("dgx-h100", gpus=1)
    answer = plan(model=resolve_model("gpt2"), profile=profile, training=TrainingSpec(
        global_batch=8, seq_len=1024))  # fmt: skip
    assert answer.plan is not None
    whats = {one.what for one in sensitivities(answer.plan, profile)}
    assert whats == {"flops_per_s", "memory_bandwidth", "memory", "global_batch"}
