"""`what_if` from what varies to the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.cost_models.money import Terms, run_cost
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner import api as planner_api
from shardwright.planner.question import Training, question
from shardwright.planner.what_if.api import WhatIfAnswer, what_if
from shardwright.planner.what_if.solve import Unknown
from shardwright.specs import InputError

QUICK: dict[str, Any] = {"global_batch": 8}
FIX = "vpp=1,cp=1,pp=1"


def ask(**changes: Any) -> WhatIfAnswer:
    given: dict[str, Any] = {
        "model": "gpt2", "cluster": "dgx-h100", "settings": QUICK, "fix": FIX, "jobs": 1,
        "use_cache": False,
    }  # fmt: skip
    return what_if(**{**given, **changes})


def test_every_point_equals_what_plan_says() -> None:
    answer = ask(vary=["gpus=1,2", "seq_len=512,1k", "precision=bf16,fp16"])
    assert len(answer.rows) == 8
    for row in answer.rows:
        training = Training("8", row.varied["seq_len"], row.varied["precision"])
        gpus = int(row.varied["gpus"])
        asked = question("gpt2", "dgx-h100", gpus=gpus, nodes=None, training=training)
        planned = planner_api.plan(
            model=asked.model, profile=asked.profile, training=asked.training,
            software=asked.software, fix=FIX,
        ).to_json_dict()  # fmt: skip
        assert row.outcome.prediction == planned["prediction"]
        assert row.outcome.layout == planned["layout"]


def test_an_order_of_axes_is_an_order_of_rows() -> None:
    answer = ask(vary={"tp": [1, 2], "gpus": [2, 4]})
    assert [tuple(row.varied.values()) for row in answer.rows] == [
        ("1", "2"), ("1", "4"), ("2", "2"), ("2", "4"),
    ]  # fmt: skip
    assert {slope.axis for slope in answer.slopes} == {"tp", "gpus"}


def test_impossible_points_are_rows_among_others() -> None:
    answer = ask(vary=["gpus=2,12"])
    assert [row.outcome.verdict for row in answer.rows] == ["planned", "invalid"]
    assert answer.feasible
    assert answer.slopes == ()


def test_a_question_that_is_wrong_everywhere_is_an_error() -> None:
    with pytest.raises(InputError, match="no preset"):
        ask(model="gtp2", vary=["gpus=1,2"])


def test_where_nothing_fits_the_reasons_are_given() -> None:
    answer = ask(model="llama-3.1-70b", vary=["gpus=1"], settings={}, fix="")
    assert not answer.feasible
    assert "bytes" in answer.reasons[0]
    assert answer.pick("fastest") is None


def test_models_and_clusters_may_vary() -> None:
    answer = ask(model=None, cluster=None, vary={"model": ["gpt2"], "cluster": ["dgx-a100-80gb"]})
    assert answer.rows[0].outcome.asked["cluster"] == "dgx-a100-80gb"


def test_models_are_picked_from_apart() -> None:
    answer = ask(vary={"layers": [2, 12], "gpus": [1, 2]})
    assert answer.models() == [("gpt2", 2), ("gpt2", 12)]
    assert [answer.pick("smallest", model) for model in answer.models()] == [0, 2]
    assert [one["smallest"] for one in answer.to_json_dict()["picks"]] == [0, 2]


def test_a_run_costs_what_the_money_model_says() -> None:
    terms = Terms(usd_per_gpu_hour=3.0)
    answer = ask(vary=["gpus=1,2"], tokens="1B", terms=terms)
    for row in answer.rows:
        assert row.outcome.prediction is not None
        expected = run_cost(
            resolve_cluster("dgx-h100", gpus=row.num_devices).devices,
            step_time_s=row.outcome.prediction["step_time_s"],
            tokens_per_step=8 * 1024, token_budget=10**9, terms=terms,
        )  # fmt: skip
        assert row.cost == expected


def test_limits_decide_what_is_picked() -> None:
    free = ask(vary=["gpus=1,2,4"], tokens="1B")
    days = [row.cost.days for row in free.rows if row.cost]
    assert (free.pick("smallest"), free.pick("fastest")) == (0, days.index(min(days)))
    assert free.pick("cheapest") == 0
    just_s = days[1] * 86400 * (1 + 1e-9)  # days are rounded seconds
    answer = ask(vary=["gpus=1,2,4"], tokens="1B", deadline_s=just_s)
    assert [row.meets for row in answer.rows] == [day <= days[1] for day in days]
    assert answer.pick("smallest") == 1
    assert ask(vary=["gpus=1"], tokens="1B", deadline_s=1).pick("smallest") is None


def test_solving_follows_what_varies_and_keeps_the_deadline() -> None:
    free = ask(vary=["gpus=1,2,4,8"], tokens="1B")
    days = [row.cost.days for row in free.rows if row.cost]
    just_s = days[1] * 86400 * (1 + 1e-9)
    answer = ask(vary=["precision=bf16"], tokens="1B", deadline_s=just_s, unknown="gpus")
    assert [solved.value for solved in answer.solved] == [2]
    assert answer.rows[0].varied == {"precision": "bf16", "gpus": "2"}
    assert answer.rows[0].outcome.prediction == free.rows[1].outcome.prediction


def test_solving_where_nothing_works_is_a_row_without_a_plan() -> None:
    answer = ask(vary=["precision=bf16"], tokens="1B", deadline_s=1, unknown="micro_batch")
    (row,) = answer.rows
    assert not answer.feasible
    assert (row.varied["micro_batch"], row.cost, row.step_time_s) == ("-", None, None)
    assert "limits" in (row.outcome.reason or "")


def test_what_was_kept_is_not_planned_again(tmp_path: Path) -> None:
    given: dict[str, Any] = {"use_cache": True, "cache_folder": tmp_path, "vary": ["gpus=1,2"]}
    first, again = ask(**given), ask(**given)
    assert (first.num_planned, again.num_planned) == (2, 0)
    assert first.rows == again.rows


def test_json_has_the_keys_of_the_contract() -> None:
    answer = ask(vary=["gpus=1,12"], tokens="1B", deadline_s=1e6)
    found = json.loads(json.dumps(answer.to_json_dict(), allow_nan=False))
    assert found["schema"] == "shardwright.what-if/1"
    assert set(found) == {
        "schema", "axes", "terms", "limits", "points", "picks", "elasticities",
        "median_elasticities",
    }  # fmt: skip
    assert set(found["points"][0]) == {
        "varied", "verdict", "reason", "asked", "layout", "layout_text", "prediction",
        "certificate", "assumed", "rates", "sources", "notes", "run", "meets", "on_front", "solved",
    }  # fmt: skip
    assert set(found["points"][0]["run"]) >= {
        "days", "gpu_hours", "cost_usd", "cost_usd_range", "energy_joules", "goodput",
        "num_steps", "num_failures", "time_s", "compute_s",
    }  # fmt: skip
    assert found["points"][1]["run"] is None


def test_a_run_that_never_ends_is_null_in_json() -> None:
    answer = ask(vary=["gpus=1"], tokens="1B", terms=Terms(device_mtbf_s=1, restart_s=1e5))
    run = json.loads(json.dumps(answer.to_json_dict(), allow_nan=False))["points"][0]["run"]
    assert run["days"] is run["time_s"] is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, "no model"),
        ({"cluster": None}, "no cluster"),
        ({"deadline_s": 5.0}, "how long the run is"),
        ({"deadline_s": -5.0, "tokens": "1B"}, "deadline"),
        ({"tokens": "0"}, "tokens"),
        ({"settings": {"gpuz": 2}}, "gpuz"),
        ({"settings": {"nodes": 1}, "vary": ["gpus=1,2"]}, "gpus and nodes"),
        ({"unknown": "gpus", "vary": ["nodes=1,2"]}, "varied and solved"),
        ({"jobs": 0}, "jobs"),
        ({"unknown": "tp"}, "cannot be solved"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ask(**changes)


def test_it_is_public() -> None:
    assert shardwright.what_if is what_if


def test_unknowns_have_names() -> None:
    unknown: Unknown = "seq_len"
    answer = ask(settings={"gpus": 1, "global_batch": 1}, unknown=unknown)
    assert answer.rows[0].varied["seq_len"] == "1024"  # its learned positions end there
