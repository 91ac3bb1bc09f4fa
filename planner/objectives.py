"""Plans for an objective: each number of devices is searched to its optimum or refuted by a bound.

A search is stopped as soon as its own lower bound says that no layout on so many devices can be
what is looked for: this number is then refuted as surely as if its search had been run to the end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resized
from shardwright.planner.changes import Change, more_nodes
from shardwright.planner.engine import Engine, Found, engine_for
from shardwright.planner.goals import (
    COST,
    GPUS,
    HEADROOM,
    HEADROOM_WORDS,
    SECONDS_PER_DAY,
    Goal,
    in_days,
)
from shardwright.planner.layouts import layout_in_words
from shardwright.planner.problem import PEAK_MEMORY, Bound, Constraints, Problem
from shardwright.planner.search import Progress
from shardwright.planner.suggest import Settle, unsettled
from shardwright.specs import Candidate, Certificate, CountTried, InputError

Watch = Callable[[Progress], None]
_ALL_NODES = 8
"""Up to so many nodes every number is tried; beyond, four of each octave."""
_MOST_TRIED = 64
"""Up to so many sizes of the cluster every one is tried for the fewest devices. Of more, round ones
are, and then all between the last that does not do and the first that does."""
_LEAST_S_OF_A_TRY = 3.0
"""So long each number of devices may be searched, however many there are."""
_MOST_S_OF_A_SUGGESTION = 5.0
"""So long one number of nodes is searched before it is not suggested."""
_HEADROOM_STEP = 1 / 512
"""Of the device's memory: how finely the largest headroom is found."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found for a goal, and on how much of the cluster."""

    problem: Problem
    """With the devices that were chosen; where nothing meets the goal, with all."""
    found: Found | None
    """None where the goal is not met."""
    engine: Engine
    counts: tuple[CountTried, ...] = ()
    certificate: Certificate | None = None
    """Of the search over all devices, where the goal is not met."""
    reasons: tuple[str, ...] = ()
    """Why the goal is not met, where a layout is there all the same."""


class _RefutedError(Exception):
    """A search's bound passed what was looked for."""


def _nobody_watches(_: Progress) -> None:
    """Where progress goes that nobody wants."""


