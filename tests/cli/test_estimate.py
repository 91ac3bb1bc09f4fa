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
