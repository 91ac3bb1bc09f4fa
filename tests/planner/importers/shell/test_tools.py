"""What small commands print, as the real ones do."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.shell.tools import output

FILES = {"hosts": "a\nb\nc\n"}


def printed(line: str, stdin: str | None = None) -> str | None:
    return output(line.split(" "), stdin, FILES.get)


@pytest.mark.parametrize(
    ("line", "stdin", "wanted"),
    [
        ("echo -n a b", None, "a b"), ("dirname /a/b.sh", None, "/a\n"), ("dirname x", None, ".\n"),
        ("basename /a/b.sh .sh", None, "b\n"), ("seq 3", None, "1\n2\n3\n"),
        ("seq 0 2 4", None, "0\n2\n4\n"), ("expr 3 * 4", None, "12\n"), ("bc", "8*4\n", "32\n"),
        ("wc -l hosts", None, "3\n"), ("wc -l", "a\nb\n", "2\n"), ("head -n 1 hosts", None, "a\n"),
        ("tail -1 hosts", None, "c\n"), ("cat hosts", None, "a\nb\nc\n"), ("tr , x", "a,b", "axb"),
        ("cut -d, -f2", "a,b\n", "b\n"), ("printf %s-%02d x 3", None, "x-03"),
        ("sort", "b\na\n", "a\nb\n"), ("xargs", "a\nb\n", "a b\n"),
    ],
)  # fmt: skip
def test_known_commands(line: str, stdin: str | None, wanted: str) -> None:
    assert printed(line, stdin) == wanted


@pytest.mark.parametrize("line", ["nvidia-smi -L", "rm -rf x", "cat gone", "wc -c hosts", "date"])
def test_others_are_not_known(line: str) -> None:
    assert printed(line) is None
