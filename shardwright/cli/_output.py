"""Where words go: results to stdout, progress and everything else to stderr."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.table import Table

    from shardwright.specs import Spec

PIPE_WIDTH = 400
"""Columns of a table where stdout is no terminal: wide enough for one line per layout."""


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_tables(*tables: Table) -> None:
    """Tables for people on stdout."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    for shown in tables:
        console.print(shown)


def print_lines(*lines: str) -> None:
    """Each line as it is on stdout, however long."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def plain_text(value: int | str | None) -> str:
    """A value of a table: numbers with their thousands apart, a dash for nothing."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,}"


def table(*headings: str) -> Table:
    """A table without vertical lines."""
    from rich import box
    from rich.table import Table

    return Table(*headings, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)


def aligned(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, most: int | None = None
) -> Iterator[str]:
    """A table as lines, for hundreds of rows: rich takes a millisecond for each.

    ``most``: characters of a line, beyond which it is cut.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    rule = ["-" * len(heading) for heading in headings]
    for cells in (headings, rule, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        line = line.rstrip()
        yield line if most is None or len(line) <= most else f"{line[: most - 3]}..."


def terminal_columns() -> int | None:
    """Of the terminal that stdout is; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextmanager
def progress(description: str) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr, silent where that is no terminal.

    Call what is yielded with what is being done and the finished fraction.
    """
    if not sys.stderr.isatty():
        yield lambda doing, fraction: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(description, total=1.0)
        yield lambda doing, fraction: bars.update(
            task, completed=fraction, description=f"{description}: {doing}"
        )


def check_output(path: Path, kind: type[Spec], *, force: bool) -> None:
    """Make sure, before any work is done, that ``path`` may be written.

    An older file of the same kind is replaced, any other only with ``force``.

    Raises:
        InputError: the path holds something else, is a folder, or is in none that can be written.
    """
    from shardwright.specs.errors import InputError
    from shardwright.specs.plan import check_folder, read_text

    check_folder(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder", fix="name a file in it with -o")
    if force or not path.exists():
        return
    try:
        kind.from_json(read_text(path, what="output"))
    except InputError:
        raise InputError(
            f"{path} exists and is no {kind.__name__} of ours, so it is left as it is",
            fix="choose another path for -o, or add --force to overwrite it",
        ) from None


class Answer(Protocol):
    """What `require_feasible` reads of a planner's answer."""

    @property
    def feasible(self) -> bool: ...
    @property
    def reasons(self) -> Sequence[str]: ...
    @property
    def suggestions(self) -> Sequence[str]: ...


def require_feasible(answer: Answer, *, details: bool) -> None:
    """Nothing where the answer is feasible; else print what would help, and raise why it is not.

    The first reason is in the error, and is said nowhere else; ``details``: further reasons and
    every suggestion go to stdout, else the first suggestion stands in the error.

    Raises:
        InfeasibleError: with the first reason in one line.
    """
    from shardwright.specs import InfeasibleError

    if answer.feasible:
        return
    reason, *others = answer.reasons
    if not details:
        raise InfeasibleError(reason, fix=answer.suggestions[0] if answer.suggestions else None)
    for heading, lines in (("also", others), ("what would do", answer.suggestions)):
        print_lines(*([f"{heading}:"] if lines else []), *(f"  - {line}" for line in lines))
    sys.stdout.flush()
    raise InfeasibleError(reason)
