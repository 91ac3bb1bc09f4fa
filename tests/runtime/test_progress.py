"""Bars are for people: on stderr, and silent elsewhere."""

from __future__ import annotations

import sys

import pytest

from shardwright.runtime.progress import progress_bar


@pytest.mark.parametrize(("terminal", "shown"), [(True, True), (True, False), (False, True)])
def test_bar_is_drawn_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    shown: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with progress_bar("Tokenizing", 10, shown=shown) as advance:
        advance(10)
    output, errors = capsys.readouterr()
    assert output == ""
    assert ("Tokenizing" in errors) == (terminal and shown)
