"""`plan` and `estimate` beside a user's own script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli import execute
from tests.planner.importers.megatron.scripts import BATCH, SIZES


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "run.sh"
    path.write_text(
        "TP=${TP:-4}\ntorchrun --nproc_per_node 4 pretrain_gpt.py"
        f" {SIZES} {BATCH} --bf16 --tensor-model-parallel-size $TP --frobnicate 1\n",
        encoding="utf-8",
    )
    return str(path)


def test_plan_has_the_row_yours_and_says_why(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["plan", "--from-megatron", script, "--cluster", "dgx-a100-80gb"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.strip().startswith("yours") for line in lines) == 2
    assert any(line.startswith("yours     ") and "slower" in line for line in lines)
    assert any(line.startswith("not read  --frobnicate 1") for line in lines)
    assert any("4 x A100-SXM4-80GB" in line for line in lines)


def test_json_has_yours(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--from-megatron", script, "--cluster", "dgx-a100-80gb", "--json"]
    assert execute(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["yours"]["verdict"] == "slower"
    assert answer["yours"]["layout"]["tp"] == 4
    assert answer["yours"]["prediction"]["step_time_s"] > answer["prediction"]["step_time_s"]
    assert answer["imported"]["stated"]["tp"] == 4


def test_a_layout_that_cannot_be_stays_in_its_row(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", "--from-megatron", script, "--cluster", "dgx-a100-80gb", "--set", "TP=3"]
    assert execute(arguments) == 0
    out = capsys.readouterr().out
    assert "yours     not known: the grid does not fit: 4 devices" in out
    assert execute(["estimate", *arguments[1:]]) == 2
    assert "no multiple" in capsys.readouterr().err


def test_estimate_prices_the_scripts_layout(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["estimate", "--from-megatron", script, "--cluster", "dgx-a100-80gb", "--json"]
    assert execute(arguments) == 0
    assert json.loads(capsys.readouterr().out)["layout"]["tp"] == 4
    assert execute([*arguments, "--layout", "tp=2,micro_batch=2"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"]["tp"] == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["plan"], "no model is named"),
        (["plan", "gpt2"], "no cluster is named"),
        (["estimate", "gpt2", "--cluster", "dgx-h100"], "no layout is named"),
        (["plan", "gpt2", "--cluster", "dgx-h100", "--set", "A=1"], "none is given"),
        (["plan", "--from-megatron", "gone.sh"], "there is no file"),
    ],
)
def test_what_is_missing_is_asked_for_in_one_line(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
