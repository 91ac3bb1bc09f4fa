"""Conditions of ``[ ... ]`` and ``[[ ... ]]``: true, false, or None where that is not known."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass

from shardwright.planner.importers.shell.arithmetic import NotANumberError
from shardwright.planner.importers.shell.unknown import is_known

_FILE_TESTS = frozenset(("-f", "-d", "-e", "-s", "-r", "-w", "-x", "-L", "-h", "-a"))
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
_BINARY = frozenset(("=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef", *_COMPARISONS))


@dataclass(frozen=True, slots=True)
class Operand:
    """An expanded word of a condition."""

    text: str
    pattern: bool = False
    """Whether ``*`` in it stands for anything: it was not quoted."""


Token = str | Operand
"""Operators are str."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What conditions ask of the world."""

    exists: Callable[[str, str], bool | None]
    """Whether a path is there, by the test's letter (``-f``)."""
    number: Callable[[str], int]
    """Of an expression; raises `NotANumberError`."""
    is_set: Callable[[str], bool]


def negated(value: bool | None) -> bool | None:
    """The opposite of what is known."""
    return None if value is None else not value


def both(a: bool | None, b: bool | None) -> bool | None:
    """Kleene's and."""
    if a is False or b is False:
        return False
    return True if a and b else None


def either(a: bool | None, b: bool | None) -> bool | None:
    """Kleene's or."""
    return negated(both(negated(a), negated(b)))


def evaluate(tokens: list[Token], facts: Facts) -> bool | None:
    """Whether a condition holds; None where it cannot be decided."""
    if not tokens:
        return False
    parser = _Condition(tokens, facts)
    found = parser.alternatives()
    return found if parser.at >= len(tokens) else None


class _Condition:
    def __init__(self, tokens: list[Token], facts: Facts) -> None:
        self.tokens = tokens
        self.at = 0
        self._facts = facts

    def _text(self, ahead: int = 0) -> str:
        """A token as it is written, also of operands, as ``[`` makes no difference."""
        if self.at + ahead >= len(self.tokens):
            return ""
        token = self.tokens[self.at + ahead]
        return token if isinstance(token, str) else token.text

    def alternatives(self) -> bool | None:
        found = self._conjunction()
        while self._text() in ("||", "-o"):
            self.at += 1
            found = either(found, self._conjunction())
        return found

    def _conjunction(self) -> bool | None:
        found = self._single()
        while self._text() in ("&&", "-a"):
            self.at += 1
            found = both(found, self._single())
        return found

    def _single(self) -> bool | None:
        if self._text() == "!" and self.at + 1 < len(self.tokens):
            self.at += 1
            return negated(self._single())
        if self._text() == "(" and isinstance(self.tokens[self.at], str):
            self.at += 1
            found = self.alternatives()
            self.at += 1
            return found
        if self._text(1) in _BINARY and self.at + 2 < len(self.tokens):
            left, sign, right = self._text(), self._text(1), self.tokens[self.at + 2]
            self.at += 3
            return self._compared(left, sign, right)
        is_unary = re.fullmatch(r"-[a-zA-Z]", self._text()) and self.at + 1 < len(self.tokens)
        if is_unary and self._text(1) not in ("&&", "||", "-a", "-o", ")"):
            letter, operand = self._text(), self._text(1)
            self.at += 2
            return self._unary(letter, operand)
        text = self._text()
        self.at += 1
        return bool(text) if is_known(text) else None

    def _unary(self, letter: str, operand: str) -> bool | None:
        if letter in ("-z", "-n"):
            if not is_known(operand):
                return None
            return (operand == "") == (letter == "-z")
        if letter == "-v":
            return self._facts.is_set(operand)
        if letter in _FILE_TESTS:
            return self._facts.exists(operand, letter) if is_known(operand) else None
        return None

    def _compared(self, left: str, sign: str, right: Token) -> bool | None:
        text = right if isinstance(right, str) else right.text
        if not (is_known(left) and is_known(text)):
            return None
        if sign in _COMPARISONS:
            try:
                return _COMPARISONS[sign](self._facts.number(left), self._facts.number(text))
            except NotANumberError:
                return None
        if sign == "=~":
            return _found(text, left)
        if sign in ("<", ">"):
            return left < text if sign == "<" else left > text
        if sign in ("=", "==", "!="):
            is_pattern = isinstance(right, Operand) and right.pattern
            same = fnmatch.fnmatchcase(left, text) if is_pattern else left == text
            return same == (sign != "!=")
        return None


def _found(pattern: str, text: str) -> bool | None:
    """Whether a POSIX expression matches; None for those that Python writes differently, and for
    texts so long that a bad pattern could take forever."""
    if len(text) > 200 or re.search(r"\)[*+?{]|(?:[*+?{].*){5}", pattern):
        return None
    for name, letters in (("digit", "0-9"), ("alpha", "a-zA-Z"), ("alnum", "a-zA-Z0-9")):
        pattern = pattern.replace(f"[:{name}:]", letters)
    try:
        return re.search(pattern.replace("[:space:]", r"\s"), text) is not None
    except re.error:
        return None
