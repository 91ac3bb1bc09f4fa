"""`run` hands its options on unchanged and prints what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli import execute
from shardwright.runtime.summary import RunSummary
from shardwright.specs import RunError


def summary() -> RunSummary:
    return RunSummary(
        model="tiny", num_ranks=2, layout="tp 2", first_step=1, last_step=9, stopped_early=False,
        first_loss=8.0, last_loss=6.5, predicted_step_time_s=0.5,
        predicted_step_time_band_s=(0.4, 0.6), measured_step_time_s=0.55, num_timed_steps=6,
        tokens_per_s=1000.0, memory=(), checkpoint="ckpt", metrics=None,
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def run(**options: Any) -> RunSummary | None:
        calls.append(options)
        return None if options["data"] == "joined-rank" else summary()

    monkeypatch.setattr("shardwright.runtime.api.run", run)
    return calls


def test_options_are_handed_on(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    command = ["run", "plan.json", "--data", "mock", "--steps", "9", "--save",
               str(tmp_path), "--save-every", "3", "--resume", "--seed", "7",
               "--init-from", "weights"]  # fmt: skip
    assert execute(command) == 0
    (options,) = asked
    assert options == {
        "plan_path": Path("plan.json"), "data": "mock", "steps": 9, "save_dir": tmp_path,
        "save_every": 3, "resume": True, "seed": 7, "init_from": Path("weights"),
    }  # fmt: skip


def test_text_and_json(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "plan.json", "--data", "mock", "--steps", "9"]
    assert execute(command) == 0
    assert capsys.readouterr().out == summary().as_text() + "\n"
    assert execute([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == summary().model_dump(mode="json")


def test_other_ranks_of_a_launch_print_nothing(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", "plan.json", "--data", "joined-rank", "--steps", "9", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_a_failed_run_ends_with_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(**options: Any) -> None:
        raise RunError("rank 1 was killed in step 5", fix="continue with --resume")

    monkeypatch.setattr("shardwright.runtime.api.run", run)
    assert execute(["run", "plan.json", "--data", "mock", "--steps", "9"]) == 4
    assert "rank 1 was killed" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_steps_are_counted(asked: list[dict[str, Any]], steps: str) -> None:
    assert execute(["run", "plan.json", "--data", "mock", "--steps", steps]) == 2
    assert asked == []


def test_a_missing_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert execute(["run", str(path), "--data", "mock", "--steps", "1"]) == 2
    assert str(path) in capsys.readouterr().err
