"""A user's own layout beside the plan: its price, and why it is slower or faster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.planner.api import PlanAnswer, candidate_json
from shardwright.planner.engine import engine_for
from shardwright.planner.explain.shares import difference_in_words
from shardwright.planner.explain.why_not import EQUAL
from shardwright.planner.importers.job import unknown_layout
from shardwright.planner.importers.reading import Reading
from shardwright.planner.layouts import layout_of
from shardwright.planner.problem import Problem
from shardwright.planner.suggest import overflow_in_words
from shardwright.specs import Candidate, InputError
from shardwright.specs.units import format_seconds


@dataclass(frozen=True, slots=True)
class Yours:
    """The layout that a user runs today."""

    candidate: Candidate | None
    """None where it breaks a rule or is not known."""
    verdict: str
    """``unknown``, ``breaks_rules``, ``does_not_fit``, ``slower``, ``tied``, ``faster``, ``best``,
    or ``priced`` where nothing else fits."""
    reasons: tuple[str, ...]

    def to_json_dict(self) -> dict[str, Any]:
        """The value of ``yours`` in the answer of ``--json``."""
        priced = {"layout": None, "prediction": None}
        if self.candidate is not None:
            priced = candidate_json(self.candidate)
        return {**priced, "verdict": self.verdict, "reasons": list(self.reasons)}


def yours_of(problem: Problem, reading: Reading, answer: PlanAnswer) -> Yours:
    """The file's layout, priced as the plan was, and compared with it."""
    unknown = unknown_layout(reading)
    if unknown is not None:
        return Yours(None, "unknown", (unknown,))
    try:
        layout = layout_of(problem, reading.choices)
        broken = layout.violations(problem.model, problem.cluster, problem.training)
        if broken:
            return Yours(None, "breaks_rules", tuple(map(str, broken)))
        own = Candidate(layout=layout, prediction=engine_for(problem).predict(layout))
    except InputError as error:
        return Yours(None, "breaks_rules", (str(error),))
    if own.prediction.memory_verdict == "does_not_fit":
        return Yours(own, "does_not_fit", (overflow_in_words(own.prediction),))
    return _compared(problem, own, answer)


def adopted(answer: PlanAnswer, yours: Yours) -> PlanAnswer:
    """The answer with the user's layout as its plan where a search that was cut short found none as
    fast; the bounds of that search hold for it, too.

    Only where nothing was asked for that the layout may not obey.
    """
    plan, own = answer.plan, yours.candidate
    if plan is None or own is None or yours.verdict != "faster" or plan.asked:
        return answer
    certificate = plan.certificate
    if certificate.optimal or certificate.excluded_by_bound == 0:
        return answer
    own_s, best_s = own.prediction.step_time_s, plan.prediction.step_time_s
    least_s = best_s * (1 - certificate.gap)
    best = Candidate(layout=plan.layout, prediction=plan.prediction)
    made = plan.model_copy(
        update={
            "layout": own.layout,
            "prediction": own.prediction,
            "schedule": None if own.layout.schedule is None else schedule_of(own.layout),
            "ties": (),
            "alternatives": (best, *plan.alternatives),
            "certificate": certificate.model_copy(
                update={
                    "excluded_by_bound": certificate.excluded_by_bound - 1,
                    "simulated": certificate.simulated + 1,
                    "gap": max(0.0, 1 - least_s / own_s),
                }
            ),
        }
    )
    return replace(answer, plan=made, certificate=made.certificate)


def _compared(problem: Problem, own: Candidate, answer: PlanAnswer) -> Yours:
    plan = answer.plan
    if plan is None:
        return Yours(own, "priced", ("nothing that was searched fits",))
    best = Candidate(layout=plan.layout, prediction=plan.prediction)
    own_s, best_s = own.prediction.step_time_s, best.prediction.step_time_s
    if own.layout == best.layout:
        return Yours(own, "best", ("your layout is the plan",))
    words = f"{format_seconds(own_s)} against {format_seconds(best_s)} a step"
    reason = f"{difference_in_words(own, best)} ({words})"
    if own_s < best_s * (1 - EQUAL):
        return Yours(own, "faster", (reason, _why_faster(answer)))
    ratio = problem.profile.tie_ratio
    if own_s <= best_s * ratio:
        tie = f"within {ratio - 1:.1%} predictions cannot be told apart: only a trial can"
        return Yours(own, "tied", (reason, tie))
    return Yours(own, "slower", (reason,))


def _why_faster(answer: PlanAnswer) -> str:
    certificate = answer.certificate
    if certificate is not None and not certificate.optimal:
        return (
            "the search was stopped before it came there, so that yours is the plan: give it longer"
            " with --time-limit"
        )
    return "it makes choices that are not searched, or that were ruled out"