@dataclass
class Pursuit:
    """The search for one goal."""

    problem: Problem
    constraints: Constraints
    goal: Goal
    settle: Settle = unsettled
    watch: Watch = _nobody_watches
    try_limit_s: float | None = field(default=None, init=False)
    """Of the search on each number of devices that is tried."""

    def run(self) -> Outcome:
        """The answer.

        Raises:
            InputError: constraints that leave nothing, or a goal that lacks a number.
        """
        self.goal.check(self.problem)
        if self.goal.objective == HEADROOM:
            return self._headroom()
        if self.goal.varies_devices:
            return self._over_counts()
        engine = engine_for(self.problem)
        found = engine.search(self.constraints, self.watch)
        return self._outcome(self.problem, engine, found)

    def _outcome(
        self,
        problem: Problem,
        engine: Engine,
        found: Found,
        counts: Sequence[CountTried] = (),
    ) -> Outcome:
        certificate = _with_counts(found.certificate, counts)
        if not found.ranking:
            return Outcome(problem, None, engine, tuple(counts), certificate)
        step_s = found.ranking[0].prediction.step_time_s
        if self.goal.misses(problem, step_s) is None:
            kept = replace(found, certificate=certificate)
            return Outcome(problem, kept, engine, tuple(counts), certificate)
        why = self.goal.misses_in_words(problem, step_s)
        return Outcome(problem, None, engine, tuple(counts), certificate, why)

    # Over numbers of devices

    def _over_counts(self) -> Outcome:
        everything = sizes(self.problem.profile)
        fewest = self.goal.objective == GPUS
        tried: dict[int, CountTried] = {}
        best: tuple[float, Problem] | None = None
        wanted = round_sizes(everything, _MOST_TRIED if fewest else _ALL_NODES)
        self.try_limit_s = self._try_limit_s(len(wanted))
        for profile in wanted:
            best = self._improve(profile, tried, best)
            if fewest and best is not None:
                break
        if fewest and best is not None:
            last = max((n for n in tried if n < best[1].world), default=0)
            for profile in everything:
                if last < profile.devices.num_devices < best[1].world:
                    better = self._improve(profile, tried, best)
                    if better is not best:
                        best = better
                        break
        problem = self.problem if best is None else best[1]
        engine = engine_for(problem)
        found = engine.search(self.constraints, self.watch)
        counts = [tried[devices] for devices in sorted(tried)]
        return self._outcome(problem, engine, found, counts)

    def _try_limit_s(self, num_tries: int) -> float | None:
        """An equal share of the time limit, which the number that is chosen gets in full."""
        limit_s = self.constraints.time_limit_s
        if limit_s is None:
            return None
        return min(limit_s, max(limit_s / num_tries, _LEAST_S_OF_A_TRY))

    def _improve(
        self,
        profile: HardwareProfile,
        tried: dict[int, CountTried],
        best: tuple[float, Problem] | None,
    ) -> tuple[float, Problem] | None:
        """The better of the best so far and that on these devices."""
        problem = self.settle(replace(self.problem, profile=profile))
        one, value = self._try(problem, math.inf if best is None else best[0])
        tried[problem.world] = one
        if one.outcome != "best":
            return best
        if best is not None:
            former = tried[best[1].world]
            tried[best[1].world] = former.model_copy(update={"outcome": "worse"})
        return value, problem

    def _try(self, problem: Problem, to_beat: float) -> tuple[CountTried, float]:
        """What comes of one number of devices, and the value of its best layout: dollars, or
        devices. ``to_beat``: the value of the best so far."""
        limits = replace(self.constraints, top=1, time_limit_s=self.try_limit_s)
        lowest_s = 0.0

        def watch(at: Progress) -> None:
            nonlocal lowest_s
            self.watch(at)
            bound_s = min(at.bound_s, at.best_step_s)
            if bound_s > lowest_s and math.isfinite(bound_s):
                lowest_s = bound_s
                if self._is_hopeless(problem, bound_s, to_beat):
                    raise _RefutedError

        try:
            engine = engine_for(problem)
            found = engine.search(limits, watch)
        except _RefutedError:
            outcome = self.goal.misses(problem, lowest_s) or "worse"
            return _tried(problem, outcome, lowest_s), math.inf
        except InputError:
            return _tried(problem, "impossible", None), math.inf
        if not found.ranking:
            return _tried(problem, _why_empty(engine, limits, found), None), math.inf
        step_s = found.ranking[0].prediction.step_time_s
        missed, value = self.goal.misses(problem, step_s), self._value(problem, step_s)
        if missed is None and value < to_beat:
            return _tried(problem, "best", step_s), value
        if not found.certificate.optimal:
            return _tried(problem, "unproven", step_s), value
        return _tried(problem, missed or "worse", step_s), value

    def _is_hopeless(self, problem: Problem, step_s: float, to_beat: float) -> bool:
        """Whether not even a step this fast meets the limits and beats the best so far."""
        if self.goal.misses(problem, step_s) is not None:
            return True
        return self.goal.objective == COST and self._value(problem, step_s) >= to_beat

    def _value(self, problem: Problem, step_s: float) -> float:
        if self.goal.objective == GPUS:
            return problem.world
        cost = self.goal.run(problem, step_s).cost_usd
        assert cost is not None
        return cost

    # Free memory

    def _headroom(self) -> Outcome:
        """By halving the memory that is allowed, as long as a step within the slack is left."""
        engine = engine_for(self.problem)
        found = engine.search(self.constraints, self.watch)
        if not found.ranking:
            return self._outcome(self.problem, engine, found)
        best = found.ranking[0]
        most_s = best.prediction.step_time_s * (1 + self.goal.slack)
        known = [one for one in (*found.ranking, *found.ties)
                 if one.prediction.step_time_s <= most_s]  # fmt: skip
        leanest = min(known, key=_leanness)
        low, high = 0.0, _peak_bytes(leanest)
        step_bytes = best.prediction.memory_capacity_bytes * _HEADROOM_STEP
        proven = found.certificate.optimal
        while high - low > step_bytes:
            middle = (low + high) / 2
            better, certain = self._within(engine, middle, most_s)
            proven &= certain
            if better is None:
                low = middle
            else:
                leanest, high = better, _peak_bytes(better)
        answer = self._headroom_found(found, leanest, best, proven)
        return self._outcome(self.problem, engine, answer)

    def _within(
        self, engine: Engine, most_bytes: float, most_s: float
    ) -> tuple[Candidate | None, bool]:
        """The fastest layout of so few bytes if its step is within the slack, and whether it is
        certain that there is none where none was found."""

        def watch(at: Progress) -> None:
            self.watch(at)
            if min(at.bound_s, at.best_step_s) > most_s:
                raise _RefutedError

        bounds = (*self.constraints.bounds, Bound(PEAK_MEMORY, "<=", most_bytes))
        try:
            found = engine.search(replace(self.constraints, bounds=bounds, top=1), watch)
        except _RefutedError:
            return None, True
        fast = [one for one in found.ranking if one.prediction.step_time_s <= most_s]
        return (fast[0], True) if fast else (None, found.certificate.optimal)

    def _headroom_found(
        self, found: Found, leanest: Candidate, best: Candidate, proven: bool
    ) -> Found:
        """The leanest first, then the fastest; ties are those of the leanest's own step."""
        capacity = leanest.prediction.memory_capacity_bytes
        others = [one for one in found.ranking if one.layout != leanest.layout]
        space = (
            f"{found.certificate.space}; {HEADROOM_WORDS}{self.goal.slack:.3%} of the best step,"
            f" of {best.prediction.step_time_s:.6g} s, to {capacity * _HEADROOM_STEP:.3g} bytes:"
            " every smaller peak was searched"
        )
        certificate = found.certificate.model_copy(update={"space": space, "optimal": proven})
        ranking = (leanest, *others[: self.constraints.top - 1])
        tie_ratio = self.problem.profile.tie_ratio
        ties = tuple(
            one
            for one in found.ties
            if one.layout != leanest.layout
            and one.prediction.step_time_s <= leanest.prediction.step_time_s * tie_ratio
        )
        return Found(ranking, ties, certificate)


