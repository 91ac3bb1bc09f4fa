"""`explain` reads a plan back and answers for other layouts from the same prices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli import execute
from shardwright.specs import Plan


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    command = ["plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "4", "--global-batch", "16"]
    assert execute([*command, "-o", str(path)]) == 0
    return path


def test_shares_sum_to_the_step(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", str(plan_file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    step_time_s = Plan.load(plan_file).prediction.step_time_s
    assert sum(part["seconds"] for part in answer["time"]) == pytest.approx(step_time_s)
    assert answer["why_not"] is None
    assert answer["stages"]


def test_text(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", str(plan_file)]) == 0
    out = capsys.readouterr().out
    assert "limit     the step goes to" in out
    assert "none better under this model" in out


@pytest.mark.parametrize(
    ("asked", "verdicts"),
    [
        ("tp=4", {"slower", "tied"}),
        ("tp=16", {"breaks_rules"}),
        ("pp=4", {"slower", "tied"}),
    ],
)
def test_why_not(
    plan_file: Path, capsys: pytest.CaptureFixture[str], asked: str, verdicts: set[str]
) -> None:
    assert execute(["explain", str(plan_file), "--why-not", asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["why_not"]
    assert answer["verdict"] in verdicts
    assert answer["reasons"]
    assert execute(["explain", str(plan_file), "--why-not", asked]) == 0
    assert "why not " in capsys.readouterr().out


def test_other_prices_than_the_plan_s_are_refused(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["explain", str(plan_file), "--why-not", "tp=4", "--cluster", "dgx-a100-80gb"]
    assert execute(command) == 2
    assert "not what the plan was priced from" in capsys.readouterr().err


def test_a_file_that_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"schema_version": "shardwright.plan/1"}')
    assert execute(["explain", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
