"""The layout that comes nearest to one that cannot be run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwright.planner.changes import value_text
from shardwright.planner.engine import Engine
from shardwright.planner.layout_text import COUNTS
from shardwright.planner.layouts import named_choices
from shardwright.planner.problem import ChoiceValue, Constraints
from shardwright.specs import Candidate, InputError

SEARCH_LIMIT_S = 5.0
"""Of each search for a layout that does most of what was asked."""
_COUNTS_TRIED = 2
"""How many values on either side of a count are tried."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The best layout that does as much of what was asked as can be done."""

    candidate: Candidate
    given_up: str
    """``tp = 2 in place of 3``, for every choice that is another."""


def nearest_layout(
    engine: Engine, asked: Mapping[str, ChoiceValue], kept: Constraints
) -> Nearest | None:
    """The nearest to what was asked: with one choice changed as little as can be, the fastest of
    several; else with the fewest given up, what was asked last first.

    ``kept``: what forbids and bounds besides, as far as that leaves anything.
    """
    kept = replace(kept, fixed={}, top=1, time_limit_s=SEARCH_LIMIT_S)
    found = [
        (distance, one.prediction.step_time_s, one)
        for name in asked
        for distance, one in _with_another(engine, asked, name, kept)
    ]
    if found:
        least = min(found, key=lambda one: one[:2])
        return Nearest(least[2], _given_up(asked, least[2]))
    names = list(_nearest_counts(engine, asked).items())
    for count in range(len(names) - 1, -1, -1):
        best = _search(engine, replace(kept, fixed=dict(names[:count])))
        if best is not None:
            return Nearest(best, _given_up(asked, best))
    return None


def _with_another(
    engine: Engine, asked: Mapping[str, ChoiceValue], name: str, kept: Constraints
) -> Iterator[tuple[float, Candidate]]:
    """(how far, the best) of layouts with another value of one choice and all the others asked."""
    others = {key: value for key, value in asked.items() if key != name}
    wanted = asked[name]
    counts = sorted(engine.counts(name)) if name in COUNTS and isinstance(wanted, int) else []
    if not counts or not isinstance(wanted, int):
        best = _search(engine, replace(kept, fixed=others))
        if best is not None:
            yield 1.0, best
        return
    below = [count for count in counts if count < wanted][-_COUNTS_TRIED:]
    above = [count for count in counts if count > wanted][:_COUNTS_TRIED]
    for side in (reversed(below), iter(above)):
        for count in side:
            best = _search(engine, replace(kept, fixed={**others, name: count}))
            if best is not None:
                yield abs(math.log2(count / wanted)), best
                break


def _search(engine: Engine, constraints: Constraints) -> Candidate | None:
    try:
        ranking = engine.search(constraints).ranking
    except InputError:  # these values exist nowhere in the space together
        return None
    return ranking[0] if ranking else None


def _nearest_counts(engine: Engine, asked: Mapping[str, ChoiceValue]) -> dict[str, ChoiceValue]:
    """What was asked, with counts that no layout has replaced by the nearest that one has."""
    wanted = dict(asked)
    for name, value in asked.items():
        counts = engine.counts(name) if name in COUNTS and isinstance(value, int) else ()
        if counts and isinstance(value, int):
            wanted[name] = min(counts, key=lambda one: (abs(math.log2(one / value)), one))
    return wanted


def _given_up(asked: Mapping[str, ChoiceValue], found: Candidate) -> str:
    layout = found.layout
    named = {**named_choices(layout), "num_microbatches": layout.num_microbatches}
    parts = []
    for name, value in asked.items():
        has = named[name]
        if has != value:
            parts.append(f"{name} = {value_text(has)} in place of {value_text(value)}")
    return ", ".join(parts)
