"""Expansions against what bash makes of them."""

from __future__ import annotations

import pytest

from tests.planner.importers.shell.shells import value, words


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("${A:-x}", "x"), ("${A-x}", "x"), ("${A:+x}", ""),
        ("${B:+x}", "x"), ("${B:-x}", "one two"),
        ("${#B}", "7"), ("${F%.tar.gz}", "run"), ("${F%%.*}", "run"), ("${F#*.}", "tar.gz"),
        ("${F##*.}", "gz"), ("${F/tar/zip}", "run.zip.gz"), ("${F//./-}", "run-tar-gz"),
        ("${F:4:3}", "tar"), ("${F: -2}", "gz"), ("${B^^}", "ONE TWO"), ("${L[1]}", "b"),
        ("${#L[@]}", "3"), ("${L[-1]}", "c"), ("${L[*]:1}", "b c"), ("${!P}", "one two"),
        ("$((2 + ${#L[@]}))", "5"), ("$(echo hi)", "hi"), ("`echo hi`", "hi"), ("${M[k]}", "v"),
        ("${A:=new}$A", "newnew"), ("'$B'", "$B"), ("$'a\\tb'", "a\tb"), ("${E:-d}", "d"),
        ("${E-d}", ""),
    ],
)  # fmt: skip
def test_parameters(expression: str, wanted: str) -> None:
    setup = "B='one two'\nF=run.tar.gz\nL=(a b c)\nP=B\nE=''\ndeclare -A M=([k]=v)\nX=" + expression
    assert value(setup) == wanted


def test_words_are_split_but_not_within_quotes() -> None:
    text = (
        """A="a  b"\nL=(x "y z")\npython p.py $A "$A" "${L[@]}" ${L[1]} "" $NONE{1,2} {3..5} end"""
    )
    assert words(text)[1:] == [
        "a", "b", "a  b", "x", "y z", "y", "z", "", "?1", "?2", "3", "4", "5", "end",
    ]  # fmt: skip


def test_an_empty_array_gives_no_word() -> None:
    assert words('L=()\npython p.py ${L[@]+"${L[@]}"} "${L[@]}" "$@" end')[1:] == ["end"]


def test_what_is_not_set_is_named() -> None:
    assert value("X=a$NOBODY") == "a?"
