"""Where a plan's time and memory go, what limits it, and why not another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.engine import Engine, engine_for
from shardwright.planner.layout_text import COUNTS, normalise_choices, parse_choices
from shardwright.planner.layouts import layout_in_words, layout_of
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.planner.suggest import parts_in_words
from shardwright.specs import (
    Breakdown,
    Candidate,
    InputError,
    Layout,
    MemoryParts,
    Plan,
    Prediction,
)
from shardwright.specs.units import format_bytes, format_seconds

TIME_LIMIT_S = 20.0
"""Of each search for another layout."""

LIMITS: dict[str, tuple[str, ...]] = {
    "compute": ("compute_forward", "compute_backward"),
    "recompute": ("recompute",),
    "tp traffic": ("tp_comm",),
    "cp traffic": ("cp_comm",),
    "ep traffic": ("ep_comm",),
    "pp traffic": ("pp_comm",),
    "bubble": ("bubble",),
    "dp traffic": ("dp_comm_exposed",),
    "optimizer": ("optimizer",),
    "data": ("data",),
    "other": ("other",),
}
"""Fields of `Breakdown` by what they have in common."""


@dataclass(frozen=True, slots=True)
class StageShare:
    """One pipeline rank of a plan."""

    rank: int
    layers: str
    """``0-9``; ``none`` where it holds other blocks only."""
    holds: tuple[str, ...]
    memory: MemoryParts
    peak_bytes: int
    fills: float
    """Its peak over the capacity."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where the step and the memory go."""

    limit: str
    """What the step waits for most, and what is fullest, in one sentence."""
    time_shares: tuple[tuple[str, float, float], ...]
    """(what, seconds, fraction of the step), largest first; they sum to the step."""
    stages: tuple[StageShare, ...]
    runners_up: tuple[str, ...]
    """For each alternative: how much slower it is, and where."""

    def lines(self) -> list[str]:
        """The explanation for people, a line each."""
        lines = [self.limit]
        lines += [
            f"{what}: {format_seconds(seconds)} ({share:.1%})"
            for what, seconds, share in self.time_shares
        ]
        for stage in self.stages:
            held = "".join(f" + {name}" for name in stage.holds)
            lines.append(
                f"pipeline rank {stage.rank}: layers {stage.layers}{held}:"
                f" {format_bytes(stage.peak_bytes)} ({stage.fills:.0%} full):"
                f" {parts_in_words(stage.memory)}"
            )
        return lines + list(self.runners_up)


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer for a layout that a user named."""

    asked: str
    verdict: str
    """``breaks_rules``, ``does_not_fit``, ``slower``, ``tied``, ``better`` or ``chosen``."""
    reasons: tuple[str, ...]
    candidate: Candidate | None
    """The best layout that does what was asked; None where none can be run."""
    nearest: Candidate | None
    """The best layout that does what was asked, or as much of it as can be done."""
    nearest_in_words: str | None


def explain(plan: Plan) -> Explanation:
    """Where a plan's time and memory go, from the plan alone."""
    prediction = plan.prediction
    stages = tuple(
        StageShare(
            rank=rank,
            layers=_layers_in_words(plan.layout, rank),
            holds=tuple(b for s in plan.layout.stages if s.rank == rank for b in s.holds),
            memory=memory,
            peak_bytes=prediction.peak_memory_bytes[rank],
            fills=prediction.peak_memory_bytes[rank] / prediction.memory_capacity_bytes,
        )
        for rank, memory in enumerate(prediction.memory)
    )
    chosen = Candidate(layout=plan.layout, prediction=prediction)
    runners_up = tuple(
        f"{layout_in_words(other.layout)}: {difference_in_words(other, chosen)}"
        for other in plan.alternatives
    )
    limit = f"{_sentence(what_limits(prediction))}; {_fullest_in_words(prediction)}"
    return Explanation(limit, tuple(time_shares(prediction.breakdown)), stages, runners_up)


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
    engine = engine_for(problem)
    words = ", ".join(f"{name} = {_text(value)}" for name, value in asked.items())
    constraints = Constraints(fixed=asked, top=1, time_limit_s=TIME_LIMIT_S)
    try:
        ranking = engine.search(constraints).ranking
        breaks_rules = engine.breaks_rules(constraints)
        why = () if ranking else engine.reasons(constraints)
    except InputError as error:
        layout = layout_of(problem, asked)
        broken = layout.violations(plan.model, problem.cluster, plan.training)
        ranking, breaks_rules = (), True
        why = tuple(map(str, broken)) or (str(error),)
    if not ranking:
        nearest = _nearest(engine, asked)
        near_words = None if nearest is None else layout_in_words(nearest.layout)
        verdict = "breaks_rules" if breaks_rules else "does_not_fit"
        return WhyNot(words, verdict, why, None, nearest, near_words)
    best = ranking[0]
    chosen = Candidate(layout=plan.layout, prediction=plan.prediction)
    verdict, why = _judge(best, chosen, problem.profile.tie_ratio)
    return WhyNot(words, verdict, why, best, best, layout_in_words(best.layout))


