"""A point is what `plan` says of it; what cannot be planned is an outcome, too."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner import api
from shardwright.planner.question import Training, question
from shardwright.planner.what_if.points import (
    Outcome,
    Point,
    evaluate,
    fixed_of,
    question_of,
    with_layers,
)
from shardwright.specs import InputError
from shardwright.specs.sources import resolve_model
from tests.planner.what_if.small import QUICK, infeasible, planned


def test_a_point_is_what_plan_says() -> None:
    outcome = evaluate(QUICK)
    asked = question("gpt2", "dgx-h100", gpus=2, nodes=None, training=Training(global_batch="8"))
    answer = api.plan(
        model=asked.model, profile=asked.profile, training=asked.training,
        software=asked.software, fix=QUICK.fix, assumed=asked.assumed,
    )  # fmt: skip
    found = answer.to_json_dict()
    assert outcome.verdict == "planned"
    assert outcome.layout == found["layout"]
    assert outcome.prediction == found["prediction"]
    assert outcome.assumed == found["assumed"]
    assert outcome.asked["gpus"] == outcome.rates["num_devices"] == 2


def test_an_outcome_survives_the_disk() -> None:
    outcome = evaluate(QUICK)
    assert Outcome.from_json_dict(json.loads(json.dumps(outcome.to_json_dict()))) == outcome


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"verdict": "planned"},
        {**planned().to_json_dict(), "verdict": "great"},
        {**planned().to_json_dict(), "prediction": None},
        {**planned().to_json_dict(), "extra": 1},
    ],
)
def test_what_is_no_outcome_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is nobody's contract
        Outcome.from_json_dict(value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gpus": "12"}, "do not fill whole nodes"),
        ({"precision": "fp31"}, "fp32"),
        ({"layers": "1", "tp": "3", "pp": "9999999"}, "pp"),
    ],
)
def test_a_wrong_point_is_invalid_with_its_reason(settings: dict[str, str], said: str) -> None:
    outcome = evaluate(Point("gpt2", "dgx-h100", settings))
    assert outcome.verdict == "invalid"
    assert said in (outcome.reason or "")


def test_a_point_that_does_not_fit_says_by_how_much() -> None:
    outcome = evaluate(Point("llama-3.1-70b", "dgx-h100", {"gpus": "1"}))
    assert outcome.verdict == "infeasible"
    assert "bytes" in (outcome.reason or "")
    assert outcome.prediction is None
    assert outcome.asked["gpus"] == 1


def test_what_ran_out_of_time_is_not_proven() -> None:
    assert planned().is_proven
    assert infeasible().is_proven
    assert not planned(optimal=False).is_proven


def test_choices_that_vary_are_fixed() -> None:
    point = Point("gpt2", "dgx-h100", {"gpus": "2", "tp": "2", "zero": "1"}, fix="cp=1")
    assert fixed_of(point) == "cp=1,tp=2,zero=1"
    assert evaluate(replace(QUICK, settings={**QUICK.settings, "pp": "2"})).verdict == "invalid"


def test_parts_of_the_cluster_are_scaled_or_set() -> None:
    point = Point("gpt2", "dgx-h100", {"nodes": "2", "memory": "50%", "inter_node_bandwidth": "2x"})
    group = question_of(point).profile.devices.groups[0]
    plain = resolve_cluster("dgx-h100", nodes=2).devices.groups[0]
    assert group.accelerator.memory_bytes == plain.accelerator.memory_bytes // 2
    assert group.inter_node is not None
    assert plain.inter_node is not None
    rate = plain.inter_node.bandwidth_bytes_per_s
    assert group.inter_node.bandwidth_bytes_per_s == 2 * rate
    point = replace(point, settings={"memory": "40GiB", "flops": "200%"})
    device = question_of(point).profile.devices.accelerator
    assert device.memory_bytes == pytest.approx(40 * 2**30)
    assert device.peak_flops_per_s["bf16"] == 2 * 989e12


def test_links_that_are_not_there_do_not_matter() -> None:
    one = Point("gpt2", "dgx-h100", {"gpus": "1", "intra_node_bandwidth": "50%"})
    assert question_of(one).profile == resolve_cluster("dgx-h100", gpus=1)


def test_flops_differ_by_dtype_so_that_no_amount_sets_them() -> None:
    with pytest.raises(InputError, match="flops=50%"):
        question_of(Point("gpt2", "dgx-h100", {"flops": "1PFLOP/s"}))


def test_a_model_and_a_profile_may_be_given_as_they_are() -> None:
    profile = resolve_cluster("dgx-h100", gpus=4)
    asked = question_of(Point(resolve_model("gpt2"), profile, {"gpus": "4"}))
    assert asked.profile == profile
    assert asked.model.name == "gpt2"


def test_layers_are_added_and_removed_where_most_repeat() -> None:
    model = resolve_model("deepseek-v3")
    for count in (4, 61, 100):
        changed = with_layers(model, count)
        assert changed.decoder.num_layers == count
    each = with_layers(model, 62).num_parameters - model.num_parameters
    assert each == model.num_parameters - with_layers(model, 60).num_parameters > 0
    assert with_layers(model, 61) == model
    with pytest.raises(InputError, match="use 4 or more"):
        with_layers(model, 3)
    with pytest.raises(InputError, match="layers"):
        with_layers(model, 100_000)
