"""Why a plan is not another layout: the rule, the bytes or the seconds, and what comes nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.asked import constraints_of
from shardwright.planner.changes import value_text
from shardwright.planner.engine import Engine, engine_for
from shardwright.planner.explain.nearest import Nearest, nearest_layout
from shardwright.planner.explain.shares import difference_in_words, terms_that_differ
from shardwright.planner.layout_text import normalise_choices, parse_choices
from shardwright.planner.layouts import layout_in_words, layout_of
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.planner.suggest import overflow_in_words
from shardwright.specs import Candidate, InputError, Plan, Prediction
from shardwright.specs.units import format_seconds

TIME_LIMIT_S = 20.0
"""Of the search for the best layout that does what was asked."""

EQUAL = 1e-9
"""Relative: steps closer than this are equal."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer for a layout that a user named."""

    asked: str
    verdict: str
    """``breaks_rules``, ``does_not_fit``, ``slower``, ``tied``, ``better`` or ``chosen``."""
    reasons: tuple[str, ...]
    candidate: Candidate | None
    """The best layout that does what was asked; None where none can be run."""
    too_big: Candidate | None
    """Where none fits, the one that needs least memory."""
    excess_bytes: int
    """By which that one exceeds what its fullest rank may use; 0 where it does not."""
    terms: tuple[tuple[str, float], ...]
    """Seconds that the candidate takes more than the plan, by what they go to."""
    nearest: Candidate | None
    """The best layout that does what was asked, or as much of it as can be done."""
    nearest_in_words: str | None
    given_up: str | None
    """What the nearest does not do of what was asked, and what it does instead."""


def why_not(plan: Plan, changes: Mapping[str, Any] | str, profile: HardwareProfile) -> WhyNot:
    """Why the plan does not do what ``changes`` names, and what would come nearest to that.

    What ``changes`` leaves open is chosen as well as it can be. Prices come from ``profile``, which
    should be the one that the plan was made from.

    Raises:
        InputError: unknown names, impossible values, or nothing named at all.
    """
    asked = parse_choices(changes) if isinstance(changes, str) else normalise_choices(changes)
    if not asked:
        raise InputError("no layout is named", fix="name what to change, such as tp=4,pp=2")
    problem = Problem(plan.model, plan.training, profile, plan.software)
    return _Question(plan, problem, engine_for(problem), asked).answer()