def what_limits(prediction: Prediction) -> str:
    """The two largest shares of the step, or memory where it does not fit: ``compute 71 %``."""
    if prediction.memory_verdict == "does_not_fit":
        return "memory"
    shares = [(what, share) for what, _, share in time_shares(prediction.breakdown)]
    return ", ".join(f"{what} {share:.0%}" for what, share in shares[:2] if share >= 0.005)


def time_shares(breakdown: Breakdown) -> list[tuple[str, float, float]]:
    """(what, seconds, fraction of the step) for all that takes time, largest first."""
    total_s = breakdown.total_s
    seconds = {
        what: sum(getattr(breakdown, name) for name in names) for what, names in LIMITS.items()
    }
    return sorted(
        ((what, taken, taken / total_s) for what, taken in seconds.items() if taken > 0),
        key=lambda share: -share[1],
    )


def difference_in_words(other: Candidate, chosen: Candidate) -> str:
    """``4.1 % slower: bubble +1.2 s, compute -0.4 s``: the three terms that differ most."""
    other_s, chosen_s = other.prediction.step_time_s, chosen.prediction.step_time_s
    ratio = other_s / chosen_s - 1
    head = "equally fast" if abs(ratio) < 5e-5 else (
        f"{abs(ratio):.2%} {'slower' if ratio > 0 else 'faster'}")  # fmt: skip
    terms = []
    for what, names in LIMITS.items():
        more_s = sum(
            getattr(other.prediction.breakdown, name) - getattr(chosen.prediction.breakdown, name)
            for name in names
        )
        terms.append((what, more_s))
    terms.sort(key=lambda term: -abs(term[1]))
    shown = [
        f"{what} {'+' if more_s > 0 else '-'}{format_seconds(abs(more_s))}"
        for what, more_s in terms[:3]
        if abs(more_s) >= 1e-3 * chosen_s
    ]
    return f"{head}: {', '.join(shown)}" if shown else head


def _judge(
    candidate: Candidate, chosen: Candidate, tie_ratio: float
) -> tuple[str, tuple[str, ...]]:
    """The verdict over a layout that can be run, and the reasons for it."""
    if candidate.layout == chosen.layout:
        return "chosen", ("this is the layout of the plan",)
    step_s, chosen_s = candidate.prediction.step_time_s, chosen.prediction.step_time_s
    words = (
        f"the best of these, {layout_in_words(candidate.layout)}, takes {format_seconds(step_s)} a"
        f" step, the plan {format_seconds(chosen_s)}: {difference_in_words(candidate, chosen)}"
    )
    if step_s < chosen_s * (1 - 1e-9):
        why = (
            "the plan was made from other prices or under constraints, or its search was stopped"
            " early: plan again"
        )
        return "better", (words, why)
    if step_s <= chosen_s * tie_ratio:
        return "tied", (words, f"predictions within {tie_ratio - 1:.0%} are a tie: try both")
    return "slower", (words,)


def _nearest(engine: Engine, asked: Mapping[str, ChoiceValue]) -> Candidate | None:
    """The best layout that does as much of what was asked as can be done.

    A count that no layout has becomes the nearest that one has; then what was asked last is given
    up first.
    """
    wanted = dict(asked)
    for name, value in asked.items():
        counts = engine.counts(name) if name in COUNTS and isinstance(value, int) else ()
        if counts:
            wanted[name] = min(counts, key=lambda count: (_distance(count, value), count))
    names = list(wanted)
    for count in range(len(names), -1, -1):
        fixed = {name: wanted[name] for name in names[:count]}
        constraints = Constraints(fixed=fixed, top=1, time_limit_s=TIME_LIMIT_S)
        try:
            ranking = engine.search(constraints).ranking
        except InputError:
            # These values exist nowhere in the space together: ask for less.
            continue
        if ranking:
            return ranking[0]
    return None


def _distance(one: int, other: ChoiceValue) -> float:
    assert isinstance(other, int), other
    return max(one, other) / min(one, other)


def _layers_in_words(layout: Layout, rank: int) -> str:
    ranges = [stage.layers for stage in layout.stages if stage.rank == rank and stage.num_layers]
    return " ".join(f"{first}-{stop - 1}" for first, stop in ranges) or "none"


def _sentence(limits: str) -> str:
    return f"the step goes to {limits}"


def _fullest_in_words(prediction: Prediction) -> str:
    peak = max(prediction.peak_memory_bytes)
    rank = prediction.peak_memory_bytes.index(peak)
    fills = peak / prediction.memory_capacity_bytes
    return f"pipeline rank {rank} is fullest, with {format_bytes(peak)} ({fills:.0%} of usable)"


def _text(value: ChoiceValue) -> str:
    if isinstance(value, tuple):
        starts = (0, *value[:-1])
        return "/".join(f"{start}-{stop}" for start, stop in zip(starts, value, strict=True))
    return str(value).lower()
