"""Plans for clusters of several node groups: over groups, on one alone, or as if all were alike.

`HeterogeneousEngine.search` compares three uses of the cluster, each planned to its own optimum:
over two groups or more (`search_mixed`), on the devices of one group alone, and on all devices as
if each were as slow as the slowest. The last two are what a plan must beat, or is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.mixed import MixedModel
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.groups import (
    as_one_group,
    as_slowest,
    group_names,
    group_profile,
    slowest_device,
)
from shardwright.planner.capped import CappedStackModel
from shardwright.planner.engine import Found, StackEngine, Watch, helps, stack_fitting
from shardwright.planner.heterogeneous.layouts import group_layout
from shardwright.planner.heterogeneous.search import MixedResult, search_mixed
from shardwright.planner.heterogeneous.space import MixedSpace
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import Progress
from shardwright.planner.suggest import Settle, Suggestion, unsettled
from shardwright.specs import (
    Baseline,
    Breakdown,
    Candidate,
    Certificate,
    InputError,
    Layout,
    Prediction,
)

_SHARE = 0.4
"""Of the time limit for the search over groups; the rest is shared by the simpler uses."""
_COMPARED_S = 3.0
"""Of the search that treats all devices as the slowest: a comparison need not be proven best."""
_FITTING_S = 5.0
"""Of a search for any layout that fits."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A simpler use of the cluster: what was found, or why it cannot be had."""

    name: str
    ranking: tuple[Candidate, ...]
    certificate: Certificate | None
    reason: str | None = None
    error: InputError | None = None

    @property
    def baseline(self) -> Baseline:
        return Baseline(
            name=self.name,
            candidate=self.ranking[0] if self.ranking else None,
            reason=None if self.ranking else self.reason,
        )


