"""`plan` and `estimate`: what the commands and ``shardwright.plan`` call."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import shardwright
from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.cost_models.pricing import extrapolations, is_own
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.rank_environment import rank_environment
from shardwright.planner.asked import asked_of
from shardwright.planner.bounds_text import parse_bounds
from shardwright.planner.changes import choices_text
from shardwright.planner.engine import engine_for, software_of
from shardwright.planner.goals import Goal
from shardwright.planner.layout_text import normalise_choices, parse_choices
from shardwright.planner.layouts import layout_of
from shardwright.planner.objectives import Outcome, Pursuit, goal_suggestions
from shardwright.planner.problem import Bound, ChoiceValue, Constraints, Problem
from shardwright.planner.question import default_global_batch
from shardwright.planner.search import Progress
from shardwright.planner.suggest import Settle, overflow_in_words, unsettled
from shardwright.specs import (
    Baseline,
    Candidate,
    Certificate,
    Layout,
    ModelSpec,
    Plan,
    PlanProvenance,
    Prediction,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.layout import UNSPLIT
from shardwright.specs.plan import PLAN_SCHEMA

logger = logging.getLogger(__name__)

GLOBAL_BATCH = "global_batch"

LAYOUT_KEYS = (
    "tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch", "num_microbatches", "zero",
    "zero_shard_degree", "expert_zero_shard_degree", "sequence_parallel", "recompute", "offload",
    "loss_chunks", "compile", "schedule", "stages", "stage_meshes", "further_replicas",
)  # fmt: skip
PREDICTION_KEYS = (
    "step_time_s", "step_time_band_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu",
    "bubble_fraction", "peak_memory_bytes", "memory_capacity_bytes", "memory_verdict", "breakdown",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What was found: a plan, or why there is none and what would help."""

    feasible: bool
    plan: Plan | None
    """None where nothing fits; of an estimate, also where the one layout breaks a rule."""
    assumed: dict[str, str]
    reasons: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    certificate: Certificate | None = None
    """Of the search, also where nothing fits; None for an estimate that breaks a rule."""

    def to_json_dict(self) -> dict[str, Any]:
        """The answer of ``--json``: the keys are a contract."""
        plan = self.plan
        certificate = self.certificate
        return {
            "schema": PLAN_SCHEMA,
            "feasible": self.feasible,
            "assumed": self.assumed,
            "layout": None if plan is None else _layout_json(plan.layout),
            "prediction": None if plan is None else _prediction_json(plan.prediction),
            "certificate": None if certificate is None else certificate.model_dump(mode="json"),
            "ties": [] if plan is None else [candidate_json(c) for c in plan.ties],
            "alternatives": [] if plan is None else [candidate_json(c) for c in plan.alternatives],
            "baselines": [] if plan is None else [_baseline_json(b) for b in plan.baselines],
            "reasons": list(self.reasons),
            "suggestions": list(self.suggestions),
        }


def plan(
    *,
    model: ModelSpec,
    profile: HardwareProfile,
    training: TrainingSpec,
    software: SoftwareSpec | None = None,
    fix: Mapping[str, Any] | str | None = None,
    forbid: Iterable[str] = (),
    bound: Iterable[Bound] | str = (),
    top: int = 3,
    objective: str | Goal = "step-time",
    assumed: Mapping[str, str] | None = None,
    time_limit_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    command: str | None = None,
    suggest: bool = True,
) -> PlanAnswer:
    """The best layout for a model on a cluster, with its certificate, ties and runners-up.

    Args:
        fix: choices to keep, ``{"tp": 8}`` or ``"tp=8,pp=4,stages=0-5/5-10"``.
        forbid: choices to rule out: ``recompute``, ``zero3``, ``sp``, ``gpipe``, ``tp=8``, ...
        bound: limits to keep: ``"tp<=4,pp>=2,peak_memory<=70GiB"``.
        top: rows wanted: the best and top - 1 runners-up with other choices.
        objective: what is made best, with a deadline or a budget where it is a `Goal`.
        assumed: defaults that the user did not state, to be kept with the plan. A
            ``global_batch`` among them is assumed anew for other numbers of devices.
        time_limit_s: stop proving after this long; the certificate then states the gap. Where
            several numbers of devices are tried, they share as much again, 3 s each at least.
        progress: called often with where the search stands.
        command: what the user typed, for the plan's provenance.
        suggest: where nothing fits, plan what would, too.

    Raises:
        InputError: choices that do not exist, constraints that leave nothing, or something asked
            for that cannot be planned.
    """
    problem = _problem(model, training, profile, software)
    goal = Goal(objective) if isinstance(objective, str) else objective
    constraints = Constraints(
        fixed=parse_choices(fix) if isinstance(fix, str) else normalise_choices(fix or {}),
        forbidden=frozenset(forbid),
        bounds=parse_bounds(bound) if isinstance(bound, str) else tuple(bound),
        top=top,
        time_limit_s=time_limit_s,
    )
    settle = _settling(assumed, constraints.fixed)
    outcome = Pursuit(
        settle(problem), constraints, goal, settle, progress or (lambda _: None)
    ).run()
    found, problem = outcome.found, outcome.problem
    stated = {**_assumed_for(problem, assumed), **_beyond(problem)}
    if found is None:
        why, helps = _why_and_helps(outcome, constraints, goal, settle, is_wanted=suggest)
        return PlanAnswer(False, None, stated, why, helps, outcome.certificate)
    best, *others = found.ranking
    stated |= _uncounted(problem, best.layout)
    made = _plan(problem, best, found.certificate, stated, command)
    made = made.model_copy(
        update={
            "ties": found.ties,
            "alternatives": tuple(others),
            "baselines": found.baselines,
            "asked": {**asked_of(constraints), **goal.asked()},
        }
    )
    return PlanAnswer(True, made, stated, certificate=found.certificate)


