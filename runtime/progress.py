"""Progress bars of the runtime: on stderr, and only where a person is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[float], None]
"""Adds finished work, in the unit of the bar's total."""


@contextmanager
def progress_bar(description: str, total: float, *, shown: bool = True) -> Iterator[Advance]:
    """A bar over ``total`` units of work; silent unless ``shown`` and stderr is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(description, total=total)
        yield lambda amount: bars.advance(task, amount)
