"""`run --dry-run` from the command line: tables, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli import execute
from shardwright.specs import Plan
from tests.runtime.plans import plan_of


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    plan_of(tp=2, dp=4, zero=1).save(path)
    return path


def test_a_table_for_each_rank(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(plan_file), "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "rank 0 (tp 0, dp 0, pp 0)" in told.out
    assert "rank 7 (tp 1, dp 3, pp 0)" in told.out
    assert "ranks 0, 7 of 8: as planned" in told.out
    assert "its prices are not here" in told.out


def test_json(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(plan_file), "--dry-run", "--rank", "3", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == "shardwright.dry-run/1"
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["tp"], rank["dp"]) == (3, 1, 1)
    assert all(check["agrees"] for check in rank["checks"])


def test_a_difference_ends_with_4_after_the_table(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan.load(plan_file)
    small = plan.prediction.model_copy(update={"memory_capacity_bytes": 2**12})
    plan.model_copy(update={"prediction": small}).save(plan_file)
    assert execute(["run", str(plan_file), "--dry-run", "--rank", "0"]) == 4
    told = capsys.readouterr()
    assert "<- differs" in told.out
    assert "do not fit into 4.0 KiB" in told.err


def test_a_plan_that_contradicts_itself_ends_with_2(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan.load(plan_file)
    layout = plan.layout.model_copy(update={"dp": 2})
    plan.model_copy(update={"layout": layout}).save(plan_file)
    assert execute(["run", str(plan_file), "--dry-run"]) == 2
    assert "is not valid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dry-run", "--rank", "8"], "the plan's ranks are 0 to 7"),
        (["--dry-run", "--data", "mock", "--seed", "0"], "so --data, --seed can have no effect"),
        (["--dry-run", "--resume"], "so --resume can have no effect"),
        (["--rank", "0", "--data", "mock", "--steps", "1"], "--rank is for --dry-run alone"),
        (["--steps", "3"], "run needs --data"),
        (["--data", "mock"], "run needs --steps"),
    ],
)
def test_options_that_do_not_go_together(
    plan_file: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", str(plan_file), *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
