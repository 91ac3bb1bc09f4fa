"""Integer arithmetic of the shell, in 64 bits."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from shardwright.planner.importers.shell.words import DEEPEST

_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+#\w+|\d+)|([A-Za-z_]\w*(?:\[[^\]]*\])?)"
    r"|(<<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))"
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<=", ">=", "<", ">"),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"), ("**",),
)  # fmt: skip
_BINARY: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)), "&&": lambda a, b: int(bool(a and b)),
    "|": operator.or_, "^": operator.xor, "&": operator.and_,
    "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b),
    "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b),
    "<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b),
    "<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63),
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: _divided(a, b), "%": lambda a, b: a - b * _divided(a, b),
    "**": lambda a, b: pow(a, b, 2**64) if b >= 0 else 0,
}  # fmt: skip


class NotANumberError(Exception):
    """An expression has no value; says why."""


def _divided(a: int, b: int) -> int:
    """The quotient, towards zero as in C."""
    if b == 0:
        raise NotANumberError("it divides by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _wrapped(value: int) -> int:
    """As 64 bits with a sign hold it."""
    return (value + 2**63) % 2**64 - 2**63


class Evaluator:
    """Evaluates expressions over a script's variables, and assigns to them.

    ``read`` gives a variable's text, ``write`` sets it; ``read`` raises `NotANumberError` where the
    variable is not known.
    """

    def __init__(self, read: Callable[[str], str], write: Callable[[str, str], None]) -> None:
        self._read = read
        self._write = write
        self._being_read: list[str] = []

    def value(self, text: str) -> int:
        """The value of an expression; 0 of an empty one.

        Raises:
            NotANumberError: it is none, divides by zero, or a variable refers to itself.
        """
        tokens = _tokens(text)
        if not tokens:
            return 0
        parser = _Expression(tokens, self)
        result = parser.comma()
        if parser.at < len(tokens):
            raise NotANumberError(f"{text.strip()!r} is no arithmetic")
        return result

    def variable(self, name: str) -> int:
        """A variable's value, whose text may be an expression itself."""
        if name in self._being_read or len(self._being_read) > DEEPEST:
            chain = " -> ".join([*self._being_read, name])
            raise NotANumberError(f"{name} refers to itself ({chain})")
        self._being_read.append(name)
        try:
            return self.value(self._read(name))
        finally:
            self._being_read.pop()

    def assign(self, name: str, value: int) -> int:
        """Set a variable."""
        self._write(name, str(value))
        return value


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotANumberError(f"{text.strip()!r} is no arithmetic")
        found.append(match[0].strip())
        at = match.end()
    return found


class _Expression:
    """One pass over the tokens of an expression."""

    def __init__(self, tokens: list[str], evaluator: Evaluator) -> None:
        self.tokens = tokens
        self.at = 0
        self._evaluator = evaluator
        self._depth = 0

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self.at += 1
        return token

    def comma(self) -> int:
        self._depth += 1
        if self._depth > DEEPEST:
            raise NotANumberError("it is nested too deeply")
        result = self._assignment()
        while self._peek() == ",":
            self._next()
            result = self._assignment()
        self._depth -= 1
        return result

    def _assignment(self) -> int:
        name = self._peek()
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        is_name = name[:1].isalpha() or name[:1] == "_"
        if is_name and following.endswith("=") and following not in ("==", "!=", "<=", ">="):
            self.at += 2
            value = self._assignment()
            if following != "=":
                before = self._evaluator.variable(name)
                value = _wrapped(_BINARY[following[:-1]](before, value))
            return self._evaluator.assign(name, value)
        return self._choice()

    def _choice(self) -> int:
        condition = self._binary(0)
        if self._peek() != "?":
            return condition
        self._next()
        first = self._assignment()
        if self._next() != ":":
            raise NotANumberError("a ? has no :")
        second = self._assignment()
        return first if condition else second

    def _binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self._peek() in _LEVELS[level]:
            sign = self._next()
            right = self._binary(level if sign == "**" else level + 1)
            left = _wrapped(_BINARY[sign](left, right))
        return left

    def _unary(self) -> int:
        token = self._next()
        if token in ("++", "--"):
            name = self._next()
            return self._evaluator.assign(
                name, self._evaluator.variable(name) + (1 if token == "++" else -1)
            )
        signs: dict[str, Callable[[int], int]] = {
            "-": operator.neg, "+": operator.pos, "!": lambda a: int(not a), "~": operator.inv,
        }  # fmt: skip
        if token in signs:
            return signs[token](self._unary())
        if token == "(":
            value = self.comma()
            if self._next() != ")":
                raise NotANumberError("a ( is never closed")
            return value
        return self._operand(token)

    def _operand(self, token: str) -> int:
        if token[:1].isdigit():
            return _number(token)
        if not (token[:1].isalpha() or token[:1] == "_"):
            raise NotANumberError(f"{token or 'its end'!r} stands where a number should")
        value = self._evaluator.variable(token)
        if self._peek() in ("++", "--"):
            self._evaluator.assign(token, value + (1 if self._next() == "++" else -1))
        return value


def _number(token: str) -> int:
    """``12``, ``0x1f``, ``017`` and ``2#101``."""
    try:
        base, mark, digits = token.partition("#")
        if mark:
            return int(digits, int(base))
        if token.lower().startswith("0x"):
            return int(token, 16)
        return int(token, 8) if token.startswith("0") and len(token) > 1 else int(token[:40])
    except ValueError:
        raise NotANumberError(f"{token} is no number") from None