@dataclass(frozen=True)
class _Question:
    plan: Plan
    problem: Problem
    engine: Engine
    asked: Mapping[str, ChoiceValue]

    def answer(self) -> WhyNot:
        limits = Constraints(fixed=self.asked, top=1, time_limit_s=TIME_LIMIT_S)
        try:
            if not self.engine.breaks_rules(limits):
                return self._searched(limits)
            note = "nothing of the kind is searched"
        except InputError as error:
            note = str(error)
        broken = self._violations() or self._reasons(limits)
        if broken:
            return self._refused("breaks_rules", broken)
        try:
            found = self._named_alone()
        except InputError as error:
            return self._refused("breaks_rules", (str(error),))
        # What is asked for is no part of any space, but this very layout has a price.
        aside = f"{note}; priced as it is named, the rest plain"
        return replace(found, reasons=(*found.reasons, aside))

    def _searched(self, limits: Constraints) -> WhyNot:
        ranking = self.engine.search(limits).ranking
        if ranking:
            return self._judged(ranking[0])
        return self._too_big(self.engine.leanest(limits), self.engine.reasons(limits))

    def _reasons(self, limits: Constraints) -> tuple[str, ...]:
        try:
            return self.engine.reasons(limits)
        except InputError:
            return ()

    def _violations(self) -> tuple[str, ...]:
        layout = layout_of(self.problem, self.asked)
        problem = self.problem
        return tuple(map(str, layout.violations(problem.model, problem.cluster, problem.training)))

    def _named_alone(self) -> WhyNot:
        layout = layout_of(self.problem, self.asked)
        candidate = Candidate(layout=layout, prediction=self.engine.predict(layout))
        if candidate.prediction.memory_verdict == "fits":
            return self._judged(candidate)
        return self._too_big(candidate, (memory_in_words(candidate.prediction),))

    def _judged(self, best: Candidate) -> WhyNot:
        """The verdict over a layout that can be run."""
        chosen = Candidate(layout=self.plan.layout, prediction=self.plan.prediction)
        verdict, reasons = self._compare(best, chosen)
        terms = tuple(terms_that_differ(best, chosen))
        words = layout_in_words(best.layout)
        return WhyNot(
            self._words, verdict, reasons, best, None, 0, terms, best, words, None
        )  # fmt: skip

    def _compare(self, best: Candidate, chosen: Candidate) -> tuple[str, tuple[str, ...]]:
        if best.layout == chosen.layout:
            return "chosen", ("this is the layout of the plan",)
        step_s, chosen_s = best.prediction.step_time_s, chosen.prediction.step_time_s
        words = (
            f"the best of these, {layout_in_words(best.layout)}, takes {format_seconds(step_s)} a"
            f" step, the plan {format_seconds(chosen_s)}: {difference_in_words(best, chosen)}"
        )
        if self._is_better(best):
            return "better", (words, self._why_better())
        tie_ratio = self.problem.profile.tie_ratio
        if step_s <= chosen_s * tie_ratio:
            return "tied", (
                words, f"predictions within {tie_ratio - 1:.1%} of one another are a tie: try both"
            )  # fmt: skip
        return "slower", (words,)

    def _is_better(self, other: Candidate) -> bool:
        return other.prediction.step_time_s < self.plan.prediction.step_time_s * (1 - EQUAL)

    def _why_better(self) -> str:
        """What the plan was held to, or that its search was cut short."""
        asked = self.plan.asked
        if asked:
            said = ", ".join(f"--{name} {value}" for name, value in asked.items())
            return f"the plan was asked for with {said}: it is the best of what that leaves"
        if not self.plan.certificate.optimal:
            gap = self.plan.certificate.gap
            return f"the plan's search was stopped with a gap of {gap:.2%}: plan again with longer"
        return "the plan is an estimate, or was made from other prices: plan again"

    def _too_big(self, leanest: Candidate | None, reasons: tuple[str, ...]) -> WhyNot:
        excess = 0
        if leanest is not None:
            prediction = leanest.prediction
            rank = prediction.fullest_rank
            excess = prediction.peak_memory_bytes[rank] - prediction.capacity_of(rank)
        return self._refused("does_not_fit", reasons, leanest, max(0, excess))

    def _refused(
        self,
        verdict: str,
        reasons: tuple[str, ...],
        too_big: Candidate | None = None,
        excess_bytes: int = 0,
    ) -> WhyNot:
        """Nothing that was asked for can be run: what comes nearest."""
        kept = constraints_of(self.plan.asked)
        found: Nearest | None = nearest_layout(self.engine, self.asked, kept)
        if found is not None and self._is_better(found.candidate):
            reasons = (*reasons, f"the nearest is faster than the plan: {self._why_better()}")
        return WhyNot(
            asked=self._words,
            verdict=verdict,
            reasons=reasons,
            candidate=None,
            too_big=too_big,
            excess_bytes=excess_bytes,
            terms=(),
            nearest=None if found is None else found.candidate,
            nearest_in_words=None if found is None else layout_in_words(found.candidate.layout),
            given_up=None if found is None else found.given_up,
        )

    @property
    def _words(self) -> str:
        return ", ".join(f"{name} = {value_text(value)}" for name, value in self.asked.items())


def memory_in_words(prediction: Prediction) -> str:
    """By how much a layout does not fit, or how close it is."""
    rank = prediction.fullest_rank
    peak, capacity = prediction.peak_memory_bytes[rank], prediction.capacity_of(rank)
    if peak > capacity:
        return overflow_in_words(prediction)
    return (
        f"the fullest rank needs {peak:,} bytes of the {capacity:,} bytes"
        " that are usable, closer than such predictions are right"
    )
