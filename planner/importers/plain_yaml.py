"""YAML as configurations of other software use it: mappings, lists and plain values.

Blocks by indentation, lists with dashes, flow lists and mappings on one line, both kinds of quotes,
comments, and one document. Anchors, tags and block scalars are refused by their line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from shardwright.specs import InputError
from shardwright.specs.plan import read_text

_MOST_LINES = 100_000
_DEEPEST = 60
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]{0,30}")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*)?\.?[0-9_]*([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False,
    "null": None, "~": None, "": None, ".inf": float("inf"), "-.inf": float("-inf"),
    ".nan": float("nan"),
}  # fmt: skip
"""As YAML 1.1 reads them, in any case."""
_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#'"\[\]{},&*!|>%@`-][^#]*?|-[^\s#][^#]*?):(?=\s|$)"""
)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def load_yaml(path: Path, *, what: str) -> Any:
    """The value of a file; raises `InputError` with the line that cannot be read."""
    return parse_yaml(read_text(path, what=what), source=str(path))


def parse_yaml(text: str, *, source: str) -> Any:
    """The value of a text: dict, list, string, number, boolean or None."""
    return _Parser(source, _lines(text, source)).document()


def _lines(text: str, source: str) -> list[_Line]:
    rows = text.split("\n")
    if len(rows) > _MOST_LINES:
        raise InputError(f"{source} has {len(rows):,} lines", fix="name a configuration file")
    found: list[_Line] = []
    for number, row in enumerate(rows, 1):
        stripped = row.strip()
        if not stripped or stripped.startswith("#") or (number == 1 and row.startswith("%")):
            continue
        if stripped == "---" and not found:
            continue
        if stripped in ("---", "..."):
            break
        indent = len(row) - len(row.lstrip(" "))
        if row[indent : indent + 1] == "\t":
            raise InputError(f"line {number} of {source} is indented by a tab", fix="use spaces")
        found.append(_Line(number, indent, stripped))
    return found


