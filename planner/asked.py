"""What a user ruled out, as text that a plan keeps, and back: so that it can be planned again."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.planner.bounds_text import bounds_text, parse_bounds
from shardwright.planner.changes import choices_text
from shardwright.planner.layout_text import normalise_choices, parse_choices
from shardwright.planner.problem import Constraints

FIX, FORBID, BOUND = "fix", "forbid", "bound"


def asked_of(constraints: Constraints) -> dict[str, str]:
    """The constraints by the option that they are typed behind; empty where there are none."""
    texts = {
        FIX: choices_text(normalise_choices(constraints.fixed)),
        FORBID: ",".join(sorted(constraints.forbidden)),
        BOUND: bounds_text(constraints.bounds),
    }
    return {name: text for name, text in texts.items() if text}


def constraints_of(
    asked: Mapping[str, str], *, top: int = 1, time_limit_s: float | None = None
) -> Constraints:
    """The constraints that a plan was made under; raises `InputError` where they cannot be read."""
    return Constraints(
        fixed=parse_choices(asked.get(FIX, "")),
        forbidden=frozenset(filter(None, asked.get(FORBID, "").split(","))),
        bounds=parse_bounds(asked.get(BOUND, "")),
        top=top,
        time_limit_s=time_limit_s,
    )
