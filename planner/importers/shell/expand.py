"""Words to text: what parameters, arithmetic and substitutions stand for."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwright.planner.importers.shell.arithmetic import Evaluator, NotANumberError
from shardwright.planner.importers.shell.nodes import (
    Arithmetic,
    Assignment,
    Parameter,
    Part,
    Substitution,
    Text,
    Word,
)
from shardwright.planner.importers.shell.state import State
from shardwright.planner.importers.shell.unknown import Unknowns, is_known

_BRACES = re.compile(r"\{([^{}\s]*)\}")
_RANGE = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(\d{1,6}))?")
_SUBSCRIPTED = re.compile(r"([A-Za-z_]\w*)\[(.*)\]")
MOST_ITEMS = 1000
"""Of a brace expansion, and turns of a loop."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A piece of a word: text that is split at blanks or not, or several fields."""

    text: str = ""
    splits: bool = False
    fields: tuple[str, ...] | None = None


@dataclass(slots=True)
class Expander:
    """Expands words over a state; ``substitute`` gives what commands print."""

    state: State
    unknowns: Unknowns
    substitute: Callable[[str], str]
    script: str
    """The path of the script, as ``$0`` gives it."""

    def fields(self, words: Iterable[Word | Assignment]) -> list[str]:
        """The words of a command as it would receive them."""
        found: list[str] = []
        for word in words:
            if isinstance(word, Assignment):
                found.append(f"{word.name}={self.text(word.value or ())}")
            else:
                for field in self._split(word):
                    found += _braces(field) if _has_braces(word) else [field]
        return found

    def text(self, word: Word) -> str:
        """A word where nothing is split, as in an assignment."""
        texts = []
        for part in word:
            chunk = self._chunk(part)
            texts.append(chunk.text if chunk.fields is None else " ".join(chunk.fields))
        return "".join(texts)

    def known_text(self, word: Word) -> str:
        """As `text`, where what nobody sets is empty: for conditions."""
        return self.settled(self.text(word))

    def settled(self, text: str) -> str:
        """A text in which variables from outside that nobody sets are empty."""
        for one in self.unknowns.within(text):
            if one.is_unset:
                text = text.replace(self.unknowns.mark(one.reason, is_unset=True), "")
        return text

    def number(self, text: str) -> int:
        """An arithmetic expression's value; raises `NotANumberError`."""
        if not is_known(text):
            raise NotANumberError(self.unknowns.reasons(text))
        return Evaluator(self._read_number, self._write_number).value(text)

    def _split(self, word: Word) -> list[str]:
        found: list[str] = []
        current: str | None = None
        for part in word:
            chunk = self._chunk(part)
            if chunk.fields is not None:
                if chunk.fields:
                    first, *rest = chunk.fields
                    current = (current or "") + first
                    for field in rest:
                        found.append(current)
                        current = field
            elif not chunk.splits:
                current = (current or "") + chunk.text
            else:
                pieces = re.split(r"[ \t\n]+", chunk.text)
                for place, piece in enumerate(pieces):
                    if place and current is not None:
                        found.append(current)
                        current = None
                    if piece:
                        current = (current or "") + piece
        return found if current is None else [*found, current]

    def _chunk(self, part: Part) -> _Chunk:
        if isinstance(part, Text):
            return _Chunk(part.text)
        if isinstance(part, Arithmetic):
            return _Chunk(self._arithmetic(part.expression), not part.quoted)
        if isinstance(part, Substitution):
            return _Chunk(self.substitute(part.text).rstrip("\n"), not part.quoted)
        return self._parameter(part)

    def _arithmetic(self, expression: Word) -> str:
        text = self.text(expression)
        try:
            return str(self.number(text))
        except NotANumberError as error:
            return self.unknowns.mark(str(error))

    def _read_number(self, name: str) -> str:
        subscripted = _SUBSCRIPTED.fullmatch(name)
        if subscripted:
            key = self._key(subscripted[1], subscripted[2])
            value = self.state.array(subscripted[1]).get(key)
        else:
            value = self.state.text(name)
        if value is None:
            raise NotANumberError(f"{name} is not set in the script")
        if not is_known(value):
            raise NotANumberError(self.unknowns.reasons(value))
        return value

    def _write_number(self, name: str, value: str) -> None:
        subscripted = _SUBSCRIPTED.fullmatch(name)
        if subscripted:
            array = self.state.array(subscripted[1])
            array[self._key(subscripted[1], subscripted[2])] = value
            self.state.set(subscripted[1], array)
        else:
            self.state.set(name, value)

    def _key(self, name: str, index: str) -> str:
        """An array's key: a number where it is arithmetic, else the text."""
        value = self.state.variables.get(name)
        if isinstance(value, dict) and index in value:
            return index
        try:
            place = self.number(index)
        except NotANumberError:
            return index
        size = len(value) if isinstance(value, dict) else 1
        return str(place + size if place < 0 else place)

    def key(self, name: str, index: Word) -> str:
        """The key that an index is."""
        return self._key(name, self.text(index).strip("'\""))

    def _parameter(self, part: Parameter) -> _Chunk:
        if part.indirect:
            target = self.state.text(part.name) or ""
            part = Parameter(
                target, part.quoted, part.index, part.operator, part.operand, part.replacement
            )
        many = self._many(part)
        if many is not None:
            return self._listed(part, many)
        value = self._value(part)
        if part.operator == "length":
            known = self.settled(value or "")
            return _Chunk(str(len(known)) if is_known(known) else known)
        return _Chunk(self._operated(part, value), not part.quoted)

    def _many(self, part: Parameter) -> list[str] | None:
        """All values of ``$@``, ``${A[@]}`` and ``${!A[@]}``; None of a single value."""
        if part.name in ("@", "*") and part.index is None:
            return list(self.state.positional)
        index = None if part.index is None else self.text(part.index)
        if part.operator == "keys":
            if index in ("@", "*"):
                return list(self.state.array(part.name))
            return [name for name in self.state.variables if name.startswith(part.name)]
        if index in ("@", "*"):
            return list(self.state.array(part.name).values())
        return None

    def _listed(self, part: Parameter, values: list[str]) -> _Chunk:
        operator = part.operator
        if operator == "length":
            return _Chunk(str(len(values)))
        if operator == ":":
            values = self._sliced(part, values)
        elif operator in (":-", "-", ":+", "+", ":=", "=", ":?", "?"):
            if operator in (":+", "+"):
                values = self._split(part.operand) if values else []
            elif not values:
                values = self._split(part.operand)
        elif operator not in ("", "keys"):
            values = [self._operated(part, value) for value in values]
        joins = part.name == "*" or (part.index is not None and self.text(part.index) == "*")
        if part.quoted and joins:
            return _Chunk(" ".join(values))
        if part.quoted:
            return _Chunk(fields=tuple(values))
        return _Chunk(" ".join(values), True)

    def _sliced(self, part: Parameter, values: list[str]) -> list[str]:
        start, stop = self._bounds(part, len(values) + (part.name in ("@", "*")))
        offset = 1 if part.name in ("@", "*") and start > 0 else 0
        return values[start - offset : stop - offset]

    def _bounds(self, part: Parameter, size: int) -> tuple[int, int]:
        """First place and the one after the last, of ``:offset:length``."""
        offset, _, length = self.text(part.operand).partition(":")
        try:
            start = self.number(offset)
            count = self.number(length) if length.strip() else size
        except NotANumberError:
            return 0, size
        start = max(0, start + size if start < 0 else start)
        return start, max(start, size + count if count < 0 else start + count)

    def _value(self, part: Parameter) -> str | None:
        """A single value; None where it is not set."""
        name = part.name
        if name.isdigit():
            place = int(name)
            if place == 0:
                return self.script
            given = self.state.positional
            return given[place - 1] if place <= len(given) else None
        if name == "#":
            return str(len(self.state.positional))
        if name in ("?", "-"):
            return "0" if name == "?" else ""
        if name in ("$", "!"):
            return self.unknowns.mark("it is a process number")
        if part.index is not None:
            return self.state.array(name).get(self.key(name, part.index))
        return self.state.text(name)

    def _operated(self, part: Parameter, value: str | None) -> str:
        operator = part.operator
        is_empty = value is None or (operator[:1] == ":" and self.settled(value) == "")
        if value is not None and self.settled(value) != value and self.settled(value) == "":
            is_empty = True  # it holds what nobody sets
        plain = operator.lstrip(":")
        if operator in (":-", "-"):
            return self.text(part.operand) if is_empty else value or ""
        if operator in (":=", "="):
            if is_empty:
                value = self.text(part.operand)
                self.state.set(part.name, value)
            return value or ""
        if operator in (":+", "+"):
            return "" if is_empty else self.text(part.operand)
        if value is None or (plain == "?" and is_empty):
            return self._unset(part)
        if not is_known(value):
            return value
        return self._edited(part, value)

    def _unset(self, part: Parameter) -> str:
        name = part.name
        if name.isdigit():
            return self.unknowns.mark(f"it is the script's argument {name}", is_unset=True)
        return self.unknowns.mark(f"{name} is not set in the script", is_unset=True)

    def _edited(self, part: Parameter, value: str) -> str:
        """A known value after ``%``, ``#``, ``/``, ``:`` and changes of case."""
        operator = part.operator
        if operator == ":":
            start, stop = self._bounds(part, len(value))
            return value[start:stop]
        if operator[:1] in ("%", "#"):
            return _trimmed(value, operator, self.text(part.operand))
        if operator[:1] == "/":
            return _replaced(value, operator, self.text(part.operand), self.text(part.replacement))
        cases: dict[str, Callable[[str], str]] = {
            "^^": str.upper, ",,": str.lower, "^": lambda text: text[:1].upper() + text[1:],
            ",": lambda text: text[:1].lower() + text[1:],
        }  # fmt: skip
        return cases[operator](value) if operator in cases else value


