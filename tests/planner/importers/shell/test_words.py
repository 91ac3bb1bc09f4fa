"""Words as they are written."""

from __future__ import annotations

from shardwright.planner.importers.shell.nodes import Arithmetic, Parameter, Substitution, Text
from shardwright.planner.importers.shell.words import Scanner, plain_text


def test_quotes_and_escapes_give_plain_text() -> None:
    assert plain_text(Scanner("a'b c'\"d\"\\ e rest").word()) == "ab cd e"


def test_kinds_of_expansions() -> None:
    word = Scanner('$A"${B:-c}"$(ls)$((1+2))').word()
    assert [type(part) for part in word] == [Parameter, Parameter, Substitution, Arithmetic]
    second = word[1]
    assert isinstance(second, Parameter)
    assert (second.name, second.operator, second.quoted) == ("B", ":-", True)
    assert second.operand == (Text("c", False),)


def test_a_word_ends_at_an_unquoted_blank_or_sign() -> None:
    scan = Scanner("abc;def")
    assert plain_text(scan.word()) == "abc"
    assert scan.peek() == ";"


def test_parentheses_in_a_substitution_are_paired() -> None:
    word = Scanner("$(echo $(echo ')') \")\")x").word()
    assert word[0] == Substitution("echo $(echo ')') \")\"", False)
    assert word[1] == Text("x", False)
