"""How commands end: a status that may not be known, and jumps out of constructs."""

from __future__ import annotations

from typing import Final, Literal

ASSUMED: Final = "assumed"
Status = bool | None | Literal["assumed"]
"""Whether a command succeeded. ``assumed``: a program that is not run, taken to succeed; None: a
condition that cannot be decided."""


class Exit(Exception):  # noqa: N818 - a jump, no error
    """The script ends."""

    def __init__(self, *, final: bool = False) -> None:
        super().__init__()
        self.is_final = final
        """Whether it ends on every way."""


class Return(Exception):  # noqa: N818 - a jump, no error
    """A function or a sourced file ends."""


class _Jump(Exception):  # noqa: N818 - a jump, no error
    def __init__(self, levels: int = 1) -> None:
        super().__init__()
        self.levels = levels


class Break(_Jump):
    """Loops end."""


class Continue(_Jump):
    """The next turn of a loop begins."""


def is_true(status: Status) -> bool:
    """Whether a status counts as success where it must count as something."""
    return status is True or status == ASSUMED


def opposite(status: Status) -> Status:
    """Of ``! command``."""
    return (not status) if isinstance(status, bool) else status
