"""`what-if` from the command line to table, CSV and JSON."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from shardwright.cli import _what_if, execute
from shardwright.specs import InputError

GPT2 = ("what-if", "gpt2", "--cluster", "dgx-h100", "--global-batch", "8", "--fix",
        "vpp=1,cp=1,pp=1", "--jobs", "1")  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


def test_points_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    command = [*GPT2, "--vary", "gpus=1,2,12", "--tokens", "1B", "--deadline", "60d"]
    assert execute(command) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "model     gpt2: 124,439,808 parameters"
    assert any(line.startswith("price     7.099 USD") and "dated offers" in line for line in lines)
    assert any("419 unplanned interruptions" in line for line in lines)
    assert sum(" yes " in line for line in lines) == 2
    assert any("not possible [1]" in line for line in lines)
    assert "[1] 12 devices do not fill whole nodes" in out
    assert "smallest  gpus 1 within 60 days" in out
    assert "of the time goes into steps that count" in out
    assert "slope     1 % more gpus changes the step time by -" in out
    assert "every plan is the best under this model; 3 points planned now" in out
    assert execute(command) == 0
    again = capsys.readouterr().out
    assert "0 points planned now" in again
    assert again.splitlines()[:-1] == lines[:-1]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--vary", "gpus=1,2", "--usd-per-gpu-hour", "2", "--tokens", "1B",
                    "--mtbf", "never", "--checkpoint-time", "0s", "--json"]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert [point["varied"] for point in found["points"]] == [{"gpus": "1"}, {"gpus": "2"}]
    run = found["points"][0]["run"]
    assert run["cost_usd"] == pytest.approx(run["gpu_hours"] * 2)
    assert run["compute_s"] == run["time_s"]


def test_csv_has_a_line_for_each_point(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, page = tmp_path / "points.csv", tmp_path / "points.html"
    command = [*GPT2, "--vary", "gpus=1,12", "--csv", str(file), "--html", str(page)]
    assert execute(command) == 0
    with file.open(newline="") as text:
        first, second = csv.DictReader(text)
    assert (first["varied_gpus"], first["verdict"], first["layout"]) == (
        "1", "planned", "micro_batch=8",
    )  # fmt: skip
    assert float(first["step_time_low_s"]) < float(first["step_time_s"])
    assert second["verdict"] == "invalid"
    assert "whole nodes" in second["reason"]
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert execute(command) == 2
    assert "exists" in capsys.readouterr().err
    assert execute([*command, "--force"]) == 0


def test_solving(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--gpus", "1", "--solve", "micro-batch"]) == 0
    out = capsys.readouterr().out
    assert "solved    largest micro_batch: 8" in out


def test_nothing_that_fits_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["what-if", "llama-3.1-70b", "--cluster", "dgx-h100", "--vary", "gpus=1"]) == 3
    out, err = capsys.readouterr()
    assert "nothing fits [1]" in out
    assert "bytes" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--vary", "gpuz=1"], "gpus"),
        (["--vary", "gpus"], "does not say what varies"),
        (["--solve", "tp"], "--solve"),
        (["--deadline", "soon"], "seconds"),
        (["--deadline", "0d", "--tokens", "1B"], "--deadline"),
        (["--mtbf", "0h"], "--mtbf"),
        (["--budget", "lots", "--tokens", "1B"], "quantity"),
        (["--csv", "/"], "folder"),
        (["--vary", "gpus=12"], "whole nodes"),
    ],
)
def test_wrong_options_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert execute([*GPT2, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_durations_and_dollars_are_read() -> None:
    assert _what_if.duration("60d", "--deadline") == 60 * 86400
    assert _what_if.duration(None, "--deadline") is None
    assert _what_if.dollars("$2.5M") == 2.5e6
    assert _what_if.dollars("10k") == 10_000
    terms = _what_if.terms_of(2.0, "never", "0s", "11min", 1.2)
    assert (terms.device_mtbf_s, terms.checkpoint_s, terms.restart_s) == (math.inf, 0, 660)
    with pytest.raises(InputError):
        _what_if.duration("inf", "--deadline")


@pytest.mark.parametrize(
    ("number", "text"), [(31_200_000, "31.2 M"), (1234, "1.23 k"), (2.5e9, "2.5 G"), (7, "7")]
)
def test_large_numbers_are_short(number: float, text: str) -> None:
    assert _what_if.large(number) == text
