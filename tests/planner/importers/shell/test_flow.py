"""How commands end."""

from __future__ import annotations

from shardwright.planner.importers.shell.flow import ASSUMED, Break, is_true, opposite


def test_what_is_assumed_counts_as_success_and_stays_assumed() -> None:
    assert is_true(True)
    assert is_true(ASSUMED)
    assert not is_true(None)
    assert opposite(True) is False
    assert opposite(None) is None
    assert opposite(ASSUMED) == ASSUMED


def test_jumps_leave_several_loops() -> None:
    assert Break(2).levels == 2
