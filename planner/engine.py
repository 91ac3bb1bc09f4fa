"""Which search answers a problem: our own runtime's layouts, or those of a software stack.

`engine_for` chooses as `cost_models.pricing` chooses the cost model: exact books where curves were
measured and our own layers run, a stack's prices otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shardwright.cost_models.pricing import is_own, stack_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.stacks import GENERIC, stack_facts
from shardwright.planner.bounds import Pricer
from shardwright.planner.capped import CappedPricer, CappedStackModel
from shardwright.planner.host_memory import host_overflow_in_words
from shardwright.planner.layout_text import normalise_choices
from shardwright.planner.layouts import layout_in_words
from shardwright.planner.pricing import StepPricer
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.planner.search import Progress, search
from shardwright.planner.space import Space
from shardwright.planner.stacks.lean import leanest
from shardwright.planner.stacks.search import search_stacks
from shardwright.planner.stacks.space import LOSS_CHUNKS, OFFLOADS, StackSpace
from shardwright.planner.suggest import (
    Fitting,
    Settle,
    Suggestion,
    completion,
    first_fitting,
    least_memory,
    overflow_in_words,
    reasons,
    suggestions,
    unsettled,
)
from shardwright.specs import (
    Baseline,
    Candidate,
    Certificate,
    InputError,
    Layout,
    Prediction,
    SoftwareSpec,
)

Watch = Callable[[Progress], None]

_SEARCHED: dict[str, tuple[ChoiceValue, ...]] = {"offload": OFFLOADS, "loss_chunks": LOSS_CHUNKS}
"""Values of what suggestions fix that are searched on a stack where they are open."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found and how sure it is."""

    ranking: tuple[Candidate, ...]
    """The best, then runners-up with other choices; empty where nothing fits."""
    ties: tuple[Candidate, ...]
    """Others that the model cannot tell apart from the best."""
    certificate: Certificate
    baselines: tuple[Baseline, ...] = ()
    """On a cluster of several node groups: simpler uses of it."""


class Engine(Protocol):
    """Prices and searches the layouts of one problem."""

    def predict(self, layout: Layout) -> Prediction:
        """What a layout costs; raises `InputError` for what is not described."""

    def search(self, constraints: Constraints, progress: Watch | None = None) -> Found:
        """The best layout that the constraints leave; raises `InputError` where they leave none."""

    def breaks_rules(self, constraints: Constraints) -> bool:
        """Whether no layout that the constraints leave obeys the rules."""

    def reasons(self, constraints: Constraints) -> tuple[str, ...]:
        """Why nothing fits."""

    def leanest(self, constraints: Constraints) -> Candidate | None:
        """The layout that needs least memory, of those that are looked at; None where no layout
        obeys the rules."""

    def suggestions(
        self, constraints: Constraints, settle: Settle = unsettled
    ) -> tuple[Suggestion, ...]:
        """What would fit; where what is fixed does not stand in the way, only how to go on.

        ``settle`` completes a problem that was changed, as the command would.
        """

    def counts(self, name: str) -> frozenset[int]:
        """The values that valid layouts have of one of `layout_text.COUNTS`."""


def software_of(profile: HardwareProfile) -> SoftwareSpec:
    """What runs on a profile where nobody says: the software that it was calibrated on, our own
    where our own layers were measured, else mature software of today."""
    if profile.software is not None:
        return profile.software
    return SoftwareSpec() if profile.curves else stack_facts(GENERIC).software


def engine_for(problem: Problem) -> Engine:
    """The engine of a problem; raises `InputError` where the hardware has no rate for it."""
    if is_own(problem.profile, problem.software):
        return OwnEngine(problem)
    if len(problem.cluster.groups) > 1:
        from shardwright.planner.heterogeneous.engine import HeterogeneousEngine

        return HeterogeneousEngine(problem)
    return StackEngine(problem)


