"""`import` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli import execute
from shardwright.specs import Layout
from tests.planner.importers.megatron.scripts import SCRIPTS


def script(folder: Path, name: str = "defaults and arrays") -> Path:
    one = SCRIPTS[name]
    for file, text in {one.name: one.text, **one.files}.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder / one.name


def test_json_has_the_keys_of_the_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path)
    assert execute(["import", str(path), "--from", "megatron-lm", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "shardwright.import/1"
    assert set(answer) >= {
        "source", "target", "stated", "model", "training", "cluster", "layout", "choices",
        "software", "environment", "arguments", "assumed", "unread", "conflicts",
    }  # fmt: skip
    assert answer["stated"]["tp"] == answer["layout"]["tp"] == 2
    assert answer["cluster"] == {
        "gpus": 16, "nodes": 2, "gpus_per_node": 8, "accelerator": None,
    }  # fmt: skip


def test_text_says_what_was_read_and_what_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path, "a bare list of arguments")
    assert execute(["import", str(path), "--from", "megatron"]) == 0
    out = capsys.readouterr().out
    assert "number of devices not stated" in out
    assert "not read  the number of devices is not stated" in out
    assert "assumed:  vocab_size" in out
    assert "next: shardwright plan --from-megatron" in out


def test_a_layout_is_written_where_it_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = script(tmp_path), tmp_path / "layout.json"
    assert execute(["import", str(path), "--from", "megatron-lm", "-o", str(output)]) == 0
    assert Layout.from_json(output.read_text(encoding="utf-8")).dp == 8
    bare = script(tmp_path, "a bare list of arguments")
    assert execute(["import", str(bare), "--from", "megatron-lm", "-o", str(output)]) == 2
    assert "states no whole layout" in capsys.readouterr().err
    arguments = ["import", str(bare), "--from", "megatron-lm", "-o", str(output)]
    assert execute([*arguments, "--gpus", "8"]) == 0


def test_variables_and_options_that_are_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path)
    more = ["--set", "TP=4", "--add", "--seq-length 512", "--json"]
    assert execute(["import", str(path), "--from", "megatron-lm", *more]) == 0
    stated = json.loads(capsys.readouterr().out)["stated"]
    assert (stated["tp"], stated["seq_len"]) == (4, 512)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--from", "megatrn"], "--from cannot be"), (["--from", "torchtitan"], "TOML"),
        (["--from", "megatron-lm", "--set", "x"], "--set"),
        (["--from", "megatron-lm", "--add", "'x"], "--add cannot be read"),
    ],
)  # fmt: skip
def test_wrong_questions_get_one_line(
    more: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["import", str(script(tmp_path)), *more]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
