"""Short scripts read as files, for the tests of this folder."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from shardwright.planner.importers.shell.flow import Exit
from shardwright.planner.importers.shell.reader import Reader


def followed(text: str, *arguments: str, folder: Path | None = None, **files: str) -> Reader:
    """A reader that followed the script; ``files``: others beside it, ``_`` for a dot."""
    where = folder or Path(tempfile.mkdtemp())
    for name, content in {"run_sh": text, **files}.items():
        (where / name.replace("_", ".", 1)).write_text(content, encoding="utf-8")
    reader = Reader(where)
    reader.state.directory = str(where)
    with contextlib.suppress(Exit):
        reader.run_file(str(where / "run.sh"), arguments, sourced=False)
    return reader


def words(text: str, *arguments: str, **files: str) -> list[str]:
    """The words of the first program that the script starts, without ``python``, ``?`` for what is
    not known."""
    reader = followed(text, *arguments, folder=None, **files)
    return [reader.unknowns.shown(word) for word in reader.invocations[0].words[1:]]


def value(text: str, name: str = "X") -> str:
    """A variable's text after the script, ``?`` for what is not known."""
    reader = followed(text)
    return reader.unknowns.shown(reader.state.text(name) or "")
