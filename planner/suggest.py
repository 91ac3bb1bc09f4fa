"""When nothing fits: by how many bytes, and the smallest changes that make it fit.

Every suggestion was planned before it is made: a user who follows it gets a plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from shardwright.planner.bounds import (
    Pricer,
    UnitBytes,
    cut_memory_bytes,
    quick_memory_bound_bytes,
    state_bound_bytes,
)
from shardwright.planner.capped import CappedPricer
from shardwright.planner.changes import Change, changes, choices_text, combined
from shardwright.planner.choices import Choices
from shardwright.planner.layout_text import normalise_choices
from shardwright.planner.layouts import layout_in_words
from shardwright.planner.partition import least_memory_cut
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import search
from shardwright.planner.space import Space
from shardwright.specs import Candidate, InputError, Layout, MemoryParts, Prediction
from shardwright.specs.units import format_bytes

PricerFactory = Callable[[Problem], Pricer]
Fitting = Callable[[Problem, Constraints], Candidate | None]
Settle = Callable[[Problem], Problem]
"""Completes a problem that was changed: what was assumed for the old one is assumed anew."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change after which a layout fits, with the problem and constraints that result."""

    text: str
    problem: Problem
    constraints: Constraints


def reasons(problem: Problem, constraints: Constraints, pricer: Pricer) -> tuple[str, ...]:
    """Why nothing fits: the broken rules, or the bytes of the layout that needs least."""
    space = Space(problem, constraints)
    if not space.valid:
        return tuple(str(violation) for violation in space.violations())
    _, layout = _least_memory(problem, space, pricer)
    return (
        f"of {space.considered - space.excluded_by_rules:,} layouts none fits: of the one that"
        f" needs least ({layout_in_words(layout)})"
        f" {overflow_in_words(pricer.predict(layout), constraints.most_bytes)}",
    )


def completion(problem: Problem, constraints: Constraints, first: Fitting) -> Suggestion | None:
    """A layout that keeps all that is fixed and fits; None where none does."""
    option = f"plan --fix {choices_text(normalise_choices(constraints.fixed))}"
    words = f"keep what was named and choose the rest ({option})"
    found = first(problem, constraints)
    return None if found is None else _suggestion(Change(words, problem, constraints), found)


def unsettled(problem: Problem) -> Problem:
    """The problem as it is."""
    return problem


def suggestions(
    problem: Problem, constraints: Constraints, first: Fitting, settle: Settle = unsettled
) -> tuple[Suggestion, ...]:
    """Changes of each kind that help, the smallest of its kind, in the order of
    `planner.changes.changes`; where no single one does, the first of several together.

    ``first``: some layout that fits a problem and constraints, or None where none does.
    """
    known: dict[str, Candidate | None] = {}

    def fitting(change: Change) -> Candidate | None:
        if change.words not in known:
            changed = change.problem if change.states_batch else settle(change.problem)
            known[change.words] = first(changed, change.constraints)
        return known[change.words]

    found = [
        suggestion
        for alternatives in changes(problem, constraints, lambda one: fitting(one) is not None)
        if (suggestion := _first_that_fits(alternatives, fitting)) is not None
    ]
    if not found:
        several = _first_that_fits(combined(problem, constraints), fitting)
        found = [] if several is None else [several]
    return tuple(found)


def _first_that_fits(
    alternatives: Iterable[Change], fitting: Callable[[Change], Candidate | None]
) -> Suggestion | None:
    for change in alternatives:
        fits = fitting(change)
        if fits is not None:
            return _suggestion(change, fits)
    return None


def first_fitting(
    problem: Problem, constraints: Constraints, make_pricer: PricerFactory
) -> Candidate | None:
    """Some layout that fits, or None where none does.

    The layout that needs least decides, but where its bound fits and the layout itself does not.
    """
    try:
        pricer, space = make_pricer(problem), Space(problem, constraints)
        if constraints.most_bytes is not None:
            pricer = CappedPricer(pricer, constraints.most_bytes)
        if not space.valid:
            return None
        needed_bytes, layout = _least_memory(problem, space, pricer)
        if needed_bytes > pricer.capacity_bytes:
            return None
        prediction = pricer.predict(layout)
        if prediction.memory_verdict == "fits":
            return Candidate(layout=layout, prediction=prediction)
        ranking = search(problem, replace(constraints, top=1, time_limit_s=1e-9), pricer).ranking
    except InputError:
        # The change itself is impossible, such as a precision that the device does not compute in.
        return None
    return ranking[0].candidate if ranking else None


