"""Results on stdout alone, and no file of a user's overwritten unasked."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardwright.cli import _output
from shardwright.specs import InfeasibleError, InputError, Plan
from tests.cli import samples


def test_json_is_one_object_with_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    _output.print_json({"name": "modèle", "values": [1, 2]})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"name": "modèle", "values": [1, 2]}
    assert "modèle" in out
    assert err == ""


def test_a_progress_bar_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with _output.progress("measuring") as advance:
        advance("collectives", 0.5)
    assert capsys.readouterr() == ("", "")


def test_a_progress_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with _output.progress("measuring") as advance:
        advance("collectives", 0.5)
    assert "measuring: collectives" in terminal.getvalue()
    assert "50%" in terminal.getvalue()


def test_an_older_plan_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    _output.check_output(path, Plan, force=False)
    samples.plan().save(path)
    _output.check_output(path, Plan, force=False)


@pytest.mark.parametrize("text", ["my notes", "{}", samples.cluster().to_json()])
def test_another_file_may_not_without_force(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match="--force"):
        _output.check_output(path, Plan, force=False)
    _output.check_output(path, Plan, force=True)


def test_a_folder_may_never(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        _output.check_output(tmp_path, Plan, force=True)


@dataclass(frozen=True)
class Answer:
    feasible: bool
    reasons: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()


def test_a_feasible_answer_passes() -> None:
    _output.require_feasible(Answer(True), details=True)


def test_an_infeasible_answer_says_everything_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = Answer(False, ("900 GiB needed, 600 there", "b"), ("use 16 GPUs", "use fp8"))
    with pytest.raises(InfeasibleError) as raised:
        _output.require_feasible(answer, details=True)
    said = capsys.readouterr().out + str(raised.value)
    assert all(said.count(line) == 1 for line in ("900 GiB", "- b", *answer.suggestions))
    with pytest.raises(InfeasibleError, match=r"900 GiB needed.*use 16 GPUs"):
        _output.require_feasible(answer, details=False)


def test_details_are_left_out_beside_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InfeasibleError):
        _output.require_feasible(Answer(False, ("a",)), details=False)
    assert capsys.readouterr().out == ""


def test_aligned_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [["1000", "x"], ["2", "y" * 300]]
    lines = list(_output.aligned(["a", "long name"], rows))
    assert lines == ["a     long name", "-     ---------", "1000  x", "2     " + "y" * 300]
    cut = list(_output.aligned(["a", "long name"], rows, most=20))
    assert cut == [*lines[:3], "2     " + "y" * 11 + "..."]
    assert _output.terminal_columns() is None
