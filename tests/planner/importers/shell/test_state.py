"""Variables, and two ways that come together."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.shell.state import LONGEST, State, merged
from shardwright.planner.importers.shell.unknown import Unknowns
from shardwright.specs import InputError


def test_ways_agree_on_what_is_equal_and_begin_alike() -> None:
    unknowns = Unknowns()
    first, second = State(), State()
    for state, tail in ((first, "--tp 4"), (second, "--tp 2")):
        state.set("SAME", "1")
        state.set("ARGS", f"--layers 8 {tail}")
        state.set("LIST", {"0": "a", "1": tail})
    both = merged([first, second], unknowns, "by the weather")
    assert both.variables["SAME"] == "1"
    assert unknowns.shown(both.text("ARGS") or "") == "--layers 8 --tp ?"
    assert "4 or 2, by the weather" in unknowns.reasons(both.text("ARGS") or "")
    assert both.array("LIST")["0"] == "a"


def test_what_the_user_gave_holds() -> None:
    state = State({"N": "4"}, pinned=frozenset({"N"}))
    state.set("N", "8")
    assert state.text("N") == "4"


def test_a_copy_is_apart_and_values_have_a_limit() -> None:
    state = State({"L": {"0": "a"}})
    state.copy().array("L")["0"] = "b"
    assert state.array("L") == {"0": "a"}
    with pytest.raises(InputError, match="grows beyond"):
        state.set("X", "x" * (LONGEST + 1))
