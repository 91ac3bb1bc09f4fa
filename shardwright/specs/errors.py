"""What can go wrong, by whose hands, and the exit code each kind ends a command with.

    ShardwrightError
    ├── InputError        2  the user's input is wrong; nothing was touched
    ├── InfeasibleError   3  the input is right, but no plan satisfies it
    └── RunError          4  a run started and failed; the last checkpoint is safe

Anything else that escapes is our own fault and ends with exit code 1.
"""

from __future__ import annotations


class ShardwrightError(Exception):
    """An error that speaks to the user: the problem with its numbers, why, and what to do."""

    exit_code = 1

    def __init__(self, problem: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.why = why
        self.fix = fix
        self.on_every_rank = False
        """Whether all ranks of a run raise this error alike, so that the first speaks for all."""

    def __str__(self) -> str:
        parts = [self.problem]
        if self.why:
            parts.append(f"because {self.why}")
        text = " ".join(parts)
        return f"{text}. To fix: {self.fix}" if self.fix else text


class InputError(ShardwrightError):
    """The user's input is wrong; nothing was touched."""

    exit_code = 2


class InfeasibleError(ShardwrightError):
    """The input is right, but no plan satisfies it."""

    exit_code = 3


class RunError(ShardwrightError):
    """A run started and failed; the last checkpoint is safe."""

    exit_code = 4