class OwnEngine:
    """Layouts that our own runtime runs, priced by its exact books."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        _refuse_training(problem)
        self._pricer = StepPricer(problem)

    def predict(self, layout: Layout) -> Prediction:
        """See `Engine`."""
        _refuse_layout(layout)
        return self._pricer.predict(layout)

    def search(self, constraints: Constraints, progress: Watch | None = None) -> Found:
        """See `Engine`."""
        pricer: Pricer = self._pricer
        if constraints.most_bytes is not None:
            pricer = CappedPricer(pricer, constraints.most_bytes)
        result = search(self._problem, constraints, pricer, progress)
        return Found(
            tuple(one.candidate for one in result.ranking),
            tuple(one.candidate for one in result.ties),
            result.certificate,
        )

    def breaks_rules(self, constraints: Constraints) -> bool:
        """See `Engine`."""
        return not Space(self._problem, constraints).valid

    def reasons(self, constraints: Constraints) -> tuple[str, ...]:
        """See `Engine`."""
        return reasons(self._problem, constraints, self._pricer)

    def leanest(self, constraints: Constraints) -> Candidate | None:
        """See `Engine`."""
        return least_memory(self._problem, constraints, self._pricer)

    def suggestions(
        self, constraints: Constraints, settle: Settle = unsettled
    ) -> tuple[Suggestion, ...]:
        """See `Engine`."""
        return helps(self._problem, constraints, _own_fitting, settle)

    def counts(self, name: str) -> frozenset[int]:
        """See `Engine`."""
        values = {one.value(name) for one in Space(self._problem, Constraints()).valid}
        return frozenset(value for value in values if isinstance(value, int))


def helps(
    problem: Problem, constraints: Constraints, first: Fitting, settle: Settle
) -> tuple[Suggestion, ...]:
    """How to go on where what is fixed fits with the rest chosen, else what would fit."""
    enough = completion(problem, constraints, first)
    if enough is not None:
        return (enough,)
    return suggestions(problem, constraints, first, settle)


def _own_fitting(problem: Problem, constraints: Constraints) -> Candidate | None:
    return first_fitting(problem, constraints, _own_pricer)


def _own_pricer(problem: Problem) -> StepPricer:
    _refuse_training(problem)
    return StepPricer(problem)


class StackEngine:
    """Layouts of any family and dimension on a software stack."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pricer = stack_model(
            problem.model, problem.training, problem.profile, problem.software
        )

    def predict(self, layout: Layout) -> Prediction:
        """See `Engine`."""
        return self._pricer.predict(layout)

    def search(self, constraints: Constraints, progress: Watch | None = None) -> Found:
        """See `Engine`."""
        pricer = _capped(self._pricer, constraints)
        result = search_stacks(self._problem, constraints, pricer, progress)
        ranking, ties = self._usable(result.ranking), self._usable(result.ties)
        proven = result.certificate.optimal and len(ranking) == len(result.ranking)
        certificate = result.certificate.model_copy(update={"optimal": proven})
        if not ranking and not proven:
            # Time ran out before anything was found: the leanest may fit all the same.
            lean = stack_fitting(self._problem, constraints)
            return Found(() if lean is None else self._usable((lean,)), (), certificate)
        return Found(ranking, ties, certificate)

    def _usable(self, found: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Those whose hosts hold what is offloaded, priced with the memory that the device has."""
        return tuple(
            Candidate(layout=one.layout, prediction=self._pricer.predict(one.layout))
            for one in found
            if host_overflow_in_words(self._pricer, one.layout) is None
        )

    def breaks_rules(self, constraints: Constraints) -> bool:
        """See `Engine`."""
        return not StackSpace(self._problem, constraints).valid

    def reasons(self, constraints: Constraints) -> tuple[str, ...]:
        """See `Engine`."""
        space = StackSpace(self._problem, constraints)
        if not space.valid:
            return tuple(map(str, space.violations()))
        lean = self.leanest(constraints)
        assert lean is not None
        layout, prediction = lean.layout, lean.prediction
        count = f"of {space.num_by_the_rules:,} layouts none was found that fits"
        words = layout_in_words(layout)
        overflow = host_overflow_in_words(self._pricer, layout)
        if overflow is not None:
            return (f"{count}: of the leanest ({words}) {overflow}",)
        peak = max(prediction.peak_memory_bytes)
        most_bytes = constraints.most_bytes
        usable = int(min(prediction.memory_capacity_bytes, most_bytes or math.inf))
        if peak <= usable:
            allowed = "usable" if most_bytes is None else "allowed"
            return (
                f"{count} with a margin: of the leanest ({words}) the fullest rank needs"
                f" {peak:,} bytes of the {usable:,} bytes that are {allowed}, closer than such"
                " predictions are right",
            )
        return (f"{count}: of the leanest ({words}) {overflow_in_words(prediction, most_bytes)}",)

    def leanest(self, constraints: Constraints) -> Candidate | None:
        """See `Engine`."""
        space = StackSpace(self._problem, constraints)
        if not space.valid:
            return None
        layout = leanest(self._problem, space, _capped(self._pricer, constraints)).layout
        return Candidate(layout=layout, prediction=self._pricer.predict(layout))

    def suggestions(
        self, constraints: Constraints, settle: Settle = unsettled
    ) -> tuple[Suggestion, ...]:
        """See `Engine`."""

        def first(problem: Problem, limits: Constraints) -> Candidate | None:
            if _fixes_in_vain(problem, limits, constraints):
                return None
            return stack_fitting(problem, limits)

        return helps(self._problem, constraints, first, settle)

    def counts(self, name: str) -> frozenset[int]:
        """See `Engine`."""
        space, found = StackSpace(self._problem, Constraints()), set[int]()
        for grid in space.valid:
            if name in grid._fields:
                found.add(getattr(grid, name))
            elif name == "vpp":
                found |= {one.vpp for one in space.valid_pipelines(grid)}
            elif name in ("ep", "etp"):
                found |= {getattr(cut, name) for cut in space.valid_cuts(grid)}
        return frozenset(found)


def _capped(pricer: StackModel, constraints: Constraints) -> StackModel:
    """The prices with as much memory as is allowed."""
    most_bytes = constraints.most_bytes
    return pricer if most_bytes is None else CappedStackModel(pricer, most_bytes)


def _fixes_in_vain(problem: Problem, limits: Constraints, before: Constraints) -> bool:
    """Whether ``limits`` fix what was searched before anyway, or what the software cannot run."""
    added = set(normalise_choices(limits.fixed)) - set(normalise_choices(before.fixed))
    space = StackSpace(problem, before)
    return any(
        (value := limits.fixed[name]) in _SEARCHED.get(name, ()) or not space.allowed(name, [value])
        for name in added
    )


def stack_fitting(problem: Problem, constraints: Constraints) -> Candidate | None:
    """Some layout that fits, or None where the leanest do not."""
    try:
        pricer = stack_model(problem.model, problem.training, problem.profile, problem.software)
        space = StackSpace(problem, constraints)
        found = leanest(problem, space, _capped(pricer, constraints)) if space.valid else None
    except InputError:
        # The change itself is impossible, such as a precision that the device does not compute in.
        return None
    if found is None or found.prediction.memory_verdict != "fits":
        return None
    return found if host_overflow_in_words(pricer, found.layout) is None else None


def _refuse_training(problem: Problem) -> None:
    """Refuse what the books of our own runtime do not describe; raises `InputError`."""
    training = problem.training
    beyond = [
        words
        for words, wanted in (
            (f"trainable {training.trainable}", training.trainable != "full"),
            (f"optimizer {training.optimizer.name}", training.optimizer.name != "adamw"),
        )
        if wanted
    ]
    if beyond:
        raise _not_ours(beyond)


def _refuse_layout(layout: Layout) -> None:
    beyond = [
        words
        for words, wanted in (
            (f"offload of {' and '.join(layout.offload)}", bool(layout.offload)),
            ("compile", layout.compile),
            (f"rank order {layout.rank_order}", layout.rank_order != "tp-cp-dp-pp"),
            ("reshard_after_forward off", not layout.reshard_after_forward),
        )
        if wanted
    ]
    if beyond:
        raise _not_ours(beyond)


def _not_ours(beyond: list[str]) -> InputError:
    return InputError(
        f"{', '.join(beyond)} cannot be priced on this profile",
        why="its curves were measured for Shardwright's own runtime, which does not do that yet",
        fix="leave it out, or name another software with --stack (see `shardwright stacks`)",
    )