def sizes(profile: HardwareProfile) -> list[HardwareProfile]:
    """The cluster on fewer devices, ascending: parts of one node, then whole nodes.

    A profile that was measured, or has several kinds of nodes, has one size.
    """
    cluster = profile.devices
    if profile.curves or profile.num_ranks or len(cluster.groups) > 1:
        return [profile]
    group = cluster.groups[0]
    parts = [resized(profile, gpus=count) for count in range(1, group.devices_per_node)]
    return parts + [resized(profile, nodes=count) for count in range(1, group.num_nodes + 1)]


def is_round(count: int) -> bool:
    """Whether a number is at most 8, or has three significant bits: four of each octave."""
    return count <= _ALL_NODES or count % 2 ** (count.bit_length() - 3) == 0


def round_sizes(profiles: Sequence[HardwareProfile], most: int) -> list[HardwareProfile]:
    """All where they are ``most`` or fewer, else those of round numbers of nodes, and the last."""
    if len(profiles) <= most:
        return list(profiles)
    return [
        one for one in profiles if one is profiles[-1] or is_round(one.devices.groups[0].num_nodes)
    ]


def _with_counts(certificate: Certificate, counts: Sequence[CountTried]) -> Certificate:
    """The books of the last search, with the numbers of devices that were tried."""
    if not counts:
        return certificate
    proven = all(one.outcome != "unproven" for one in counts)
    return certificate.model_copy(
        update={"counts": tuple(counts), "optimal": certificate.optimal and proven}
    )


