"""`validate` on small files: its JSON, its tables, its plots, and every way to hand it nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.planner.validation import pricers
from tests.cli.endings import Ending, end_of
from tests.planner.validation import rows

ROWS = [
    rows.value(id="a"),
    rows.value(id="b", parallel={"tp": 1, "dp": 4, "micro_batch": 1, "num_microbatches": 4}),
    rows.value(id="c", stack="other", problem="q", parallel={"recompute": None}),
    rows.value(id="d", stack="other", problem="q", measured={"iteration_time_s": 3.0}),
    rows.value(id="e", kind="collective"),
    rows.value(id="f", hardware={"accelerator": "Q9000", "gpu": "Q9000"}),
    "no row",
]


@pytest.fixture
def runs(tmp_path: Path) -> str:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(ROWS))
    return str(path)


def answer_of(*arguments: str) -> dict[str, Any]:
    ending = end_of(["validate", *arguments, "--json"])
    assert list(ending.json_faults()) == []
    assert ending.code == 0, ending.err
    found: dict[str, Any] = json.loads(ending.out)
    return found


def test_every_row_is_priced_or_skipped_with_a_reason(runs: str) -> None:
    answer = answer_of(runs)
    assert set(answer) == {"rows", "summary", "problems"}
    skipped = {row["id"]: row["skipped"] for row in answer["rows"]}
    assert [skipped[name] for name in "abcd"] == [None] * 4
    assert "collective" in skipped["e"]
    assert "Q9000" in skipped["f"]
    assert "is no run" in skipped["row 7"]
    for row in answer["rows"]:
        assert (row["predicted_step_time_s"] is None) == (row["skipped"] is not None)
    assert [problem["problem"] for problem in answer["problems"]] == ["p", "q"]


def test_the_same_file_gives_the_same_answer(runs: str) -> None:
    assert answer_of(runs) == answer_of(runs)


def test_anchors(runs: str) -> None:
    anchor = answer_of(runs, "--anchor", "1")["summary"]["anchor"]
    assert anchor["num_anchors"] == 1
    assert {found["stack"]: found["num_choices"] for found in anchor["stacks"]} == {
        "other": 2, "some-stack": 2,
    }  # fmt: skip


@pytest.mark.parametrize("what", ["stack", "model", "problem", "each-problem"])
def test_rows_that_are_left_out_of_fitting(runs: str, what: str) -> None:
    answer = answer_of(runs, "--hold-out", what)
    assert answer["summary"]["hold_out"]["by"] == what
    assert [row["id"] for row in answer["rows"]][:4] == ["a", "b", "c", "d"]


def test_tables_and_plots(runs: str, tmp_path: Path) -> None:
    folder = tmp_path / "plots"
    ending = end_of(["validate", runs, "--anchor", "1", "-o", str(folder)])
    assert list(ending.faults()) == []
    assert "rows      7, of which 3 skipped" in ending.out
    for title in ("Step time", "Peak memory", "after calibration on 1 rows", "Skipped"):
        assert title in ending.out
    assert {path.name for path in folder.iterdir()} == {
        "overall.svg", "some-stack.svg", "other.svg",
    }  # fmt: skip


def test_faults_of_ours_are_told_and_end_nothing(
    runs: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*job: object) -> None:
        raise TypeError("a slip")

    monkeypatch.setattr(pricers, "default_pricer", lambda: broken)
    answer = answer_of(runs)
    assert answer["rows"][0]["skipped"] == "the cost model failed: TypeError: a slip"
    assert "4 rows are skipped by a fault of ours, the first: a: " in caplog.text


def test_configs_by_name(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100,
        "max_position_embeddings": 512,
    }  # fmt: skip
    model = {key: None for key in rows.WHOLE["model"]} | {"hf_config": "mine", "seq_len": 512}
    path, models = tmp_path / "runs.json", tmp_path / "models.json"
    path.write_text(json.dumps([rows.value(model=model)]))
    assert "mine" in answer_of(str(path))["rows"][0]["skipped"]
    for entry in (config, {"config": config, "notes": "x"}):
        models.write_text(json.dumps({"mine": entry}))
        assert answer_of(str(path), "--models", str(models))["rows"][0]["skipped"] is None


class TestBadInput:
    def refused(self, *arguments: str) -> Ending:
        ending = end_of(["validate", *arguments])
        assert list(ending.faults()) == []
        assert ending.code == 2
        assert ending.out == ""
        return ending

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ("", "not valid JSON"),
            ("[" * 100_000, "recursion"),
            ("{}", "no list of runs"),
            ("[]", "an empty list"),
            ('["a", {"id": 3}]', "none that can be read"),
        ],
    )
    def test_files(self, tmp_path: Path, content: str, told: str) -> None:
        path = tmp_path / "runs.json"
        path.write_text(content)
        assert told in self.refused(str(path)).err

    def test_no_file_and_a_folder(self, tmp_path: Path) -> None:
        assert "there is no runs file" in self.refused(str(tmp_path / "no.json")).err
        self.refused(str(tmp_path))

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (["--anchor", "0"], "--anchor"),
            (["--hold-out", "stacks"], "stack"),
            (["--models", "no.json"], "there is no model configs file"),
        ],
    )
    def test_options(self, runs: str, options: list[str], told: str) -> None:
        assert told in self.refused(runs, *options).err

    @pytest.mark.parametrize("content", ["[]", '{"a": 1}', '{"a": {"config": 1}}'])
    def test_configs(self, runs: str, tmp_path: Path, content: str) -> None:
        models = tmp_path / "models.json"
        models.write_text(content)
        assert "config" in self.refused(runs, "--models", str(models)).err

    def test_a_file_in_place_of_the_folder(self, runs: str) -> None:
        assert "is no folder" in self.refused(runs, "-o", runs).err

    def test_others_files_are_left_alone(self, runs: str, tmp_path: Path) -> None:
        (tmp_path / "overall.svg").write_text("mine")
        assert "no plot of ours" in self.refused(runs, "-o", str(tmp_path)).err
        assert (tmp_path / "overall.svg").read_text() == "mine"
