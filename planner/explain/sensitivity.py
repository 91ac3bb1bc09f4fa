"""What would make a plan faster: more bandwidth, arithmetic, memory or batch.

A faster part speeds the plan's own layout up, which is priced again as it is. More memory or a
larger batch are of use to other layouts only, so the best one is searched for again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.scaled import QUANTITIES, Quantity, is_used, scaled
from shardwright.planner.asked import constraints_of
from shardwright.planner.engine import engine_for
from shardwright.planner.layouts import layout_in_words
from shardwright.planner.problem import Problem
from shardwright.specs import Candidate, InputError, Layout, Plan
from shardwright.specs.ranges import MOST_SEQUENCES

FACTORS = (1.1, 2.0)
SEARCH_LIMIT_S = 5.0
"""Of each search for another layout."""
GLOBAL_BATCH = "global_batch"

WORDS = {
    "flops_per_s": "FLOP/s",
    "memory_bandwidth": "memory bandwidth",
    "memory": "memory capacity",
    "intra_node_bandwidth": "intra-node bandwidth",
    "inter_node_bandwidth": "inter-node bandwidth",
    GLOBAL_BATCH: "global batch",
}


@dataclass(frozen=True, slots=True)
class Gain:
    """What so many times as much of something gains."""

    factor: float
    tokens_per_s: float
    gain: float
    """Tokens per second over those of the plan, less 1."""
    layout: Layout
    """The plan's own where that is priced again, else the best one found."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What more of one thing gains; of everything else there is as much as before."""

    what: str
    """A key of `WORDS`."""
    is_planned_again: bool
    """Whether another layout may be chosen."""
    gains: tuple[Gain, ...]
    """By ascending factor."""
    own_layout: Layout

    @property
    def largest_gain(self) -> float:
        return self.gains[-1].gain

    def in_words(self) -> str:
        """``memory capacity: +10 %: 0.0% faster; x 2: 4.1% faster, planned again: tp=2,...``."""
        parts = []
        for one in self.gains:
            more = f"x {one.factor:g}" if one.factor >= 2 else f"+{one.factor - 1:.0%}"
            parts.append(f"{more}: {one.gain:+.1%} tokens/s")
        again = f" ({self.how_in_words()})" if self.is_planned_again else ""
        return f"{self.words}: {', '.join(parts)}{again}"

    @property
    def words(self) -> str:
        return WORDS[self.what]

    def how_in_words(self) -> str:
        """Of twice as much: the plan's layout priced again, or which other would be planned."""
        if not self.is_planned_again:
            return "this layout, priced again"
        last = self.gains[-1].layout
        same = _alike(last, self.own_layout)
        return "planned again: " + ("the same layout" if same else layout_in_words(last))


def sensitivities(plan: Plan, profile: HardwareProfile) -> tuple[Sensitivity, ...]:
    """What more of each thing gains, the largest gain of twice as much first.

    Raises:
        InputError: the profile lacks what pricing the plan needs.
    """
    problem = Problem(plan.model, plan.training, profile, plan.software)
    found = []
    for quantity in QUANTITIES:
        if is_used(plan.cluster, quantity):
            found.append(_of_quantity(plan, problem, quantity))
    batch = _of_batch(plan, problem)
    found += [] if batch is None else [batch]
    return tuple(sorted(found, key=lambda one: -one.largest_gain))


def _of_quantity(plan: Plan, problem: Problem, quantity: Quantity) -> Sensitivity:
    again = quantity == "memory"

    def best(factor: float) -> Candidate:
        changed = replace(problem, profile=scaled(problem.profile, quantity, factor))
        return _best(plan, changed, plan.layout) if again else _priced(changed, plan.layout)

    return Sensitivity(quantity, again, _gains(plan, FACTORS, best), plan.layout)


def _of_batch(plan: Plan, problem: Problem) -> Sensitivity | None:
    """Twice the sequences a step; a tenth more would divide by other numbers."""
    batch, layout = 2 * plan.training.global_batch, plan.layout
    if batch > MOST_SEQUENCES or not isinstance(layout.num_microbatches, int):
        return None

    def best(_: float) -> Candidate:
        training = problem.training.model_copy(update={"global_batch": batch})
        own = layout.model_copy(update={"num_microbatches": 2 * layout.micro_batches})
        return _best(plan, replace(problem, training=training), own)

    return Sensitivity(GLOBAL_BATCH, True, _gains(plan, FACTORS[-1:], best), plan.layout)


def _gains(
    plan: Plan, factors: tuple[float, ...], best: Callable[[float], Candidate]
) -> tuple[Gain, ...]:
    found = []
    for factor in factors:
        candidate = best(factor)
        tokens_per_s = candidate.prediction.tokens_per_s
        gain = tokens_per_s / plan.prediction.tokens_per_s - 1
        found.append(Gain(factor, tokens_per_s, gain, candidate.layout))
    return tuple(found)


def _priced(problem: Problem, layout: Layout) -> Candidate:
    return Candidate(layout=layout, prediction=engine_for(problem).predict(layout))


def _best(plan: Plan, problem: Problem, own: Layout) -> Candidate:
    """The best layout under what the plan was asked to keep; its own where the search finds none
    that is better in time."""
    engine = engine_for(problem)
    before = Candidate(layout=own, prediction=engine.predict(own))
    try:
        limits = constraints_of(plan.asked, time_limit_s=SEARCH_LIMIT_S)
        ranking = engine.search(limits).ranking
    except InputError:  # a larger batch has other divisors than what was fixed
        return before
    candidates = [before, *ranking[:1]]
    return min(candidates, key=lambda one: one.prediction.step_time_s)


def _alike(one: Layout, other: Layout) -> bool:
    """Whether layouts differ in nothing but the number of micro-batches."""
    return one.model_copy(update={"num_microbatches": other.num_microbatches}) == other