def _why_empty(engine: Engine, limits: Constraints, found: Found) -> str:
    if not found.certificate.optimal:
        return "unproven"
    return "impossible" if engine.breaks_rules(limits) else "too_small"


def _tried(problem: Problem, outcome: str, step_s: float | None) -> CountTried:
    return CountTried.model_validate(
        {"devices": problem.world, "outcome": outcome, "step_time_s": step_s}
    )


def _peak_bytes(candidate: Candidate) -> int:
    return max(candidate.prediction.peak_memory_bytes)


def _leanness(candidate: Candidate) -> tuple[int, float]:
    return _peak_bytes(candidate), candidate.prediction.step_time_s


def goal_suggestions(
    problem: Problem, constraints: Constraints, goal: Goal, settle: Settle
) -> tuple[str, ...]:
    """What would meet a deadline or a budget that the whole cluster misses, each planned: the
    fewest more nodes, the least that the deadline or the budget must be."""
    engine = engine_for(problem)
    best = engine.search(replace(constraints, top=1)).ranking[0]
    run = goal.run(problem, best.prediction.step_time_s)
    found, without = [], ""
    free = replace(goal, objective=COST, budget_usd=None)
    if goal.deadline_s is not None and run.time_s > goal.deadline_s:
        found += _more_nodes(problem, constraints, goal, settle)
        free, without = replace(free, deadline_s=None), " (without --deadline)"
        days = math.ceil(run.time_s / SECONDS_PER_DAY * 10 + 1) / 10
        found.append(f"--deadline {days:g}d: then {layout_in_words(best.layout)} meets it")
    if goal.budget_usd is not None:
        cheapest = Pursuit(problem, replace(constraints, top=1), free, settle).run()
        if cheapest.found is not None:
            step_s = cheapest.found.ranking[0].prediction.step_time_s
            cost = goal.run(cheapest.problem, step_s).cost_usd
            assert cost is not None
            found.append(
                f"--objective cost --budget {math.ceil(cost)}{without}: then"
                f" {cheapest.problem.world:,} devices do it in"
                f" {in_days(goal.run(cheapest.problem, step_s).time_s)}"
            )
    return tuple(found)


def _more_nodes(
    problem: Problem, constraints: Constraints, goal: Goal, settle: Settle
) -> list[str]:
    """The fewest more nodes that meet every limit: by doubling, then by halving the step."""

    def meets(change: Change) -> bool:
        return _meets(settle(change.problem), constraints, goal)

    found = (change for change in more_nodes(problem, constraints, meets) if meets(change))
    return [
        f"{change.words}: then {change.problem.world:,} devices meet the deadline"
        for change in itertools.islice(found, 1)
    ]


class _MetError(Exception):
    """A layout that meets every limit was found."""


def _meets(problem: Problem, constraints: Constraints, goal: Goal) -> bool:
    """Whether some layout meets every limit, by a search that stops as soon as that is known."""

    def watch(at: Progress) -> None:
        if math.isfinite(at.best_step_s) and goal.misses(problem, at.best_step_s) is None:
            raise _MetError
        if at.bound_s > 0 and goal.misses(problem, at.bound_s) is not None:
            raise _RefutedError

    limit_s = min(constraints.time_limit_s or math.inf, _MOST_S_OF_A_SUGGESTION)
    limits = replace(constraints, top=1, time_limit_s=limit_s)
    try:
        ranking = engine_for(problem).search(limits, watch).ranking
    except _MetError:
        return True
    except (_RefutedError, InputError):
        return False
    return bool(ranking) and goal.misses(problem, ranking[0].prediction.step_time_s) is None