class _Parser:
    def __init__(self, source: str, lines: list[_Line]) -> None:
        self.source, self.lines, self.at = source, lines, 0

    def document(self) -> Any:
        if not self.lines:
            return None
        value = self.block(self.lines[0].indent, 0)
        if self.at < len(self.lines):
            self.refuse(self.lines[self.at], "does not belong to what is above it")
        return value

    def refuse(self, line: _Line, why: str) -> NoReturn:
        raise InputError(
            f"line {line.number} of {self.source} {why}: {line.text[:60]}",
            fix="write plain YAML: mappings, lists and values",
        )

    def block(self, indent: int, depth: int) -> Any:
        if depth > _DEEPEST:
            self.refuse(self.lines[self.at], "is nested too deep")
        line = self.lines[self.at]
        if line.text == "-" or line.text.startswith("- "):
            return self.items(indent, depth)
        if _KEY.match(line.text):
            return self.mapping(indent, depth)
        self.at += 1
        return self.value(line.text, line)

    def items(self, indent: int, depth: int) -> list[Any]:
        found = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent or not (line.text == "-" or line.text.startswith("- ")):
                break
            rest = line.text[1:].strip()
            if not rest:
                self.at += 1
                found.append(self.below(indent, depth))
                continue
            # What follows the dash is a block of its own, indented to where it stands.
            inner = indent + len(line.text) - len(line.text[1:].lstrip())
            self.lines[self.at] = _Line(line.number, inner, rest)
            found.append(self.block(inner, depth + 1))
        return found

    def mapping(self, indent: int, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            match = _KEY.match(line.text) if line.indent == indent else None
            if match is None:
                if line.indent > indent:
                    self.refuse(line, "does not belong to what is above it")
                break
            key = self.value(match[1].strip(), line)
            if key in found:
                self.refuse(line, f"says {key} for the second time")
            self.at += 1
            rest = _without_comment(line.text[match.end() :].strip())
            found[key] = self.value(rest, line) if rest else self.below(indent, depth)
        return found

    def below(self, indent: int, depth: int) -> Any:
        """The block under a key or a dash: deeper, or a list as deep as its key."""
        if self.at >= len(self.lines):
            return None
        line = self.lines[self.at]
        is_list = line.text == "-" or line.text.startswith("- ")
        if line.indent > indent or (line.indent == indent and is_list and depth >= 0
                                    and self._is_under_key(indent)):  # fmt: skip
            return self.block(line.indent, depth + 1)
        return None

    def _is_under_key(self, indent: int) -> bool:
        above = self.lines[self.at - 1]
        return above.indent == indent and bool(_KEY.match(above.text))

    def value(self, text: str, line: _Line) -> Any:
        text = _without_comment(text)
        if text[:1] in ("&", "*", "!", "|", ">", "%", "@", "`"):
            self.refuse(line, "is not plain YAML")
        if text[:1] in ("[", "{"):
            value, rest = self.flow(text, line, 0)
            if rest.strip():
                self.refuse(line, "goes on behind its value")
            return value
        return self.scalar(text, line)

    def scalar(self, text: str, line: _Line) -> Any:
        if text[:1] in ("'", '"'):
            value, rest = self.quoted(text, line)
            if rest.strip():
                self.refuse(line, "goes on behind its quotes")
            return value
        word = text.lower()
        if word in _WORDS:
            return _WORDS[word]
        if _INTEGER.fullmatch(text):
            return int(text.replace("_", ""))
        if _FLOAT.fullmatch(text) and any(letter.isdigit() for letter in text):
            return float(text.replace("_", ""))
        return text

    def quoted(self, text: str, line: _Line) -> tuple[str, str]:
        quote = text[0]
        pattern = r"'((?:[^']|'')*)'" if quote == "'" else r'"((?:[^"\\]|\\.)*)"'
        match = re.match(pattern, text)
        if match is None:
            self.refuse(line, "has a quote without its end")
        if quote == "'":
            return match[1].replace("''", "'"), text[match.end() :]
        escapes = {"n": "\n", "t": "\t", "0": "\0"}
        inner = re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[1]), match[1])
        return inner, text[match.end() :]

    def flow(self, text: str, line: _Line, depth: int) -> tuple[Any, str]:
        """A value of a list or mapping on one line, and what follows it."""
        text = text.lstrip()
        if depth > _DEEPEST:
            self.refuse(line, "is nested too deep")
        if text[:1] == "[":
            return self._flow_list(text[1:], line, depth)
        if text[:1] == "{":
            return self._flow_mapping(text[1:], line, depth)
        if text[:1] in ("'", '"'):
            return self.quoted(text, line)
        match = re.match(r"[^,\[\]{}]*", text)
        assert match is not None
        return self.scalar(match[0].strip(), line), text[match.end() :]

    def _flow_list(self, text: str, line: _Line, depth: int) -> tuple[list[Any], str]:
        found: list[Any] = []
        while True:
            text = text.lstrip()
            if text[:1] == "]":
                return found, text[1:]
            value, text = self.flow(text, line, depth + 1)
            found.append(value)
            text = self._next(text, "]", line)

    def _flow_mapping(self, text: str, line: _Line, depth: int) -> tuple[dict[Any, Any], str]:
        found: dict[Any, Any] = {}
        while True:
            text = text.lstrip()
            if text[:1] == "}":
                return found, text[1:]
            match = re.match(r"""\s*("[^"]*"|'[^']*'|[^:,{}\[\]]+):\s*""", text)
            if match is None:
                self.refuse(line, "has a mapping without keys")
            value, text = self.flow(text[match.end() :], line, depth + 1)
            found[match[1].strip("\"' ")] = value
            text = self._next(text, "}", line)

    def _next(self, text: str, end: str, line: _Line) -> str:
        text = text.lstrip()
        if text[:1] == ",":
            return text[1:]
        if text[:1] != end:
            self.refuse(line, f"has no {end}")
        return text


def _without_comment(text: str) -> str:
    """A ``#`` behind a space, and outside quotes, starts a comment."""
    quote = ""
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and text[index - 1] != "\\" else quote
        elif letter in "'\"" and (index == 0 or text[index - 1] in " [{,:"):
            quote = letter
        elif letter == "#" and (index == 0 or text[index - 1] in " \t"):
            return text[:index].rstrip()
    return text
