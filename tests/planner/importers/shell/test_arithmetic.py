"""Arithmetic of the shell against its values."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.shell.arithmetic import Evaluator, NotANumberError


def evaluate(text: str, **variables: str) -> int:
    values = dict(variables)
    return Evaluator(values.__getitem__, values.__setitem__).value(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("2 ** 3 ** 2", 512), ("-7 / 2", -3),
        ("-7 % 2", -1), ("7 > 3 && 2 != 2", 0), ("1 ? 10 : 20", 10), ("0x10 + 010", 24),
        ("2#101", 5), ("~0", -1), ("1 << 4 | 1", 17), ("", 0), ("3, 4", 4), ("10 - 3 - 2", 5),
    ],
)  # fmt: skip
def test_values_are_those_of_the_shell(text: str, wanted: int) -> None:
    assert evaluate(text) == wanted


def test_variables_hold_expressions_and_can_be_assigned() -> None:
    assert evaluate("A * 2", A="B + 1", B="4") == 10
    assert evaluate("A += 3, A", A="4") == 7
    assert evaluate("A++ + A", A="1") == 3


@pytest.mark.parametrize("text", ["1 / 0", "A", "2 +", "2 2", "(1", "a b", "$"])
def test_what_is_no_arithmetic_is_said_so(text: str) -> None:
    with pytest.raises(NotANumberError):
        evaluate(text, A="B", B="A", a="1", b="x y")


def test_values_wrap_at_64_bits() -> None:
    assert evaluate("9223372036854775807 + 1") == -(2**63)
