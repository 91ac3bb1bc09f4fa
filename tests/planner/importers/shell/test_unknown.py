"""Marks travel with text and say why it is not known."""

from __future__ import annotations

from shardwright.planner.importers.shell.unknown import Unknowns, is_known, without_marks


def test_a_mark_keeps_its_reason_within_other_text() -> None:
    unknowns = Unknowns()
    text = f"a{unknowns.mark('first')}b{unknowns.mark('second')}{unknowns.mark('first')}"
    assert not is_known(text)
    assert unknowns.reasons(text) == "first; second"
    assert unknowns.shown(text) == "a?b??"


def test_a_users_text_holds_no_marks() -> None:
    assert is_known(without_marks(Unknowns().mark("x")))
