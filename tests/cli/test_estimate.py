"""`estimate` prices the one layout that is named."""

from __future__ import annotations

import json

import pytest

from shardwright.cli import execute

GPT2 = ("estimate", "gpt2", "--cluster", "dgx-h100", "--gpus", "4", "--global-batch", "16")


def test_json_is_that_layout(capsys: pytest.CaptureFixture[str]) -> None:
    layout = "tp=2,pp=2,micro_batch=2,sequence_parallel=true,recompute=full"
    assert execute([*GPT2, "--layout", layout, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = answer["layout"]
    assert (found["tp"], found["pp"], found["dp"], found["micro_batch"]) == (2, 2, 1, 2)
    assert found["sequence_parallel"] is True
    assert [entry["policy"] for entry in found["recompute"]] == ["full", "full"]
    assert answer["certificate"]["considered"] == 1


def test_the_plan_s_own_layout_costs_what_the_plan_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["plan", *GPT2[1:], "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    layout = plan["layout"]
    text = ",".join(f"{name}={layout[name]}" for name in ("tp", "pp", "dp", "zero", "micro_batch"))
    text += f",recompute={layout['recompute'][0]['policy']}"
    assert execute([*GPT2, "--layout", text, "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert estimate["prediction"] == plan["prediction"]


def test_text_shows_where_time_and_memory_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--layout", "pp=4"]) == 0
    out = capsys.readouterr().out
    assert "where the step goes" in out
    assert "bubble" in out
    assert sum(line.strip()[:2] in ("0 ", "1 ", "2 ", "3 ") for line in out.splitlines()) >= 4


def test_a_broken_rule_ends_with_3_or_2_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--layout", "tp=16"]) == 3
    out, err = capsys.readouterr()
    assert "tp" in err
    assert "16" in out


def test_an_unknown_choice_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--layout", "tensor=2"]) == 2
    assert "tensor" in capsys.readouterr().err


EVERY_KEY = {
    "tp=2,sp=on": ("sequence_parallel", True),
    "cp=2,cp_kind=all_to_all": ("cp_kind", "all_to_all"),
    "pp=2,vpp=2,schedule=interleaved-1f1b": ("vpp", 2),
    "pp=2,vpp=2,schedule=zb-v": ("schedule", "zb-v"),
    "pp=2,vpp=2,schedule=dualpipev": ("schedule", "dualpipev"),
    "pp=2,schedule=zb-h1": ("schedule", "zb-h1"),
    "pp=2,schedule=zb-h2": ("schedule", "zb-h2"),
    "pp=2,schedule=gpipe": ("schedule", "gpipe"),
    "pp=2,stages=0-4/4-12": ("pp", 2),
    "dp=4,micro_batch=2,m=2": ("num_microbatches", 2),
    "zero=2": ("zero", 2),
    "zero=3,reshard_after_forward=off": ("reshard_after_forward", False),
    "zero=1,zero_shard_degree=2,expert_zero_shard_degree=4": ("zero_shard_degree", 2),
    "ep=1,etp=1": ("ep", 1),
    "loss_chunks=8": ("loss_chunks", 8),
    "compile=on": ("compile", True),
    "offload=activations+parameters": ("offload", ["activations", "parameters"]),
    "rank_order=tp-cp-pp-dp": ("rank_order", "tp-cp-pp-dp"),
}


@pytest.mark.parametrize("layout", EVERY_KEY)
def test_every_key_of_a_layout_is_priced(capsys: pytest.CaptureFixture[str], layout: str) -> None:
    assert execute([*GPT2, "--layout", layout, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    name, value = EVERY_KEY[layout]
    if name in answer["layout"]:
        assert answer["layout"][name] == value
    assert answer["prediction"]["step_time_s"] > 0
    assert answer["assumed"]["software"] == "generic"


@pytest.mark.parametrize(
    ("recompute", "entries"),
    [
        ("selective", [("selective", None, None)] * 2),
        ("selective:core_attn+mlp", [("selective", ["core_attn", "mlp"], None)] * 2),
        ("full:3/none", [("full", None, 3), ("none", None, None)]),
    ],
)
def test_recomputation_is_named_by_module_layer_and_stage(
    capsys: pytest.CaptureFixture[str], recompute: str, entries: list[object]
) -> None:
    assert execute([*GPT2, "--layout", f"pp=2,recompute={recompute}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["layout"]["recompute"]
    assert [(one["policy"], one["modules"], one["num_layers"]) for one in found] == entries


@pytest.mark.parametrize(
    "options",
    [
        ["--stack", "megatron-lm-2021", "--precision", "fp16"],
        ["--trainable", "lora:8"],
        ["--trainable", "qlora:8", "--optimizer", "adamw-8bit"],
        ["--optimizer", "adafactor"],
        ["--optimizer", "muon", "--gradient-dtype", "bf16"],
        ["--optimizer", "sgd", "--precision", "fp32"],
        ["--precision", "fp8-block"],
    ],
)
def test_software_and_training_may_be_others(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert execute([*GPT2, "--layout", "zero=1", *options]) == 0
    out = capsys.readouterr().out
    assert "software  " in out
    assert options[1] in out or options[0] in ("--optimizer", "--trainable", "--precision")


def test_the_stack_s_own_gradients_are_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--stack", "megatron-lm-2021", "--precision", "fp16", "--json"]
    assert execute([*GPT2, "--layout", "zero=0", *options]) == 0
    assert json.loads(capsys.readouterr().out)["assumed"]["gradient_dtype"] == "fp16"


def test_an_unknown_stack_ends_with_2_and_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--layout", "zero=0", "--stack", "torchtitn"]) == 2
    assert "torchtitan" in capsys.readouterr().err
