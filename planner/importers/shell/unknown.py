"""Values that a script does not state: marks in text that say why, and travel with it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPENING, _CLOSING = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPENING}(\\d+){_CLOSING}")
_FOREIGN = re.compile(f"[{_OPENING}{_CLOSING}]")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why a value is not known."""

    reason: str
    """In words: ``NNODES is not set in the script``."""
    is_unset: bool
    """Whether it is a variable from outside, empty where nobody sets it."""


@dataclass(slots=True)
class Unknowns:
    """All that was met in one script. A mark is two private characters around a number."""

    found: list[Unknown] = field(default_factory=list)

    def mark(self, reason: str, *, is_unset: bool = False) -> str:
        """Text that stands for a value that is not known."""
        unknown = Unknown(reason, is_unset)
        if unknown not in self.found:
            self.found.append(unknown)
        return f"{_OPENING}{self.found.index(unknown)}{_CLOSING}"

    def within(self, text: str) -> list[Unknown]:
        """Those whose marks a text holds."""
        return [self.found[int(match[1])] for match in _MARK.finditer(text)]

    def reasons(self, text: str) -> str:
        """Why a text is not known, in words."""
        return "; ".join(dict.fromkeys(one.reason for one in self.within(text)))

    def shown(self, text: str) -> str:
        """A text for people, with ``?`` where it is not known."""
        return _MARK.sub("?", text)


def is_known(text: str) -> bool:
    """Whether a text holds no mark."""
    return _OPENING not in text


def without_marks(text: str) -> str:
    """A user's text, in which nothing can be taken for a mark."""
    return _FOREIGN.sub(" ", text)
