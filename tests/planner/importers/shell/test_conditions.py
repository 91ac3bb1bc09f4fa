"""Conditions are true, false or not known."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.shell.arithmetic import Evaluator
from shardwright.planner.importers.shell.conditions import (
    Facts,
    Operand,
    both,
    either,
    evaluate,
)
from shardwright.planner.importers.shell.unknown import Unknowns

NONE: dict[str, str] = {}
FACTS = Facts(
    exists=lambda path, letter: {"here": True, "gone": False}.get(path),
    number=Evaluator(NONE.__getitem__, lambda name, value: None).value,
    is_set=lambda name: name == "SET",
)  # fmt: skip


def held(text: str) -> bool | None:
    signs = ("&&", "||", "(", ")", "!")
    tokens = [one if one in signs else Operand(one.strip("'"), "*" in one) for one in text.split()]
    return evaluate(tokens, FACTS)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a = a", True), ("a == b", False), ("a != b", True), ("ab == a*", True), ("3 -lt 4", True),
        ("3 -ge 4", False), ("-z ''", True), ("-n ''", False), ("x", True), ("''", False),
        ("! x", False), ("-f here", True), ("-d gone", False), ("-e elsewhere", None),
        ("a = b || 1 -eq 1", True), ("a = a && a = b", False), ("( a = a )", True),
        ("-v SET", True), ("-v UNSET", False), ("abc =~ ^a.c$", True), ("a = a -a b = c", False),
        ("3x -lt 3", None),
    ],
)  # fmt: skip
def test_what_is_decided(text: str, wanted: bool | None) -> None:
    assert held(text) is wanted


def test_what_is_not_known_stays_so_unless_the_rest_decides() -> None:
    mark = Unknowns().mark("nobody knows")
    assert held(f"{mark} = a") is None
    assert held(f"{mark} = a && a = b") is False
    assert held(f"{mark} = a || a = a") is True
    assert both(None, True) is None
    assert either(None, False) is None


def test_patterns_that_could_take_forever_are_not_tried() -> None:
    assert held(f"{'a' * 150} =~ (a+)+$") is None
