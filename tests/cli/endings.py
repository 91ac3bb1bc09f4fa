"""Run a command in this process, and say what is wrong with how it ended."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwright.cli import execute

REFUSALS = (2, 3, 4)
"""Exit codes of what is in the user's hands."""

LONGEST_MESSAGE = 1500
"""Characters: a screenful. What was given is quoted in part where it is longer."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended."""

    code: int
    out: str
    err: str
    cpu_s: float = 0.0
    """Of this process: waiting for others does not count."""

    @property
    def messages(self) -> list[str]:
        """Its errors: ours are one line, those of the option parser stand in a frame."""
        starts = ("error: ", "╭─ Error")
        return [line for line in self.err.splitlines() if line.startswith(starts)]

    def faults(self) -> Iterator[str]:
        """Every way in which this is no way to end."""
        if self.code not in (0, *REFUSALS):
            yield f"exit code {self.code}"
        if "Traceback" in self.out + self.err:
            yield "a traceback"
        if len(self.messages) != (self.code != 0):
            yield f"{len(self.messages)} messages"
        if any(len(message) > LONGEST_MESSAGE for message in self.messages):
            yield "an endless message"
        if (
            self.code in (2, 4)
            and "To fix: " not in self.err
            and "Try 'shardwright" not in self.err
        ):
            yield "no word of what to do"

    def json_faults(self) -> Iterator[str]:
        """Likewise of a command that was asked for JSON: one object on stdout, or nothing."""
        yield from self.faults()
        if self.out:
            try:
                answer = json.loads(self.out)
            except ValueError:
                yield "stdout that is not JSON"
            else:
                if not isinstance(answer, dict):
                    yield f"a {type(answer).__name__} on stdout"


def end_of(arguments: Sequence[str]) -> Ending:
    """Run a command in this process to its end."""
    out, err = io.StringIO(), io.StringIO()
    started_s = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = execute(arguments)
    return Ending(code, out.getvalue(), err.getvalue(), time.process_time() - started_s)
