"""Scripts are followed as a shell would, and nothing is ever run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.planner.importers.shell.reader import MOST_CHARACTERS, script_text
from shardwright.specs import InputError
from tests.planner.importers.shell.shells import followed, value, words

DANGER = (
    "$(touch {0})", "`touch {0}`", "touch {0}", "eval touch {0}", "bash -c 'touch {0}'",
    "cat <(touch {0})", "X=$(touch {0})", "echo a > {0}", "${{X:=$(touch {0})}}",
    "python -c \"open('{0}','w')\"", "$((A[$(touch {0})]))", "[[ -n $(touch {0}) ]]",
    "exec 3>{0}", ". <(echo touch {0})", "trap 'touch {0}' EXIT", "f() {{ touch {0}; }}; f",
    "awk 'BEGIN{{system(\"touch {0}\")}}'", "read X < <(touch {0})", "printf x | tee {0}",
    "source /dev/stdin <<< 'touch {0}'", "alias ls='touch {0}'; ls", "touch {0} &", "(touch {0})",
)  # fmt: skip


@given(st.lists(st.sampled_from(DANGER), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_nothing_is_executed(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = folder / "made"
        script = "\n".join(line.format(target) for line in lines)
        before = set(os.listdir(folder))
        with contextlib.suppress(InputError):
            followed(script, folder=folder)
        assert set(os.listdir(folder)) - before == {"run.sh"}


def test_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    for module, name in ((subprocess, "Popen"), (os, "system"), (os, "fork"), (os, "execv")):
        monkeypatch.setattr(module, name, refuse)
    followed("\n".join(line.format("made") for line in DANGER))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("if [ a = a ]; then X=1; else X=2; fi", "1"), ("if false; then X=1; else X=2; fi", "2"),
        ("if grep -q x f; then X=1; else X=2; fi", "?"), ("for i in 1 2 3; do X+=$i; done", "123"),
        ("for ((i=0;i<3;i++)); do X+=$i; done", "012"),
        ("X=0; while ((X<4)); do ((X++)); done", "4"),
        ("case ab in a*) X=1;; *) X=2;; esac", "1"),
        ("f() { return 0; X=1; }; f; X=2", "2"),
        ("for i in 1 2 3; do [ $i = 2 ] && break; X+=$i; done", "1"),
        ("for i in 1 2 3; do if [ $i = 2 ]; then continue; fi; X+=$i; done", "13"),
        ("X=a; (X=b)", "a"), ("X=a; { X=b; }", "b"), 
        ("if [ -z \"$1\" ]; then exit 1; fi; X=3", "3"),
        ("[ -f gone ] || exit 1; X=4", "4"), ("true && X=1 || X=2", "1"),
        ("while getopts a: o; do X=1; done; X=${X:-2}", "2"), ("until false; do X=1; break; done",
         "1"), ("mkdir -p x && X=1", "1"), ("if [ -d \"$HOME/x\" ]; then X=1; else X=1; fi", "1"),
    ],
)  # fmt: skip
def test_control_flow(text: str, wanted: str) -> None:
    assert value(text) == wanted


def test_arguments_of_the_script() -> None:
    text = "N=${1:-4}\nshift || true\npython t.py --n $N $@"
    assert words(text) == ["t.py", "--n", "4"]
    assert words(text, "8", "--x", "1") == ["t.py", "--n", "8", "--x", "1"]


def test_files_beside_are_sourced_and_others_are_not() -> None:
    assert words('source "$(dirname "$0")/my.env"\npython t.py $A', my_env="A=5\n") == ["t.py", "5"]
    assert "/etc/passwd, which is not beside it" in followed(". /etc/passwd\n").notes[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("source ./run.sh", "reads itself"), ("f() { f; }; f", "calls itself"),
        ("A=x; for i in $(seq 60); do A=$A$A; done", "grows beyond"),
        ("for i in {1..900}; do for j in {1..900}; do :; done; done", "steps"),
        ("if x; then", "has no `fi`"),
    ],
)  # fmt: skip
def test_scripts_without_end_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        followed(text)


def test_only_text_of_some_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_bytes(b"\x00\xff\xfe")
    with pytest.raises(InputError, match="not a text file"):
        script_text(path)
    path.write_bytes(b"a" * (MOST_CHARACTERS + 1))
    with pytest.raises(InputError, match="more than any launch script"):
        script_text(path)


def test_conditions_of_a_program_that_may_not_be_started_are_kept() -> None:
    reader = followed("if grep -q x f; then\n python a.py\nelse\n python b.py\nfi\n")
    assert [one.words[1] for one in reader.invocations] == ["a.py", "b.py"]
    assert "line 1" in reader.invocations[0].conditions[0]
