"""Where a plan's time and memory go, what limits it, and why not another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.choices import (
    layout_in_words,
    layout_of,
    named_choices,
    normalise_choices,
    parse_choices,
)
from shardwright.planner.pricing import StepPricer
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.planner.search import Priced, search
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
    """The layout as it was priced; None where it breaks rules."""
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
    """Why the plan is not the layout with these changes, and what would come nearest to them.

    What ``changes`` leaves open is first taken as in the plan where that is possible. Prices come
    from ``profile``, which should be the one that the plan was made from.

    Raises:
        InputError: unknown names, impossible values, or nothing named at all.
    """
    asked = parse_choices(changes) if isinstance(changes, str) else normalise_choices(changes)
    if not asked:
        raise InputError("no layout is named", fix="name what to change, such as tp=4,pp=2")
    problem = Problem(plan.model, plan.training, profile, plan.software)
    pricer = StepPricer(problem)
    layout = layout_of(problem, _completed(problem, plan.layout, asked))
    words = ", ".join(f"{name} = {_text(value)}" for name, value in asked.items())
    broken = layout.violations(plan.model, problem.cluster, plan.training)
    nearest = _nearest(problem, asked, pricer)
    near_words = None if nearest is None else layout_in_words(nearest.layout)
    if broken:
        reasons = tuple(str(violation) for violation in broken)
        return WhyNot(words, "breaks_rules", reasons, None, nearest, near_words)
    candidate = Candidate(layout=layout, prediction=pricer.predict(layout))
    chosen = Candidate(layout=plan.layout, prediction=plan.prediction)
    verdict, reasons = _judge(candidate, chosen)
    return WhyNot(words, verdict, reasons, candidate, nearest, near_words)


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


def parts_in_words(memory: MemoryParts) -> str:
    """``weights 1.2 GiB, gradients 2.4 GiB``: parts that are there, largest first."""
    parts = {name: getattr(memory, name) for name in MemoryParts.model_fields}
    largest = sorted((item for item in parts.items() if item[1]), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in largest)


def overflow_in_words(prediction: Prediction) -> str:
    """By how many bytes the fullest pipeline rank exceeds the capacity, and what fills it."""
    peak = max(prediction.peak_memory_bytes)
    rank = prediction.peak_memory_bytes.index(peak)
    capacity = prediction.memory_capacity_bytes
    return (
        f"pipeline rank {rank} needs {peak:,} bytes ({format_bytes(peak)}), {peak - capacity:,}"
        f" more than the {capacity:,} bytes ({format_bytes(capacity)}) that are usable:"
        f" {parts_in_words(prediction.memory[rank])}"
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


def _judge(candidate: Candidate, chosen: Candidate) -> tuple[str, tuple[str, ...]]:
    """The verdict over a layout that obeys the rules, and the reasons for it."""
    if candidate.layout == chosen.layout:
        return "chosen", ("this is the layout of the plan",)
    if candidate.prediction.memory_verdict == "does_not_fit":
        return "does_not_fit", (overflow_in_words(candidate.prediction),)
    step_s, chosen_s = candidate.prediction.step_time_s, chosen.prediction.step_time_s
    words = (
        f"its step takes {format_seconds(step_s)}, the plan's {format_seconds(chosen_s)}:"
        f" {difference_in_words(candidate, chosen)}"
    )
    if step_s < chosen_s * (1 - 1e-9):
        why = (
            "the plan was made from other prices or under constraints, or its search was stopped"
            " early: plan again"
        )
        return "better", (words, why)
    if step_s <= chosen.prediction.step_time_band_s[1]:
        return "tied", (words, "the difference is within the prediction's band: try both")
    return "slower", (words,)


def _completed(
    problem: Problem, base: Layout, asked: Mapping[str, ChoiceValue]
) -> dict[str, ChoiceValue]:
    """What was asked, and for the rest what the plan has, as far as both go together.

    A new grid takes new boundaries, and the data parallelism that fills the world.
    """
    kept = named_choices(base)
    regrids = any(name in asked for name in ("tp", "pp", "cp", "dp", "stages"))
    if regrids:
        del kept["dp"], kept["stages"]
        if "stages" in asked and "pp" not in asked:
            del kept["pp"]
    kept.pop("num_microbatches")
    completed = {**kept, **asked}
    tp, pp = (int(str(completed.get(name, 1))) for name in ("tp", "pp"))
    dp = int(str(completed.get("dp", max(1, problem.world // (tp * pp)))))
    if tp == 1 and "sequence_parallel" not in asked:
        completed["sequence_parallel"] = False
    if dp == 1 and "zero" not in asked:
        completed["zero"] = 0
    per_rank = max(1, problem.training.global_batch // dp)
    if "micro_batch" not in asked:
        wanted = asked.get("num_microbatches")
        if isinstance(wanted, int):
            completed["micro_batch"] = max(1, per_rank // wanted)
        elif per_rank % int(str(completed["micro_batch"])):
            completed["micro_batch"] = 1
    return completed


def _nearest(
    problem: Problem, asked: Mapping[str, ChoiceValue], pricer: StepPricer
) -> Candidate | None:
    """The best layout that does what was asked; else without the last things asked, and so on."""
    names = list(asked)
    for count in range(len(names), 0, -1):
        constraints = Constraints(fixed={name: asked[name] for name in names[:count]}, top=1)
        try:
            ranking: tuple[Priced, ...] = search(problem, constraints, pricer).ranking
        except InputError:
            # These values exist nowhere in the space together: ask for less.
            continue
        if ranking:
            return ranking[0].candidate
    return None


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
