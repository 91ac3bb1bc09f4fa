"""Which layouts a trial times: those that a plan names, or those of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.planner.engine import engine_for
from shardwright.planner.layout_text import normalise_choices, parse_choices
from shardwright.planner.layouts import layout_in_words, layout_of
from shardwright.planner.problem import Problem
from shardwright.specs import Candidate, InputError, Layout, Plan, Prediction
from shardwright.specs._base import parse_json


@dataclass(frozen=True, slots=True)
class Skipped:
    """A layout that cannot be run or priced."""

    layout: Layout
    reason: str


def reason_of(error: InputError) -> str:
    """Its problem and why, on one line."""
    return error.problem if error.why is None else f"{error.problem}: {error.why}"


def shortlist(plan: Plan, top: int) -> tuple[Candidate, ...]:
    """The plan's own layout, those that tie with it, then its alternatives, the fastest first of
    each: ``top`` of them at most, each once."""
    chosen = Candidate(layout=plan.layout, prediction=plan.prediction)
    found = [chosen, *by_step(plan.ties), *by_step(plan.alternatives)]
    distinct = {one.layout: one for one in reversed(found)}
    return tuple(one for one in found if distinct[one.layout] is one)[:top]


def by_step(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The fastest first; the order is kept where predictions are equal."""
    return sorted(candidates, key=lambda one: one.prediction.step_time_s)


def read_layouts(
    text: str, problem: Problem, *, source: str
) -> tuple[tuple[Candidate, ...], tuple[Skipped, ...]]:
    """The layouts of a JSON list, priced: each a text (``"tp=2,pp=4"``), an object of choices, or a
    layout as a plan file holds it. What the prices do not cover is skipped, with the reason.

    Raises:
        InputError: no such list, choices that do not exist, or layouts that break a rule.
    """
    value = parse_json(text, source=source)
    if not isinstance(value, list) or not value:
        raise InputError(
            f"{source} is no list of layouts", fix='write ["tp=2,micro_batch=4", "pp=2", ...]'
        )
    engine = engine_for(problem)
    found: dict[Layout, Prediction] = {}
    skipped: list[Skipped] = []
    for number, entry in enumerate(value, 1):
        layout = _layout(entry, problem, f"layout {number} of {source}")
        try:
            found[layout] = found.get(layout) or engine.predict(layout)
        except InputError as error:
            skipped.append(Skipped(layout, reason_of(error)))
    runs = (Candidate(layout=one, prediction=price) for one, price in found.items())
    return tuple(runs), tuple(skipped)


def _layout(entry: Any, problem: Problem, source: str) -> Layout:
    layout = _parsed(entry, problem, source)
    violations = layout.violations(problem.model, problem.cluster, problem.training)
    if violations:
        raise InputError(f"{source} ({layout_in_words(layout)}) is not valid: {violations[0]}")
    return layout


def _parsed(entry: Any, problem: Problem, source: str) -> Layout:
    if isinstance(entry, str):
        return layout_of(problem, parse_choices(entry))
    if isinstance(entry, Mapping):
        if "stages" in entry and "recompute" in entry:
            return Layout.from_value(dict(entry), source=source)
        return layout_of(problem, normalise_choices(entry))
    raise InputError(f"{source} is {entry!r}", fix="write it as text: tp=2,pp=4")