class HeterogeneousEngine:
    """Layouts of any family on several groups of nodes, under a software stack."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._names = group_names(problem.cluster)
        self._pricer = MixedModel(
            problem.model, problem.training, problem.profile, problem.software
        )
        self._slow: StackModel | None = None

    # Prices

    def predict(self, layout: Layout) -> Prediction:
        """See `Engine`. A layout without ``stage_meshes`` treats all devices as the slowest."""
        if layout.stage_meshes is None:
            return self._as_slowest().predict(layout)
        alone = self._alone(layout)
        if alone is None:
            return self._pricer.predict(layout)
        plain = layout.model_copy(update={"stage_meshes": None})
        return self._pricer.on_group(alone).predict(plain)

    def rank_breakdowns(self, layout: Layout) -> tuple[Breakdown, ...]:
        """The step as each pipeline rank spends it."""
        if layout.stage_meshes is None:
            return self._as_slowest().rank_breakdowns(layout)
        alone = self._alone(layout)
        if alone is None:
            return self._pricer.rank_breakdowns(layout)
        plain = layout.model_copy(update={"stage_meshes": None})
        return self._pricer.on_group(alone).rank_breakdowns(plain)

    def _as_slowest(self) -> StackModel:
        if self._slow is None:
            slow = self._slow_problem
            self._slow = stack_model(slow.model, slow.training, slow.profile, slow.software)
        return self._slow

    @property
    def _slow_problem(self) -> Problem:
        return replace(self._problem, profile=as_one_group(self._problem.profile))

    def _group_problem(self, index: int) -> Problem:
        return replace(self._problem, profile=group_profile(self._problem.profile, index))

    def _alone(self, layout: Layout) -> int | None:
        """The group that has the whole layout, with one grid for all stages."""
        meshes = layout.stage_meshes
        assert meshes is not None
        groups = {self._pricer.group_of(mesh) for mesh in meshes}
        grids = {mesh.model_copy(update={"ranks": ()}) for mesh in meshes}
        if layout.further_replicas or len(groups) > 1 or len(grids) > 1:
            return None
        return groups.pop()

    # The search

    def search(self, constraints: Constraints, progress: Watch | None = None) -> Found:
        """See `Engine`."""
        simple = _limited(constraints, (1 - _SHARE) / (len(self._kinds) + 2))
        alone = [self._search_alone(index, simple) for index in self._kinds]
        limit_s = min(simple.time_limit_s or _COMPARED_S, _COMPARED_S)
        compared = replace(simple, time_limit_s=limit_s)
        slow = self._search_slow(compared)
        uses = [*alone, slow]
        known_s = min(
            (one.prediction.step_time_s for use in uses for one in use.ranking), default=math.inf
        )
        watch = None if progress is None else _with_others(progress, uses)
        mixed = self._search_mixed(_limited(constraints, _SHARE), watch, known_s)
        ordered = _ordered([*mixed.ranking, *(one for use in uses for one in use.ranking)])
        errors = [use.error for use in uses if use.error is not None]
        if not ordered and not mixed.certificate.considered and len(errors) == len(uses):
            raise errors[0]
        return Found(
            ranking=_shown(ordered, mixed.ranking[:1], constraints.top),
            ties=self._ties(ordered),
            certificate=_certificate(mixed, alone, slow, ordered),
            baselines=(*(use.baseline for use in alone), self._slow_baseline(slow, compared)),
        )

    def _search_mixed(
        self, constraints: Constraints, progress: Watch | None, known_s: float
    ) -> MixedResult:
        """Over two groups or more, within the memory that is allowed."""
        most_bytes, pricer = constraints.most_bytes, self._pricer
        if most_bytes is not None:
            pricer = pricer.with_groups(lambda one: CappedStackModel(one, most_bytes))
        found = search_mixed(self._problem, constraints, pricer, progress, known_s)
        ranking = tuple(
            one.model_copy(update={"prediction": self._pricer.predict(one.layout)})
            for one in found.ranking
        )
        return replace(found, ranking=ranking)

    @property
    def _kinds(self) -> list[int]:
        """The groups, of several that are alike the first."""
        groups = self._problem.cluster.groups
        return [index for index, group in enumerate(groups) if groups.index(group) == index]

    def _search_alone(self, index: int, constraints: Constraints) -> _Use:
        """The devices of one group, with every choice that there is for them."""
        name = f"only {self._names[index]}"
        cluster, problem = self._problem.cluster, self._group_problem(index)
        try:
            engine = StackEngine(problem)
            found = engine.search(constraints)
            reasons = () if found.ranking else engine.reasons(constraints)
        except InputError as error:
            return _Use(name, (), None, str(error), error)
        ranking = tuple(
            Candidate(layout=group_layout(cluster, index, one.layout), prediction=one.prediction)
            for one in found.ranking
        )
        return _Use(name, ranking, found.certificate, "; ".join(reasons))

    def _search_slow(self, constraints: Constraints) -> _Use:
        """All devices, each as slow as the slowest, on links as slow as the slowest."""
        name = f"all devices as {slowest_device(self._problem.cluster).name}"
        refused = [
            words
            for group in self._problem.cluster.groups
            for words in MixedSpace(self._problem, constraints).refusals(group)
        ]
        if refused:
            return _Use(name, (), None, "; ".join(dict.fromkeys(refused)))
        try:
            engine = StackEngine(self._slow_problem)
            found = engine.search(constraints)
            reasons = () if found.ranking else engine.reasons(constraints)
        except InputError as error:
            return _Use(name, (), None, str(error), error)
        return _Use(name, found.ranking, found.certificate, "; ".join(reasons))

    def _slow_baseline(self, slow: _Use, constraints: Constraints) -> Baseline:
        """The better of one cluster of slow devices, and of slow devices on the links there are."""
        first, *others = (group.accelerator for group in self._problem.cluster.groups)
        if all(one == first for one in others) or (slow.certificate is None and not slow.ranking):
            return slow.baseline
        problem = replace(self._problem, profile=as_slowest(self._problem.profile))
        pricer = MixedModel(problem.model, problem.training, problem.profile, problem.software)
        known_s = min((one.prediction.step_time_s for one in slow.ranking), default=math.inf)
        found = search_mixed(problem, constraints, pricer, known_s=known_s).ranking
        ordered = _ordered([*found[:1], *slow.ranking[:1]])
        return replace(slow, ranking=tuple(ordered)).baseline

    def _ties(self, ordered: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Other uses of the cluster that the model cannot tell apart from the best."""
        if not ordered:
            return ()
        ratio = self._problem.profile.tie_ratio
        end_s = ordered[0].prediction.step_time_s * ratio
        return tuple(one for one in ordered[1:] if one.prediction.step_time_s <= end_s)

    # Why not

    def breaks_rules(self, constraints: Constraints) -> bool:
        """See `Engine`."""
        space = MixedSpace(self._problem, constraints)
        if any(space.num_layouts(one) for one in space.arrangements):
            return False
        return all(engine.breaks_rules(constraints) for _, engine in self._engines())

    def reasons(self, constraints: Constraints) -> tuple[str, ...]:
        """See `Engine`."""
        found = []
        for index, engine in self._engines():
            reasons = engine.reasons(constraints)
            found += [f"only {self._names[index]}: {reason}" for reason in reasons]
        space = MixedSpace(self._problem, constraints)
        count = sum(space.num_layouts(one) for one in space.arrangements)
        if count:
            found.append(f"over several groups none of {count:,} layouts was found that fits")
        return tuple(found)

    def leanest(self, constraints: Constraints) -> Candidate | None:
        """See `Engine`: on the devices of one group."""
        found = []
        for index, engine in self._engines():
            one = engine.leanest(constraints)
            if one is not None:
                layout = group_layout(self._problem.cluster, index, one.layout)
                found.append(one.model_copy(update={"layout": layout}))
        return min(found, key=_fullness, default=None)

    def suggestions(
        self, constraints: Constraints, settle: Settle = unsettled
    ) -> tuple[Suggestion, ...]:
        """See `Engine`."""
        return helps(self._problem, constraints, first_fitting, settle)

    def counts(self, name: str) -> frozenset[int]:
        """See `Engine`."""
        return frozenset(count for _, engine in self._engines() for count in engine.counts(name))

    def _engines(self) -> Iterator[tuple[int, StackEngine]]:
        """Of each kind of group that has rates for the precision."""
        for index in self._kinds:
            if self._pricer.has_rates(index):
                yield index, StackEngine(self._group_problem(index))