def _trimmed(value: str, operator: str, pattern: str) -> str:
    """Without the shortest or longest beginning (``#``) or end (``%``) that a pattern matches."""
    if len(value) > 4096 or not is_known(pattern):
        return value
    lengths = range(len(value) + 1)
    for length in reversed(lengths) if len(operator) == 2 else lengths:
        from_end = operator[0] == "%"
        piece = value[len(value) - length :] if from_end else value[:length]
        if fnmatch.fnmatchcase(piece, pattern):
            return value[: len(value) - length] if from_end else value[length:]
    return value


def _replaced(value: str, operator: str, pattern: str, by: str) -> str:
    """With matches of a glob pattern replaced: all for ``//``, else the first."""
    if len(value) > 4096 or len(pattern) > 100 or pattern.count("*") > 3 or not pattern:
        return value
    parts = {"*": ".*", "?": "."}
    expression = "".join(parts.get(char, re.escape(char)) for char in pattern)
    if pattern.startswith("[") and pattern.endswith("]"):
        expression = f"[{re.escape(pattern[1:-1])}]"
    anchors = {"/#": f"^(?:{expression})", "/%": f"(?:{expression})$"}
    return re.sub(
        anchors.get(operator, expression), lambda _: by, value, count=0 if operator == "//" else 1,
        flags=re.DOTALL,
    )  # fmt: skip


def _has_braces(word: Word) -> bool:
    plain = "".join(part.text for part in word if isinstance(part, Text) and not part.quoted)
    return "{" in plain and "}" in plain


def _braces(text: str) -> list[str]:
    """``a{1,2}`` and ``{0..3}`` as the texts that they stand for."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    span = _RANGE.fullmatch(match[1])
    if span:
        first, last, step = int(span[1]), int(span[2]), int(span[3] or 1) or 1
        numbers = range(
            first, last + (1 if last >= first else -1), step if last >= first else -step
        )
        choices = [str(number) for number in numbers[:MOST_ITEMS]]
    elif "," in match[1]:
        choices = match[1].split(",")
    else:
        return [text]
    head, tail = text[: match.start()], text[match.end() :]
    return [whole for one in choices for whole in _braces(f"{head}{one}{tail}")][:MOST_ITEMS]