def _why_and_helps(
    outcome: Outcome, constraints: Constraints, goal: Goal, settle: Settle, *, is_wanted: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why there is no plan and, where that is wanted, what would help."""
    engine = outcome.engine
    why = outcome.reasons or engine.reasons(constraints)
    if not is_wanted:
        return why, ()
    if outcome.reasons:
        return why, goal_suggestions(outcome.problem, constraints, goal, settle)
    helps = tuple(one.text for one in engine.suggestions(constraints, settle))
    return why, helps


def _settling(assumed: Mapping[str, str] | None, fixed: Mapping[str, ChoiceValue]) -> Settle:
    """What gives a problem the global batch that is assumed for it; nothing where it was stated."""
    return partial(_settled, fixed) if GLOBAL_BATCH in (assumed or {}) else unsettled


def _settled(fixed: Mapping[str, ChoiceValue], problem: Problem) -> Problem:
    """With the global batch that is assumed for these devices and sequences: the nearest that
    fixed replicas and micro-batches share evenly, too."""
    batch = default_global_batch(problem.training.seq_len, problem.world)
    named = [fixed.get(name, 1) for name in ("dp", "micro_batch")]
    share = math.prod(value for value in named if isinstance(value, int))
    both = math.lcm(share, math.gcd(batch, problem.world))
    share = both if both <= 2 * batch else share
    batch = max(1, round(batch / share)) * share
    training = problem.training.model_copy(update={GLOBAL_BATCH: batch})
    return replace(problem, training=training)


def _assumed_for(problem: Problem, assumed: Mapping[str, str] | None) -> dict[str, str]:
    """What was assumed, with the batch that it came to on the devices that were chosen."""
    stated = dict(assumed or {})
    if GLOBAL_BATCH in stated:
        stated[GLOBAL_BATCH] = f"{problem.training.global_batch}"
    return stated


def estimate(
    *,
    model: ModelSpec,
    profile: HardwareProfile,
    training: TrainingSpec,
    software: SoftwareSpec | None = None,
    layout: Mapping[str, Any] | str,
    assumed: Mapping[str, str] | None = None,
    command: str | None = None,
) -> PlanAnswer:
    """What one layout costs. What ``layout`` leaves open takes its plainest value: degrees of 1,
    no ZeRO, no recompute, even stages, and the dp that fills the cluster. A ``global_batch`` that
    is assumed becomes the nearest one that the layout's replicas and micro-batches share evenly.

    A layout that does not fit is priced all the same, with ``feasible`` false.

    Raises:
        InputError: choices that do not exist or impossible values.
    """
    problem = _problem(model, training, profile, software)
    chosen = parse_choices(layout) if isinstance(layout, str) else normalise_choices(layout)
    if GLOBAL_BATCH in (assumed or {}):
        problem = _with_shared_batch(problem, chosen)
    wanted = layout_of(problem, chosen)
    stated = {**_assumed_for(problem, assumed), **_beyond(problem)}
    violations = wanted.violations(model, problem.cluster, problem.training)
    if violations:
        return PlanAnswer(False, None, stated, tuple(str(broken) for broken in violations))
    engine = engine_for(problem)
    prediction = engine.predict(wanted)
    candidate = Candidate(layout=wanted, prediction=prediction)
    stated |= _uncounted(problem, wanted)
    certificate = _single_certificate()
    made = _plan(problem, candidate, certificate, stated, command)
    if prediction.memory_verdict != "does_not_fit":
        return PlanAnswer(True, made, stated, certificate=certificate)
    why = (overflow_in_words(prediction),)
    return PlanAnswer(False, made, stated, why, _helps(problem, chosen, assumed), certificate)


def _helps(
    problem: Problem, chosen: Mapping[str, ChoiceValue], assumed: Mapping[str, str] | None
) -> tuple[str, ...]:
    """What would fit where a named layout does not, as commands that plan what it leaves open."""
    settle = _settling(assumed, chosen)
    found = engine_for(settle(problem)).suggestions(Constraints(fixed=chosen), settle)
    return tuple(_as_planned(one.text, chosen) for one in found)


def _as_planned(text: str, chosen: Mapping[str, ChoiceValue]) -> str:
    """A suggestion of `plan` with the command that it belongs to."""
    if text.startswith("--fix"):
        return f"plan {text}"
    if text.startswith("--"):
        return f"plan --fix {choices_text(chosen)} {text}"
    return text.replace("(--fix", "(plan --fix").replace("(without --fix", "(plan without --fix")


def _with_shared_batch(problem: Problem, chosen: Mapping[str, ChoiceValue]) -> Problem:
    """With the global batch nearest to the assumed one under which the layout breaks no rule; as
    it is where none near it is such."""
    layout = layout_of(problem, chosen)
    share = layout.dp * layout.micro_batch
    named = chosen.get("num_microbatches")
    near = max(1, round(problem.training.global_batch / share))
    counts = [named] if isinstance(named, int) else _nearest_first(near, layout.pp)
    for count in counts:
        training = problem.training.model_copy(update={GLOBAL_BATCH: count * share})
        changed = replace(problem, training=training)
        if not layout_of(changed, chosen).violations(problem.model, problem.cluster, training):
            return changed
    return problem


def _nearest_first(count: int, most: int) -> list[int]:
    """Positive whole numbers up to ``most`` away from one, the nearest first."""
    around = range(max(1, count - most), count + most + 1)
    return sorted(around, key=lambda one: abs(one - count))


def _beyond(problem: Problem) -> dict[str, str]:
    """That a prediction extrapolates, and in what, as something assumed."""
    found = extrapolations(problem.model, problem.training, problem.profile)
    return (
        {"extrapolates": "beyond every run that prices were fitted to: " + "; ".join(found)}
        if found
        else {}
    )


def _uncounted(problem: Problem, layout: Layout) -> dict[str, str]:
    """Memory that the price of a layout leaves out, as something assumed.

    Books of other software count what a micro-batch keeps, whole until its gradients of weights are
    made, but not the gradients of outputs that these wait with. Those of our own runtime do.
    """
    is_counted = is_own(problem.profile, problem.software)
    if is_counted or layout.schedule is None or layout.schedule in UNSPLIT:
        return {}
    return {
        "memory": f"{layout.schedule} puts gradients of weights off; what they wait with is not"
        " counted (tens of GiB at tp 16)"
    }


def _problem(
    model: ModelSpec,
    training: TrainingSpec,
    profile: HardwareProfile,
    software: SoftwareSpec | None,
) -> Problem:
    """The problem, with the software that the profile is of where none is named."""
    return Problem(model, training, profile, software or software_of(profile))


def _plan(
    problem: Problem,
    candidate: Candidate,
    certificate: Certificate,
    assumed: dict[str, str],
    command: str | None,
) -> Plan:
    layout = candidate.layout
    device_type = problem.cluster.accelerator.vendor
    return Plan(
        model=problem.model,
        training=problem.training,
        cluster=problem.cluster,
        software=problem.software,
        layout=layout,
        schedule=None
        if layout.schedule is None or layout.further_replicas
        else schedule_of(layout),
        environment=rank_environment(device_type),
        prediction=candidate.prediction,
        certificate=certificate,
        assumed=assumed,
        provenance=PlanProvenance(
            shardwright_version=shardwright.__version__,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            model_hash=problem.model.content_hash(),
            cluster_hash=problem.cluster.content_hash(),
            profile_hash=problem.profile.content_hash(),
            profile_source=problem.cluster.name,
        ),
    )


def _single_certificate() -> Certificate:
    """The books of an estimate: the user chose, nothing was searched."""
    return Certificate(
        considered=1, excluded_by_rules=0, excluded_by_memory=0, excluded_by_bound=0,
        excluded_by_dominance=0, simulated=1, optimal=True, gap=0.0,
        space="the one layout that was named", search_s=0.0,
    )  # fmt: skip


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "layout": _layout_json(candidate.layout),
        "prediction": _prediction_json(candidate.prediction),
    }


def _baseline_json(baseline: Baseline) -> dict[str, Any]:
    candidate = baseline.candidate
    return {
        "name": baseline.name,
        **({"layout": None, "prediction": None} if candidate is None else (
            candidate_json(candidate))),
        "reason": baseline.reason,
    }  # fmt: skip


def _layout_json(layout: Layout) -> dict[str, Any]:
    fields = layout.model_dump(mode="json")
    return {key: fields[key] for key in LAYOUT_KEYS}


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    fields = prediction.model_dump(mode="json")
    return {key: fields[key] for key in PREDICTION_KEYS}
