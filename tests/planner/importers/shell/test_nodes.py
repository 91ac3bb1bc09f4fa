"""Nodes are values: equal text gives equal nodes."""

from __future__ import annotations

from shardwright.planner.importers.shell.nodes import Simple
from shardwright.planner.importers.shell.syntax import parse


def test_equal_text_gives_equal_nodes_that_can_be_kept_in_sets() -> None:
    first, second = parse("A=1 run x > y"), parse("A=1   run x >y")
    assert first == second
    assert len({first, second}) == 1
    assert isinstance(first[0], Simple)
    assert first[0].assignments[0].name == "A"
