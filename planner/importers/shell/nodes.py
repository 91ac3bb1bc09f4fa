"""What a shell script is made of: words, and the commands and constructs that hold them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Characters that stand for themselves."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """``$NAME``, ``${NAME[index]operator operand}`` and their kin."""

    name: str
    quoted: bool
    index: Word | None = None
    """``(Text("@"),)`` for all items of an array."""
    operator: str = ""
    """``:-``, ``%%``, ``//``, ...; ``length`` for ``${#NAME}``, ``keys`` for ``${!NAME[@]}``."""
    operand: Word = ()
    replacement: Word = ()
    """Of ``${NAME/operand/replacement}``."""
    indirect: bool = False
    """``${!NAME}``: the variable whose name it holds."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """``$(commands)``, or backquotes."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``$((expression))``."""

    expression: Word
    quoted: bool


Part = Text | Parameter | Substitution | Arithmetic
Word = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One element of ``NAME=(...)``, with its key where one is written."""

    value: Word
    key: Word | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """``NAME=value``, ``NAME+=value``, ``NAME[index]=value``, ``NAME=(items)``."""

    name: str
    value: Word | None
    """None: an array of ``items``."""
    items: tuple[Item, ...] = ()
    index: Word | None = None
    append: bool = False


@dataclass(frozen=True, slots=True)
class Redirect:
    """``> file``, ``< file``, ``<<< text`` or a here-document, whose body is ``target``."""

    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    """One command with its words; only assignments where there are no words."""

    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    """An `Assignment` among them is an operand of ``export``, ``declare`` and their kin."""
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[Node, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AndOr:
    """``first && second || third``."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class If:
    line: int
    branches: tuple[tuple[Body, Body], ...]
    """Each condition with its commands."""
    otherwise: Body = ()


@dataclass(frozen=True, slots=True)
class For:
    line: int
    name: str
    words: tuple[Word, ...] | None
    """None: the positional parameters."""
    body: Body


@dataclass(frozen=True, slots=True)
class ForArithmetic:
    """``for ((start; condition; step))``."""

    line: int
    parts: tuple[Word, Word, Word]
    body: Body


@dataclass(frozen=True, slots=True)
class While:
    line: int
    condition: Body
    body: Body
    until: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    line: int
    word: Word
    clauses: tuple[tuple[tuple[Word, ...], Body], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """``{ ...; }`` or ``( ... )``."""

    body: Body
    subshell: bool
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: Node


@dataclass(frozen=True, slots=True)
class ArithmeticCommand:
    """``(( expression ))``."""

    expression: Word


@dataclass(frozen=True, slots=True)
class Conditional:
    """``[[ ... ]]``: operators are str, operands are words."""

    line: int
    tokens: tuple[str | Word, ...]


Node = (
    Simple | Pipeline | AndOr | If | For | ForArithmetic | While | Case | Group | Function
    | ArithmeticCommand | Conditional
)  # fmt: skip
Body = tuple[Node, ...]
