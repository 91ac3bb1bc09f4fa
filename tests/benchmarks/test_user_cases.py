"""Every kind of check on small cases of its own, and the recorded cases where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.user_case_jobs import STACKS, Record, job_of, layouts_of, read_checks, read_configs
from benchmarks.user_case_kinds import Judge, is_because
from benchmarks.user_cases import main
from shardwright.hardware_profiles.stacks import GENERIC
from shardwright.specs import InputError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"

DECODER = {
    "layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 4096, "vocab": 32000,
    "gated_mlp": False, "tied": True,
}  # fmt: skip
CLUSTER = {"accelerator": "A100-SXM4-80GB", "nodes": 1, "gpus_per_node": 8}
TRAINING = {"global_batch": 32, "seq_len": 1024, "precision": "bf16", "optimizer": "adamw",
            "trainable": "full", "tokens": None}  # fmt: skip
LAYOUT = {
    "tp": 2, "cp": 1, "pp": 2, "vpp": 1, "dp": 2, "ep": 1, "etp": 1, "micro_batch": 4, "zero": 1,
    "recompute": "none", "schedule": "1f1b", "sequence_parallel": True,
}  # fmt: skip

JUDGE = Judge({}, 5.0)


def check(kind: str, **changes: Any) -> dict[str, Any]:
    """A check of a small model; ``changes``: whole parts, fields of ``layout`` by ``on_layout``."""
    wanted = {"kind": kind, **changes.pop("wanted", {})}
    layout = {**LAYOUT, **changes.pop("on_layout", {})}
    return {
        "id": "x/1", "case": "x", "model": {"decoder": DECODER}, "cluster": CLUSTER,
        "training": TRAINING, "layout": layout, "check": wanted, **changes,
    }  # fmt: skip


BIG = {"decoder": {**DECODER, "layers": 96, "hidden": 12288, "heads": 96, "kv_heads": 96,
                   "ffn": 49152}}  # fmt: skip


def test_a_small_model_fits_and_is_not_out_of_memory() -> None:
    assert JUDGE.judge(check("fits")).passed
    assert not JUDGE.judge(check("oom")).passed


def test_a_model_of_175_billion_parameters_does_not_fit_eight_devices() -> None:
    found = JUDGE.judge(check("oom", model=BIG))
    assert found.passed
    assert found.predicted == "does_not_fit"
    assert not JUDGE.judge(check("fits", model=BIG)).passed


def test_too_little_host_memory_for_what_is_offloaded_is_out_of_memory() -> None:
    """96 layers of 1.8e9 parameters: 12 bytes each of optimizer state are 1.9 TiB."""
    small = {**CLUSTER, "host_memory_gib": 64}
    offloaded = {"offload": "optimizer", "recompute": "full"}
    found = JUDGE.judge(check("oom", on_layout=offloaded, cluster=small, model=BIG))
    assert found.passed
    tiny = {**CLUSTER, "host_memory_gib": 0.1}
    assert JUDGE.judge(check("fits", on_layout=offloaded)).passed
    assert JUDGE.judge(check("oom", on_layout=offloaded, cluster=tiny)).passed


@pytest.mark.parametrize("kind", ["peak_memory_gib", "step_time_s", "tokens_per_s_per_gpu"])
def test_a_range_holds_its_own_value_and_not_one_beside_it(kind: str) -> None:
    value = JUDGE.judge(check(kind, wanted={"min": 0})).predicted
    assert value > 0
    inside = {"min": value * 0.99, "max": value * 1.01}
    assert JUDGE.judge(check(kind, wanted=inside)).passed
    assert not JUDGE.judge(check(kind, wanted={"min": value * 1.01})).passed
    assert not JUDGE.judge(check(kind, wanted={"max": value * 0.99})).passed


def test_gpu_hours_are_tokens_over_tokens_per_second() -> None:
    rate = JUDGE.judge(check("tokens_per_s_per_gpu", wanted={"min": 0})).predicted
    budget = {**TRAINING, "tokens": 3.6e9}
    hours = JUDGE.judge(check("gpu_hours", training=budget, wanted={"min": 0})).predicted
    assert hours == pytest.approx(1e6 / rate)
    assert "no tokens" in JUDGE.judge(check("gpu_hours", wanted={"min": 0})).reason


@pytest.mark.parametrize(
    ("by", "first"),
    [("step_time", "short"), ("tokens_per_s", "long"), ("peak_memory", "short")],
)
def test_ranks_run_from_least_time_and_memory_and_from_most_tokens(by: str, first: str) -> None:
    """Twice the sequences take longer and more memory, and fill the pipeline better."""
    longer = {"training": {**TRAINING, "global_batch": 64},
              "layout": {**LAYOUT, "micro_batch": 8}}  # fmt: skip
    variants = [{"name": "short"}, {"name": "long", **longer}]
    other = "long" if first == "short" else "short"
    right = check("rank", variants=variants, wanted={"by": by, "order": [first, other]})
    wrong = check("rank", variants=variants, wanted={"by": by, "order": [other, first]})
    assert JUDGE.judge(right).passed
    assert not JUDGE.judge(wrong).passed
    equal = check("rank", variants=[{"name": "a"}, {"name": "b"}],
                  wanted={"by": by, "order": ["a", "b"]})  # fmt: skip
    assert not JUDGE.judge(equal).passed, "a tie is no order"


def test_a_valid_layout_obeys_the_rules_even_where_it_does_not_fit() -> None:
    assert JUDGE.judge(check("valid", model=BIG)).passed
    assert not JUDGE.judge(check("valid", on_layout={"dp": 3})).passed


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"on_layout": {"micro_batch": 3}}, "global_batch"),
        ({"on_layout": {"stages": [4, 3]}}, "layers"),
        ({"on_layout": {"dp": 4}}, "world"),
        ({"on_layout": {"ep": 2}}, "ep"),
        ({"cluster": {**CLUSTER, "accelerator": "V100-SXM2-32GB"}}, "bf16"),
        ({"on_layout": {"schedule": "1f1b", "vpp": 2}}, "vpp"),
    ],
)
def test_invalid_layouts_are_refused_for_the_named_reason(
    changes: dict[str, Any], because: str
) -> None:
    assert JUDGE.judge(check("invalid", wanted={"because": because}, **changes)).passed
    assert not JUDGE.judge(check("invalid", wanted={"because": because})).passed
    assert not JUDGE.judge(check("invalid", wanted={"because": "heads"}, **changes)).passed


def test_what_is_open_is_chosen_by_the_planner() -> None:
    """On 8 devices that hold the model whole, nothing needs to be recomputed or cut."""
    is_open = check("choose", layout=None, wanted={"field": "recompute", "in": ["none"]})
    found = JUDGE.judge(is_open)
    assert found.passed, found
    assert JUDGE.judge({**is_open, "check": {"kind": "fits"}}).passed
    partly = {"tp": None, "pp": 2, "dp": None, "zero": None, "micro_batch": None}
    least = check("choose_at_least", layout=partly, wanted={"field": "pp", "min": 2})
    assert JUDGE.judge(least).passed
    least["check"]["min"] = 3
    assert not JUDGE.judge(least).passed
    hopeless = check("fits", layout=None, model=BIG)
    assert JUDGE.judge(hopeless).reason.startswith("nothing fits")
    assert JUDGE.judge({**hopeless, "check": {"kind": "oom"}}).passed


def test_the_fewest_devices_are_counted_in_steps() -> None:
    """13e9 parameters take 18 bytes each: 218 GiB of states, and with all else 4 or 8 of 80 GB."""
    model = {"decoder": {**DECODER, "layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 40,
                         "ffn": 20480}}  # fmt: skip
    wanted = {"multiple_of": 4, "min": 4, "max": 8}
    found = JUDGE.judge(check("min_gpus", layout=None, model=model, wanted=wanted))
    assert found.passed, found
    wanted = {"multiple_of": 4, "max": 3}
    assert not JUDGE.judge(check("min_gpus", layout=None, model=model, wanted=wanted)).passed


def test_a_cause_is_a_whole_word() -> None:
    assert is_because("precision", "precision = bf16 needs bf16", "bf16")
    assert not is_because("sequence_parallel", "it needs steps", "ep")
    assert is_because("anything", "", None)


def test_exports_are_refused_by_the_target_alone() -> None:
    odd = {"decoder": {**DECODER, "hidden": 960, "heads": 15, "kv_heads": 15}}
    wanted = {"target": "megatron-lm", "because": "heads"}
    assert JUDGE.judge(check("valid", model=odd)).passed
    assert JUDGE.judge(check("export_refused", model=odd, wanted=wanted)).passed
    assert not JUDGE.judge(check("export_refused", wanted=wanted)).passed
    unknown = JUDGE.judge(check("export_refused", wanted={"target": "nobody's"}))
    assert "not known" in unknown.reason


def test_no_layer_is_lost_between_stages() -> None:
    uneven = {"decoder": {**DECODER, "layers": 7}}
    assert JUDGE.judge(check("sum_stage_layers", model=uneven, wanted={"equals": 7})).passed
    stated = {"stages": [4, 2]}
    lost = check("sum_stage_layers", model=uneven, on_layout=stated, wanted={"equals": 7})
    assert not JUDGE.judge(lost).passed


def test_parameters_are_counted_without_the_training() -> None:
    """Embedding 32000 x 1024, positions 1024 x 1024 as customary for these sizes, 8 layers."""
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100,
              "tie_word_embeddings": True, "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "max_position_embeddings": 32}  # fmt: skip
    count = 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
    judge = Judge({"tiny": config}, 5.0)
    tiny = {"hf_config": "tiny"}
    assert judge.judge(check("parameters", model=tiny, wanted={"equals": count})).passed
    assert not judge.judge(check("parameters", model=tiny, wanted={"equals": count + 1})).passed


def test_a_decoder_with_a_gate_is_a_llama() -> None:
    gated = {"decoder": {**DECODER, "gated_mlp": True, "tied": False}}
    model = job_of(check("fits", model=gated), {}).model
    per_layer = 4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024
    assert model.num_parameters == 2 * 32000 * 1024 + 8 * per_layer + 1024


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"check": {"kind": "riddle"}},
        check("fits", model={"hf_config": "no-such-model"}),
        check("fits", cluster={"accelerator": "abacus", "nodes": 1, "gpus_per_node": 8}),
        check("fits", cluster=None),
        check("fits", training={"seq_len": 1024}),
        check("fits", training={**TRAINING, "precision": "int3"}),
        check("fits", training={**TRAINING, "optimizer": "magic"}),
        check("fits", on_layout={"tp": "two"}),
        check("fits", on_layout={"tp": 0}),
        check("fits", on_layout={"moon": 1}),
        check("fits", layout=[1]),
        check("rank", wanted={"by": "step_time", "order": ["nobody"]}),
        check("rank"),
        check("choose", wanted={"field": "tp"}),
        check("step_time_s", wanted={"min": "x"}),
        check("sum_stage_layers"),
    ],
)
def test_what_cannot_be_answered_fails_with_a_reason(broken: dict[str, Any]) -> None:
    found = JUDGE.judge(broken)
    assert not found.passed
    assert found.reason


def test_the_case_names_its_software_and_the_check_may_name_another() -> None:
    assert job_of(check("fits", case="TT-1"), {}).software.framework == "torchtitan"
    assert job_of(check("fits", case="XX-1"), {}).software.framework == GENERIC
    named = check("fits", case="TT-1", framework="megatron-bridge")
    assert job_of(named, {}).software.framework == "megatron-bridge"


def test_stated_stages_become_the_layout() -> None:
    layout = layouts_of(job_of(check("valid", on_layout={"stages": [3, 5]}), {}))[0]
    assert [stage.num_layers for stage in layout.stages] == [3, 5]
    with pytest.raises(InputError, match="3 stages"):
        layouts_of(job_of(check("valid", on_layout={"stages": [3, 4, 1]}), {}))


def test_the_command_prints_json_with_every_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, models = tmp_path / "checks.json", tmp_path / "models.json"
    path.write_text(json.dumps([check("fits"), check("oom"), {"id": "odd"}]))
    models.write_text("{}")
    assert main([str(path), "--models", str(models), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["checks"]
    assert [row["passed"] for row in rows] == [True, False, False]
    assert set(rows[0]) == {"id", "kind", "passed", "predicted", "expected", "reason"}
    assert main([str(path), "--models", str(models)]) == 0
    assert "FAIL  x/1  oom" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "3", "[1]"])
def test_unusable_files_exit_2(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, models = tmp_path / "checks.json", tmp_path / "models.json"
    path.write_text(text)
    models.write_text("{}")
    assert main([str(path), "--models", str(models)]) == 2
    assert "error: " in capsys.readouterr().err
    assert main([str(tmp_path / "none.json"), "--models", str(models)]) == 2


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded cases are not at hand")
def test_first_words_of_cases_name_the_sources_that_the_table_says() -> None:
    """`STACKS` reads what cases are called; their own words on their sources agree."""
    words = {"TT": "torchtitan", "MB": "megatron-bridge", "MPT": "llm-foundry", "BS": "bigscience"}
    assert set(words) == set(STACKS)
    cases = json.loads((SHARED / "user_cases.json").read_text())
    for case in cases:
        word = words.get(case["id"].split("-")[0])
        assert word is None or word in case["source"].lower(), case["id"]


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded cases are not at hand")
@pytest.mark.parametrize("kind", ["valid", "invalid", "export_refused", "parameters"])
def test_recorded_checks_without_a_price_hold(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(SHARED / "user_case_checks.json"), "--models", str(SHARED / "model_configs.json")]
    assert main([*paths, "--json", "--only", kind]) == 0
    rows = json.loads(capsys.readouterr().out)["checks"]
    assert len(rows) >= 3
    assert [row["id"] for row in rows if not row["passed"]] == []


ARGUED = {
    "MPT-7B-65K/3": "derived with 6 bytes per logit; the software takes the loss in place of bf16",
    "BS-GBS-RAMP/2": "at 50 GB/s per node, gradients of more replicas cost more than the bubble",
    "NT-1B-TP-DP/3": "nanotron reached 30 % MFU here, stacks on average would 46 %",
    "NET-A10-2x2/2": "ZeRO 3 over the two devices of a node gathers nothing across nodes either",
    "COST-PHI2-SUSPECT/1": "the best layout is at 63 % MFU, the range ends at 61 %",
}
"""Checks that do not hold, with the reason; `benchmarks/user_cases.md` has the numbers."""
MOST_ARGUED = 10
SEARCH_LIMIT_S = 60.0
"""Twice the benchmark's: tests run side by side."""


def recorded() -> list[Record]:
    path = SHARED / "user_case_checks.json"
    return list(read_checks(path)) if path.exists() else []


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(read_configs(SHARED / "model_configs.json"), SEARCH_LIMIT_S)


def test_few_checks_are_argued_and_each_is_there() -> None:
    assert len(ARGUED) <= MOST_ARGUED
    if recorded():
        assert set(ARGUED) <= {check["id"] for check in recorded()}


@pytest.mark.skipif(not recorded(), reason="the recorded cases are not at hand")
@pytest.mark.parametrize("check", recorded(), ids=lambda check: str(check["id"]))
def test_each_recorded_check_holds_or_is_argued(check: Record, judge: Judge) -> None:
    verdict = judge.judge(check)
    if not verdict.passed and check["id"] in ARGUED:
        pytest.xfail(ARGUED[check["id"]])
    assert verdict.passed, (check["what"], verdict.predicted, verdict.expected, verdict.reason)
