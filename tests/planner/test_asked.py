"""What was ruled out is kept with the plan and read back as the same constraints."""

from __future__ import annotations

from dataclasses import replace

from shardwright.planner.asked import asked_of, constraints_of
from shardwright.planner.bounds_text import parse_bounds
from shardwright.planner.layout_text import parse_choices
from shardwright.planner.problem import Constraints


def test_constraints_come_back() -> None:
    limits = Constraints(
        fixed=parse_choices("tp=8,sp=on,recompute=full/none,stages=0-3/3-4"),
        forbidden=frozenset({"cp", "zero=3"}),
        bounds=parse_bounds("micro_batch<=2,peak_memory<=70GiB"),
        top=1,
    )
    asked = asked_of(limits)
    assert set(asked) == {"fix", "forbid", "bound"}
    assert constraints_of(asked) == limits
    assert constraints_of(asked, top=3, time_limit_s=2.0) == replace(
        limits, top=3, time_limit_s=2.0
    )


def test_nothing_asked_is_nothing_kept() -> None:
    assert asked_of(Constraints()) == {}
    assert constraints_of({}) == Constraints(top=1)