def least_memory(problem: Problem, constraints: Constraints, pricer: Pricer) -> Candidate | None:
    """The layout of our own runtime that needs least memory; None where none obeys the rules."""
    space = Space(problem, constraints)
    if not space.valid:
        return None
    _, layout = _least_memory(problem, space, pricer)
    return Candidate(layout=layout, prediction=pricer.predict(layout))


def _suggestion(change: Change, fitting: Candidate) -> Suggestion:
    prediction = fitting.prediction
    text = (
        f"{change.words}: then {layout_in_words(fitting.layout)} fits, with"
        f" {format_bytes(prediction.peak_memory_bytes[prediction.fullest_rank])} of"
        f" {format_bytes(prediction.memory_capacity_bytes)}"
    )
    return Suggestion(text, change.problem, change.constraints)


def _least_memory(problem: Problem, space: Space, pricer: Pricer) -> tuple[float, Layout]:
    """The layout whose bound on memory is least, the plainer where several are; and the bound."""
    open_bounds: list[tuple[float, tuple[int, ...], Choices, UnitBytes | None]] = [
        (state_bound_bytes(choices, pricer.state_bytes(choices)), choices.key, choices, None)
        for choices in _leanest(space.valid)
    ]
    heapq.heapify(open_bounds)
    best: tuple[float, Choices, tuple[int, ...]] | None = None
    while open_bounds and (best is None or open_bounds[0][0] < best[0]):
        _, key, choices, unit_bytes = heapq.heappop(open_bounds)
        if unit_bytes is None:
            unit_bytes = pricer.unit_bytes(choices)
            bound_bytes = quick_memory_bound_bytes(choices, unit_bytes)
            heapq.heappush(open_bounds, (bound_bytes, key, choices, unit_bytes))
            continue
        fixed = space.fixed_boundaries
        if fixed is not None:
            cut = tuple(layer + 1 for layer in fixed)
            needed_bytes = cut_memory_bytes(choices, unit_bytes, cut)
        else:
            needed_bytes, cut = least_memory_cut(choices, unit_bytes)
        if best is None or needed_bytes < best[0]:
            best = needed_bytes, choices, cut
    assert best is not None
    needed_bytes, choices, cut = best
    return needed_bytes, choices.layout(problem, tuple(unit - 1 for unit in cut))


def _leanest(valid: Iterable[Choices]) -> list[Choices]:
    """Choices with the smallest micro-batch of their grid; no other needs less memory.

    State does not depend on it, a unit's bytes grow with it, and so do the sequences in flight:
    min(pp - i, m) micro-batches, or all m, where m x micro_batch is what a rank is given.
    """
    smallest: dict[tuple[int, int, int], int] = {}
    listed = list(valid)
    for choices in listed:
        grid = (choices.tp, choices.pp, choices.dp)
        smallest[grid] = min(choices.micro_batch, smallest.get(grid, choices.micro_batch))
    return [
        choices
        for choices in listed
        if choices.micro_batch == smallest[choices.tp, choices.pp, choices.dp]
    ]


def overflow_in_words(prediction: Prediction, most_bytes: float | None = None) -> str:
    """By how many bytes the fullest pipeline rank exceeds the capacity, and what fills it.

    ``most_bytes``: what the user allows, where that is less than the device has.
    """
    rank = prediction.fullest_rank
    peak, capacity, what = (
        prediction.peak_memory_bytes[rank],
        prediction.capacity_of(rank),
        "usable",
    )
    if most_bytes is not None and most_bytes < capacity:
        capacity, what = int(most_bytes), "allowed"
    return (
        f"pipeline rank {rank} needs {peak:,} bytes ({format_bytes(peak)}), {peak - capacity:,}"
        f" more than the {capacity:,} bytes ({format_bytes(capacity)}) that are {what}:"
        f" {parts_in_words(prediction.memory[rank])}"
    )


def parts_in_words(memory: MemoryParts) -> str:
    """``weights 1.2 GiB, gradients 2.4 GiB``: parts that are there, largest first."""
    parts = {name: getattr(memory, name) for name in MemoryParts.model_fields}
    largest = sorted((item for item in parts.items() if item[1]), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in largest)
