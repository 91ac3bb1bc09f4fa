"""Shell text to commands, and what is no shell text."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.shell.nodes import (
    AndOr,
    Case,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Simple,
    While,
)
from shardwright.planner.importers.shell.syntax import parse
from shardwright.planner.importers.shell.words import plain_text
from shardwright.specs import InputError


def test_constructs_are_told_apart() -> None:
    body = parse(
        "a && b || c\nd | e |& f\nif x; then y; elif z; then w; else v; fi\n"
        "for i in 1 2; do echo; done\nwhile read l; do :; done < file\n"
        "case $1 in a|b) x;; (*) y;; esac\nf() { echo; }\n( cd x; ls ) > log\n! g\n"
    )
    kinds = [AndOr, Pipeline, If, For, Group, Case, Function, Group, Pipeline]
    assert [type(node) for node in body] == kinds
    loop = body[4]
    assert isinstance(loop, Group)
    assert isinstance(loop.body[0], While)
    assert [one.operator for one in loop.redirects] == ["<"]


def test_lines_comments_and_continuations() -> None:
    body = parse("a \\\n  b # c\n\n# d\ne;f & g\n")
    texts = [[plain_text(w) for w in node.words if isinstance(w, tuple)]
             for node in body if isinstance(node, Simple)]  # fmt: skip
    assert texts == [["a", "b"], ["e"], ["f"], ["g"]]
    assert [node.line for node in body if isinstance(node, Simple)] == [1, 5, 5, 5]


def test_a_here_document_belongs_to_its_command() -> None:
    body = parse("cat <<EOF > f && echo done\n it's $X\nEOF\nnext\n")
    assert len(body) == 2
    chain = body[0]
    assert isinstance(chain, AndOr)
    assert isinstance(chain.first, Simple)
    assert [one.operator for one in chain.first.redirects] == ["<<", ">"]


@pytest.mark.parametrize(
    "text",
    ["if x; then y", "echo 'a", 'echo "a', "for i in 1; do", "case x in a)", "x=(1 2", "echo $(ls",
     "${", "f() { ", "[[ a", "(a", "`x", "echo ${X",
     "[[ a ; b ]]", "[[ a | b ]]", "function f (", "[[ a =~"],
)  # fmt: skip
def test_what_never_ends_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InputError, match="line 1"):
        parse(text)


def test_nesting_has_a_limit() -> None:
    with pytest.raises(InputError, match="nested"):
        parse("( " * 5000 + ") " * 5000)
    with pytest.raises(InputError, match="nested"):
        parse("echo " + "${x:-" * 5000)