def first_fitting(problem: Problem, constraints: Constraints) -> Candidate | None:
    """Some layout that fits, on one group or over several; None where none was found."""
    cluster = problem.cluster
    if len(cluster.groups) == 1:
        return stack_fitting(problem, constraints)
    for index in range(len(cluster.groups)):
        alone = replace(problem, profile=group_profile(problem.profile, index))
        found = stack_fitting(alone, constraints)
        if found is not None:
            layout = group_layout(cluster, index, found.layout)
            return found.model_copy(update={"layout": layout})
    try:
        pricer = MixedModel(problem.model, problem.training, problem.profile, problem.software)
    except InputError:
        return None
    ranking = search_mixed(
        problem, replace(constraints, top=1, time_limit_s=_FITTING_S), pricer
    ).ranking  # fmt: skip
    return ranking[0] if ranking else None


def _fullness(candidate: Candidate) -> float:
    """How much of its devices the fullest pipeline rank takes."""
    prediction = candidate.prediction
    rank = prediction.fullest_rank
    return prediction.peak_memory_bytes[rank] / prediction.capacity_of(rank)


def _with_others(progress: Watch, uses: Sequence[_Use]) -> Watch:
    """Progress with bounds that hold for the simpler uses of the cluster too."""
    floors_s = [_floor_s(use) for use in uses if use.certificate is not None]
    least_s = min(floors_s, default=math.inf)

    def watch(at: Progress) -> None:
        progress(replace(at, bound_s=min(at.bound_s, least_s)))

    return watch


def _limited(constraints: Constraints, share: float) -> Constraints:
    limit_s = constraints.time_limit_s
    return constraints if limit_s is None else replace(constraints, time_limit_s=limit_s * share)


def _ordered(candidates: Iterable[Candidate]) -> list[Candidate]:
    """By step time; of equally fast ones those that were named first."""
    found = {one.layout: one for one in candidates}
    return sorted(found.values(), key=lambda one: one.prediction.step_time_s)


def _shown(
    ordered: Sequence[Candidate], mixed: Sequence[Candidate], count: int
) -> tuple[Candidate, ...]:
    """The best, and in any case the best over several groups, so that all can be compared."""
    shown = list(ordered[:count])
    return tuple(shown + [one for one in mixed if one not in shown])


def _certificate(
    mixed: MixedResult, alone: Sequence[_Use], slow: _Use, ordered: Sequence[Candidate]
) -> Certificate:
    """The books of all searches that say something of the plan.

    Treating all devices as the slowest is a comparison, not a price of what would happen: its
    search is in the books where it was finished, or is what the plan is.
    """
    counted = [use for use in alone if use.certificate is not None]
    is_slow = bool(ordered) and ordered[0].layout in [one.layout for one in slow.ranking]
    if slow.certificate is not None and (slow.certificate.optimal or is_slow):
        counted.append(slow)
    step_s = ordered[0].prediction.step_time_s if ordered else math.inf
    floors_s = [mixed.floor_s, *(_floor_s(use) for use in counted)]
    gap = 1.0 if math.isinf(step_s) else max(0.0, 1 - min(floors_s) / step_s)
    certificates = [mixed.certificate, *(use.certificate for use in counted)]
    return _joined([one for one in certificates if one is not None], gap)


def _floor_s(use: _Use) -> float:
    """What no layout of a use is faster than."""
    assert use.certificate is not None
    if use.ranking:
        return use.ranking[0].prediction.step_time_s * (1 - use.certificate.gap)
    return math.inf if use.certificate.optimal else 0.0


def _joined(certificates: Sequence[Certificate], gap: float) -> Certificate:
    """The books of several searches together."""
    counts = (
        "considered", "excluded_by_rules", "excluded_by_memory", "excluded_by_bound",
        "excluded_by_dominance", "simulated",
    )  # fmt: skip
    optimal = all(one.optimal for one in certificates)
    return Certificate(
        **{name: sum(getattr(one, name) for one in certificates) for name in counts},
        optimal=optimal,
        gap=0.0 if optimal else gap,
        space="; or ".join(dict.fromkeys(one.space for one in certificates)),
        search_s=sum(one.search_s for one in certificates),
    )
