"""Where a plan's time and memory go, per pipeline rank, and what its ties mean."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.cost_models.pricing import is_own, stack_model, step_model
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.explain.sensitivity import Sensitivity, sensitivities
from shardwright.planner.explain.shares import (
    largest_shares,
    runner_up_in_words,
    time_shares,
    what_limits,
)
from shardwright.planner.layouts import named_choices
from shardwright.planner.problem import Problem
from shardwright.planner.search import MAX_TIES
from shardwright.planner.suggest import parts_in_words
from shardwright.specs import Breakdown, Candidate, Layout, MemoryParts, Plan, Prediction
from shardwright.specs.units import format_bytes, format_seconds

_TIE_CHOICES = (
    "tp", "cp", "pp", "vpp", "dp", "ep", "etp", "cp_kind", "micro_batch", "zero",
    "zero_shard_degree", "sequence_parallel", "recompute", "schedule", "offload", "loss_chunks",
    "reshard_after_forward", "rank_order", "stages",
)  # fmt: skip


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
    free_bytes: int
    """Negative where it does not fit."""
    breakdown: Breakdown | None
    """How it spends the step; None without the profile that the plan was priced from."""

    @property
    def limit(self) -> str:
        """What its time goes to; nothing where that is not known."""
        return "" if self.breakdown is None else largest_shares(self.breakdown)

    @property
    def busy_fraction(self) -> float | None:
        """Share of the step in which it does not wait for other pipeline ranks."""
        if self.breakdown is None:
            return None
        return 1.0 - self.breakdown.bubble / self.breakdown.total_s


@dataclass(frozen=True, slots=True)
class TieSet:
    """Layouts that the model cannot tell apart from the chosen one."""

    count: int
    tie_ratio: float | None
    """Predicted steps up to this multiple of the best are ties; None without the profile."""
    slowest_ratio: float
    """The last one's step over the chosen one's."""
    varied: dict[str, tuple[str, ...]]
    """Choices in which they differ from one another or the chosen, with their values."""

    def in_words(self) -> str:
        """What the set means, and what it leaves open."""
        varied = "; ".join(f"{name} {' or '.join(values)}" for name, values in self.varied.items())
        some = f"{self.count} more {'layout' if self.count == 1 else 'layouts'}"
        most = " (no more are kept)" if self.count == MAX_TIES else ""
        odds = (
            ""
            if self.tie_ratio is None
            else f": one that is predicted {self.tie_ratio - 1:.1%} slower is the faster in 1 of 10"
            " cases"
        )
        return (
            f"{some} within {self.slowest_ratio - 1:.2%} of this step{most}, closer than the model"
            f" tells layouts apart{odds}. Only a trial can. They differ in: {varied}"
        )


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
    ties: TieSet | None
    """None where nothing ties."""
    sensitivities: tuple[Sensitivity, ...]
    """What would help most comes first; empty without the profile."""
    devices: tuple[str, ...] = ()
    """What each pipeline rank runs on, where they differ."""
    baselines: tuple[str, ...] = ()
    """Simpler uses of a cluster of several node groups, and why the plan beats them or cannot."""

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
                f" {parts_in_words(stage.memory)}" + (f"; {stage.limit}" if stage.limit else "")
            )
        lines += [*self.devices, *self.baselines]
        lines += [one.in_words() for one in self.sensitivities]
        lines += [] if self.ties is None else [self.ties.in_words()]
        return lines + list(self.runners_up)


def explain(plan: Plan, profile: HardwareProfile | None = None) -> Explanation:
    """Where a plan's time and memory go.

    ``profile``: the one that the plan was priced from; without it, what only prices can tell is
    left out: the time of each pipeline rank, and what would help.
    """
    from shardwright.planner.heterogeneous.words import baselines_in_words, devices_in_words

    prediction = plan.prediction
    chosen = Candidate(layout=plan.layout, prediction=prediction)
    limit = f"the step goes to {what_limits(prediction)}; {_fullest_in_words(prediction)}"
    hosts = None if profile is None else _hosts_in_words(plan, profile)
    limit += f"; {hosts}" if hosts is not None else ""
    return Explanation(
        limit=limit,
        time_shares=tuple(time_shares(prediction.breakdown)),
        stages=_stages(plan, profile),
        runners_up=tuple(runner_up_in_words(other, chosen) for other in plan.alternatives),
        ties=_tie_set(plan, profile),
        sensitivities=() if profile is None else sensitivities(plan, profile),
        devices=tuple(devices_in_words(plan)),
        baselines=tuple(baselines_in_words(plan)),
    )


def _stages(plan: Plan, profile: HardwareProfile | None) -> tuple[StageShare, ...]:
    layout, prediction = plan.layout, plan.prediction
    breakdowns: tuple[Breakdown | None, ...] = (None,) * layout.num_pipeline_ranks
    if profile is not None:
        breakdowns = _rank_breakdowns(plan, profile)
    return tuple(
        StageShare(
            rank=rank,
            layers=layers_in_words(layout, rank),
            holds=tuple(b for s in layout.stages if s.rank == rank for b in s.holds),
            memory=memory,
            peak_bytes=peak,
            fills=peak / prediction.capacity_of(rank),
            free_bytes=prediction.capacity_of(rank) - peak,
            breakdown=breakdowns[rank],
        )
        for rank, (memory, peak) in enumerate(
            zip(prediction.memory, prediction.peak_memory_bytes, strict=True)
        )
    )


def _rank_breakdowns(plan: Plan, profile: HardwareProfile) -> tuple[Breakdown, ...]:
    """How each pipeline rank spends the step."""
    if len(profile.devices.groups) == 1 or is_own(profile, plan.software):
        model = step_model(plan.model, plan.training, profile, plan.software)
        return model.rank_breakdowns(plan.layout)
    from shardwright.planner.heterogeneous.engine import HeterogeneousEngine

    problem = Problem(plan.model, plan.training, profile, plan.software)
    return HeterogeneousEngine(problem).rank_breakdowns(plan.layout)


def _hosts_in_words(plan: Plan, profile: HardwareProfile) -> str | None:
    """What offloading takes of a node's host memory, activations with it, and where its transfers
    count; None where nothing is offloaded. Of each node as if it held the fullest ranks alone."""
    layout, groups = plan.layout, profile.devices.groups
    if not layout.offload or len(groups) > 1:
        return None
    model = stack_model(plan.model, plan.training, profile, plan.software)
    held = model.host_bytes(layout)
    if "activations" in layout.offload:
        # With the optimizer on the host, activations are what fills the device at the peak.
        kept = model.memory(layout.model_copy(update={"offload": ("optimizer",)}))
        held = tuple(state + rank.activations for state, rank in zip(held, kept, strict=True))
    needed, there = max(held) * groups[0].devices_per_node, groups[0].host_memory_bytes
    known = "how much there is, is not known" if there is None else f"it has {format_bytes(there)}"
    words = (
        f"offload of {' and '.join(layout.offload)} takes up to {format_bytes(needed)} of a node's"
        f" host memory: {known}"
    )
    if {"activations", "parameters"} & set(layout.offload):
        where = "dp traffic" if layout.zero >= 2 else "other"
        words += f"; its transfers count as {where}"
    return words


def _tie_set(plan: Plan, profile: HardwareProfile | None) -> TieSet | None:
    if not plan.ties:
        return None
    step_s = plan.prediction.step_time_s
    slowest = max(one.prediction.step_time_s for one in plan.ties) / step_s
    chosen, *others = (
        named_choices(layout) for layout in (plan.layout, *(one.layout for one in plan.ties))
    )
    varied: dict[str, tuple[str, ...]] = {}
    for name in _TIE_CHOICES:
        values = dict.fromkeys(_value(each[name]) for each in (chosen, *others))
        if len(values) > 1:
            varied[name] = _condensed(name, tuple(values))
    ratio = None if profile is None else profile.tie_ratio
    return TieSet(len(plan.ties), ratio, slowest, varied)


def _condensed(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Values as they are, or how many where each is a list of stages."""
    if name == "stages":
        return (f"{len(values)} splits",)
    return (f"{len(values)} policies",) if any("/" in value for value in values) else values


def _value(value: object) -> str:
    return str(value).lower()


def layers_in_words(layout: Layout, rank: int) -> str:
    """``0-9 20-29``: the layers of a pipeline rank, first and last of each of its stages."""
    ranges = [stage.layers for stage in layout.stages if stage.rank == rank and stage.num_layers]
    return " ".join(f"{first}-{stop - 1}" for first, stop in ranges) or "none"


def _fullest_in_words(prediction: Prediction) -> str:
    rank = prediction.fullest_rank
    peak = prediction.peak_memory_bytes[rank]
    fills = peak / prediction.capacity_of(rank)
    return f"pipeline rank {rank} is fullest, with {format_bytes(peak)} ({fills:.0%} of usable)"
