"""Words of shell text: quotes, parameters, substitutions and arithmetic, as written."""

from __future__ import annotations

import re

from shardwright.planner.importers.shell.nodes import (
    Arithmetic,
    Parameter,
    Part,
    Substitution,
    Text,
    Word,
)
from shardwright.specs import InputError

BLANKS = " \t\r"
META = BLANKS + "\n;&|<>()"
"""Characters that end an unquoted word."""

DEEPEST = 60
"""Levels of nesting; more is nothing that people write."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"\d+")
_SPECIAL = "@*#?$!-0123456789"
_HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([A-Za-z_]\w*)\2")
_OPERATORS = (
    ":-", ":=", ":+", ":?", "%%", "##", "//", "/#", "/%", "^^", ",,",
    "-", "=", "+", "?", "%", "#", "/", "^", ",", ":", "@",
)  # fmt: skip


class Scanner:
    """A place in shell text, and what is read from there on."""

    def __init__(self, text: str, *, line: int = 1, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        self._first_line = line
        self.depth = depth
        self.check_depth()

    def check_depth(self) -> None:
        """Refuse text that is nested deeper than people write; raises `InputError`."""
        if self.depth > DEEPEST:
            raise InputError(
                f"line {self.line}: the script is nested more than {DEEPEST} levels deep",
                fix="give the script that starts the training itself",
            )

    @property
    def line(self) -> int:
        """The line that is being read, from 1."""
        return self._first_line + self.text.count("\n", 0, self.at)

    def peek(self, length: int = 1) -> str:
        """The next characters; fewer at the end."""
        return self.text[self.at : self.at + length]

    def error(self, problem: str) -> InputError:
        """That the text cannot be read from here."""
        return InputError(
            f"line {self.line}: {problem}", why="the text is not a whole shell script",
            fix="check it with `bash -n`",
        )  # fmt: skip

    def word(self, stops: str = META) -> Word:
        """One word, up to an unquoted character of ``stops``; empty where one comes first."""
        parts: list[Part] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "(" and parts and self._is_pattern_group(parts):
                parts.append(Text(self._balanced("(", ")"), False))
            elif char in stops:
                break
            else:
                self._part(char, parts)
        return tuple(parts)

    def _is_pattern_group(self, parts: list[Part]) -> bool:
        last = parts[-1]
        return isinstance(last, Text) and not last.quoted and last.text[-1:] in tuple("@?*+!")

    def _part(self, char: str, parts: list[Part]) -> None:
        """Read what starts with ``char``, unquoted."""
        if char == "\\":
            escaped = self.peek(2)[1:]
            self.at += 2
            if escaped != "\n":
                parts.append(Text(escaped, True))
        elif char == "'":
            parts.append(Text(self._single_quoted(), True))
        elif char == '"':
            self.at += 1
            parts += self._double_quoted() or (Text("", True),)
        elif char == "$":
            parts.append(self._dollar(quoted=False))
        elif char == "`":
            parts.append(Substitution(self._backquoted(), False))
        else:
            self.at += 1
            parts.append(Text(char, False))

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self.error("a single quote is never closed")
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        return inner

    def _double_quoted(self, end: str = '"') -> tuple[Part, ...]:
        """The parts up to the closing quote, which is passed over."""
        parts: list[Part] = []
        start = self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == end:
                self.at += 1
                return tuple(parts)
            self._quoted_part(char, parts)
        raise InputError(
            f"line {start}: a double quote is never closed", fix="check the script with `bash -n`"
        )

    def _quoted_part(self, char: str, parts: list[Part]) -> None:
        if char == "\\" and self.peek(2)[1:] in tuple('$`"\\\n'):
            if self.peek(2)[1:] != "\n":
                parts.append(Text(self.peek(2)[1:], True))
            self.at += 2
        elif char == "$":
            parts.append(self._dollar(quoted=True))
        elif char == "`":
            parts.append(Substitution(self._backquoted(), True))
        else:
            self.at += 1
            parts.append(Text(char, True))

    def here_text(self) -> Word:
        """All of the text as the body of a here-document whose delimiter is not quoted."""
        parts: list[Part] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                parts.append(Text(char, True))
            else:
                self._quoted_part(char, parts)
        return tuple(parts)

    def _backquoted(self) -> str:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise self.error("a backquote is never closed")
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        return re.sub(r"\\([$`\\])", r"\1", inner)

    def _dollar(self, *, quoted: bool) -> Part:
        """What follows a dollar sign, which is where the scanner stands."""
        self.depth += 1
        self.check_depth()
        part = self._expansion(quoted=quoted)
        self.depth -= 1
        return part

    def _expansion(self, *, quoted: bool) -> Part:
        if self.peek(3) == "$((" and (inner := self._double_parentheses(self.at + 1)) is not None:
            return Arithmetic(self._sub(inner).here_text(), quoted)
        if self.peek(2) == "$(":
            self.at += 1
            return Substitution(self._balanced("(", ")")[1:-1], quoted)
        if self.peek(2) == "$[":
            self.at += 1
            return Arithmetic(self._sub(self._balanced("[", "]")[1:-1]).here_text(), quoted)
        if self.peek(2) == "${":
            self.at += 2
            return self._braced(quoted=quoted)
        if self.peek(2) == "$'" and not quoted:
            self.at += 1
            return Text(self._ansi_quoted(), True)
        self.at += 1
        name = _NAME.match(self.text, self.at)
        if name:
            self.at = name.end()
            return Parameter(name[0], quoted)
        if self.peek() and self.peek() in _SPECIAL:
            self.at += 1
            return Parameter(self.text[self.at - 1], quoted)
        return Text("$", quoted)

    def substitution(self) -> Word:
        """``(commands)`` of a process substitution, whose ``<`` was passed over."""
        return (Substitution(self._balanced("(", ")")[1:-1], False),)

    def _sub(self, text: str) -> Scanner:
        return Scanner(text, line=self.line, depth=self.depth + 1)

    def _ansi_quoted(self) -> str:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != "'":
            end += 2 if self.text[end] == "\\" else 1
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        escapes = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
        return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[0]), inner)

    def _double_parentheses(self, start: int) -> str | None:
        """The text between ``((`` at ``start`` and its ``))``; None where it is no arithmetic."""
        before, self.at = self.at, start
        inner = self._balanced("(", ")")[1:-1]
        if inner.startswith("(") and inner.endswith(")") and _closes_at_the_end(inner):
            return inner[1:-1]
        self.at = before
        return None

    def arithmetic(self) -> Word | None:
        """The expression of ``(( ... ))`` that starts here; None where it is no such thing."""
        inner = self._double_parentheses(self.at)
        return None if inner is None else self._sub(inner).here_text()

    def _balanced(self, opening: str, closing: str) -> str:
        """The text from an opening bracket to its partner, both included."""
        start, level = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#" and self.text[self.at - 1] in META and opening == "(":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
                continue
            self._skip(char)
            level += (char == opening) - (char == closing)
            if level == 0:
                return self.text[start : self.at]
        self.at = start
        raise self.error(f"{opening} is never closed")

    def _skip(self, char: str) -> None:
        """Pass over one character, or over all that is quoted or nested from here."""
        heredoc = _HEREDOC.match(self.text, self.at) if char == "<" else None
        if char == "\\":
            self.at += 2
        elif char == "'":
            self._single_quoted()
        elif char == '"':
            self.at += 1
            self._double_quoted()
        elif char == "`":
            self._backquoted()
        elif heredoc:
            end = re.compile(rf"^[ \t]*{heredoc[3]}[ \t]*$", re.M).search(self.text, heredoc.end())
            self.at = end.end() if end else len(self.text)
        else:
            self.at += 1

    def _braced(self, *, quoted: bool) -> Part:
        """The rest of ``${...}``."""
        mark = self.peek()
        following = self.peek(2)[1:]
        length = mark == "#" and following not in ("}", "") and following not in ":-=+?%/"
        indirect = mark == "!" and (following.isalnum() or following == "_")
        self.at += length or indirect
        name = _NAME.match(self.text, self.at) or _NUMBER.match(self.text, self.at)
        if name:
            self.at = name.end()
        elif self.peek() and self.peek() in _SPECIAL:
            self.at += 1
        else:
            raise self.error("what stands between ${ and } is no parameter")
        known = name[0] if name else self.text[self.at - 1]
        index = (
            self._sub(self._balanced("[", "]")[1:-1]).here_text() if self.peek() == "[" else None
        )
        if length:
            self._close()
            return Parameter(known, quoted, index, "length")
        if indirect and self.peek() in ("}", "*", "@") and (index or self.peek() != "}"):
            self.at += self.peek() != "}"
            self._close()
            return Parameter(known, quoted, index, "keys")
        return self._operated(known, index, indirect=indirect, quoted=quoted)

    def _operated(
        self, name: str, index: Word | None, *, indirect: bool, quoted: bool
    ) -> Parameter:
        operator = next((one for one in _OPERATORS if self.peek(len(one)) == one), "")
        self.at += len(operator)
        operand: Word = ()
        replacement: Word = ()
        if operator.startswith("/"):
            operand = self._operand("/}", quoted=quoted)
            if self.peek() == "/":
                self.at += 1
                replacement = self._operand("}", quoted=quoted)
        elif operator:
            operand = self._operand("}", quoted=quoted)
        self._close()
        return Parameter(name, quoted, index, operator, operand, replacement, indirect)

    def _operand(self, stops: str, *, quoted: bool) -> Word:
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in stops:
            char = self.text[self.at]
            if quoted and char == "'":
                self.at += 1
                parts.append(Text(char, True))
            else:
                self._part(char, parts)
        return tuple(parts)

    def _close(self) -> None:
        if self.peek() != "}":
            raise self.error("${ is never closed")
        self.at += 1


def _closes_at_the_end(inner: str) -> bool:
    """Whether the parenthesis that opens the text closes with its last character."""
    level = 0
    for place, char in enumerate(inner):
        level += (char == "(") - (char == ")")
        if level == 0:
            return place == len(inner) - 1
    return False


def plain_text(word: Word) -> str | None:
    """The characters of a word that expands to nothing but itself; None for others."""
    if all(isinstance(part, Text) for part in word):
        return "".join(part.text for part in word if isinstance(part, Text))
    return None
