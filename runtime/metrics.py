"""The record of a run: one JSON line per step, and progress for people on stderr."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shardwright.specs import RunError
from shardwright.specs.plan import write_text
from shardwright.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is written down of one step; numbers round-trip through JSON to the last bit."""

    step: int
    """From 1."""
    loss: float
    grad_norm: float
    learning_rate: float
    step_time_s: float
    tokens_per_s: float

    def in_words(self) -> str:
        return (
            f"step {self.step}: loss {self.loss:.4f}, gradient norm {self.grad_norm:.3f}, learning"
            f" rate {self.learning_rate:.2e}, {format_seconds(self.step_time_s)} a step,"
            f" {self.tokens_per_s:,.0f} tokens/s"
        )


def read_records(path: Path) -> list[StepRecord]:
    """The records of a metrics file; a last line that was cut short is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            records.append(StepRecord(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            break
    return records


class MetricsFile:
    """Appends a line per step; a resumed run first drops the lines of steps it will do again."""

    def __init__(self, path: Path, *, first_step: int) -> None:
        self._path = path
        kept = [record for record in read_records(path) if record.step < first_step]
        with self._one_line_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(map(_as_line, kept)))
        with self._one_line_errors():
            self._file: RawIOBase = path.open("ab", buffering=0)

    def append(self, record: StepRecord) -> None:
        """Write one line, complete before the next step begins.

        Raises:
            RunError: the disk is full or the file cannot be written.
        """
        with self._one_line_errors():
            self._file.write(_as_line(record).encode())

    def close(self) -> None:
        with self._one_line_errors():
            self._file.close()

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"cannot write the run's metrics to {self._path}: {error.strerror}",
                fix="free space or choose another folder with --save",
            ) from None


def _as_line(record: StepRecord) -> str:
    assert math.isfinite(record.loss), record
    return json.dumps(asdict(record)) + "\n"


class Reporter:
    """Shows one rank's progress: a bar where stderr is a terminal, a line every few steps."""

    def __init__(self, *, first_step: int, last_step: int, log_every: int, speaks: bool) -> None:
        self._last_step = last_step
        self._log_every = log_every
        self._speaks = speaks
        self._bars: Progress | None = None
        if speaks and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

            self._bars = Progress(
                *Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bars.add_task("Training", total=last_step, completed=first_step - 1)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def done(self, record: StepRecord) -> None:
        """Report a finished step."""
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[0], completed=record.step)
        is_due = record.step % self._log_every == 0 or record.step in (1, self._last_step)
        if self._speaks and is_due:
            self._say(record.in_words())

    def _say(self, line: str) -> None:
        """Above the bar, where there is one."""
        if self._bars is None:
            logger.info("%s", line)
        else:
            self._bars.console.print(line, markup=False, highlight=False)
