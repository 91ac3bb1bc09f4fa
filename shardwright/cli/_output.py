"""Where words go: results to stdout, progress and everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

    from shardwright.specs import Spec

PIPE_WIDTH = 120
"""Columns of a table where stdout is no terminal: wide enough for one line per layout."""


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def console() -> Console:
    """The console for people, on stdout."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


@contextmanager
def progress(description: str) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, silent where that is no terminal; call with the finished fraction."""
    if not sys.stderr.isatty():
        yield lambda fraction: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(description, total=1.0)
        yield lambda fraction: bars.update(task, completed=fraction)


def write_spec(path: Path, spec: Spec, *, force: bool) -> None:
    """Write a plan or profile, over an older one of the same kind, but over no other file.

    Raises:
        InputError: the path holds something else and ``force`` is off, or cannot be written.
    """
    from shardwright.specs.errors import InputError
    from shardwright.specs.plan import read_text, write_text

    kind = type(spec).__name__
    if path.exists() and not force:
        try:
            type(spec).from_json(read_text(path, what="output"))
        except InputError:
            raise InputError(
                f"{path} exists and is no {kind} of ours, so it is left as it is",
                fix="choose another path for -o, or add --force to overwrite it",
            ) from None
    write_text(path, spec.to_json())


class Answer(Protocol):
    """What `require_feasible` reads of a planner's answer."""

    @property
    def feasible(self) -> bool: ...
    @property
    def reasons(self) -> Sequence[str]: ...
    @property
    def suggestions(self) -> Sequence[str]: ...


def require_feasible(answer: Answer, *, details: bool) -> None:
    """Nothing where the answer is feasible; else print why and what would help, and raise.

    Raises:
        InfeasibleError: with the first reason and the first suggestion in one line.
    """
    from shardwright.specs import InfeasibleError

    if answer.feasible:
        return
    if details:
        out = console()
        for heading, lines in (("why", answer.reasons), ("what fits", answer.suggestions)):
            out.print(f"{heading}:")
            for line in lines:
                out.print(f"  - {line}")
    raise InfeasibleError(
        answer.reasons[0], fix=answer.suggestions[0] if answer.suggestions else None
    )
