"""Learning the parameters of software stacks from measured runs, and pricing runs with them.

Two ways to learn, both the estimate of `cost_models.stacks.fit`. From many runs of many stacks:
kernels, clocks and every stack's own numbers at once (`StackStudy`); what is held out is then taken
away to first order, without fitting anew. From a few runs of one stack: that stack's own numbers
and its accelerator's clock, with what the catalogue knows as the prior (`calibrated`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.stacks.fit import Fit, Free, Observation, fit
from shardwright.cost_models.stacks.step import StackModel, layer_name
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.stacks import (
    GENERIC,
    Fitted,
    Prior,
    defaults_of,
    device_key,
    fitted,
    framework_of_run,
    priors,
    stack_parameters,
)
from shardwright.planner.validation.choose import Pricer, choose
from shardwright.planner.validation.results import Job
from shardwright.planner.validation.rows import Row
from shardwright.specs import (
    Layout,
    ModelSpec,
    ShardwrightError,
    SoftwareSpec,
    TrainingSpec,
)

MODEL_ERROR = 0.08
"""Noise of a single run beside its stack's others, of the logarithm: the median error over stacks
once their numbers are known is 3 to 7 %, and a single run may be off by more."""
_FEW = 40
"""Up to so many rows are a calibration; more are a study."""
_OPEN_WEIGHT = 0.4
"""Of a run whose layout is only partly known."""
_LAYER_SPREAD = 0.08
"""How far equal layers are off together, of the logarithm: the median model error of a shape."""
WITHIN_LAYER = 0.04
"""How far runs of equal layers scatter around that."""
_KNOWN_CLOCK_SPREAD = 0.06
"""A fitted clock may still differ on another site by about so much."""


def run_defaults(row: Row) -> Mapping[str, Any]:
    """What a row's software is known to do where the row says nothing."""
    name = framework_of_run(row.stack, row.parallel.zero)
    try:
        known = defaults_of(name, row.precision)
    except ValueError:  # a precision that is not ours
        known = defaults_of(name)
    return {**known, "framework": name}


@dataclass(frozen=True, slots=True)
class StackPricer:
    """A `StackModel` for each job, with the catalogue's numbers or others."""

    known: Fitted | None = None
    fresh: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By stack: parameters that were just calibrated."""

    def __call__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec,
        /,
    ) -> StackModel:
        parameters = stack_parameters(software.framework, profile, self.known)
        parameters |= self.fresh.get(software.framework, {})
        return StackModel(model, training, profile, software, parameters)


@dataclass(slots=True, eq=False)
class StackStudy:
    """A fit of everything to many jobs; also a `Fitter`: those held out are taken away again."""

    jobs: Sequence[Job]
    forget: bool = False
    """A calibration starts from what is known without the rows' own stacks."""
    rounds: int = 2
    """Layouts that runs left open are chosen anew between rounds."""
    _made: tuple[tuple[Job, ...], tuple[Observation, ...], Fit] | None = None
    _forgotten: dict[frozenset[str], Fitted] = field(default_factory=dict)

    def fit(self, jobs: Sequence[Job], *, unseen: Sequence[Job] = ()) -> Pricer:
        """The cost model as these of the study's jobs teach it; few jobs calibrate instead, from
        what is known without the stacks of ``unseen``."""
        if len(jobs) <= _FEW:
            forgotten = unseen or (jobs if self.forget else ())
            return calibrated(jobs, self._without_stacks_of(forgotten) if forgotten else None)
        known, _, full = self.made
        wanted = {job.row.id for job in jobs}
        kept = np.array([job.row.id in wanted for job in known])
        return StackPricer(self.numbers(full.without(kept), kept))

    def _without_stacks_of(self, jobs: Sequence[Job]) -> Fitted:
        names = frozenset(job.case.software.framework for job in jobs)
        if names not in self._forgotten and len(self.jobs) <= _FEW:
            self._forgotten[names] = _without(fitted(), names)
        if names not in self._forgotten:
            known, _, full = self.made
            kept = np.array([job.case.software.framework not in names for job in known])
            self._forgotten[names] = self.numbers(full.without(kept), kept)
        return self._forgotten[names]

    @property
    def made(self) -> tuple[tuple[Job, ...], tuple[Observation, ...], Fit]:
        """The jobs that were fitted, their observations and the fit."""
        if self._made is None:
            self._made = self._fit_all()
        return self._made

    def _fit_all(self) -> tuple[tuple[Job, ...], tuple[Observation, ...], Fit]:
        timed = tuple(job for job in self.jobs if job.row.step_time_s and not job.row.is_oom)
        pricer = StackPricer()
        start: NDArray[np.float64] | None = None
        for _ in range(self.rounds):
            pairs = observations(timed, pricer)
            found = [one for _, one in pairs]
            free = _all_free(found)
            result = fit(found, free, start=start)
            start = result.z
            jobs = tuple(job for job, _ in pairs)
            self._made = (jobs, tuple(found), result)
            pricer = StackPricer(self.numbers(result.z, np.ones(len(found), dtype=bool)))
        assert self._made is not None
        return self._made

    def numbers(self, z: NDArray[np.float64], kept: NDArray[np.bool_]) -> Fitted:
        """The catalogue's numbers at ``z``; stacks and clocks without kept runs are unknown."""
        assert self._made is not None
        _, found, result = self._made
        seen: dict[str, int] = {}
        for one, is_kept in zip(found, kept, strict=True):
            for scope in one.scopes:
                seen[scope] = seen.get(scope, 0) + int(is_kept)
        stacks = _by_prefix(result, z, seen, "stack:")
        clocks = {
            key: values["clock.sustained_ratio"]
            for key, values in _by_prefix(result, z, seen, "device:").items()
        }
        base = fitted()
        return base.model_copy(
            update={
                "kernels": base.kernels | result.values("all", z),
                "clocks": clocks,
                "stacks": stacks,
                "population": _population(stacks),
                "clock_population": _centre(
                    list(clocks.values()) or [base.clock_population[0]], is_fraction=False
                ),
                "layers": self._layers(z, kept),
                "num_runs": {
                    scope.removeprefix("stack:"): count
                    for scope, count in sorted(seen.items())
                    if scope.startswith("stack:") and count
                },
            }
        )

    def _layers(
        self, z: NDArray[np.float64], kept: NDArray[np.bool_]
    ) -> dict[str, dict[str, float]]:
        """What is left over in runs of equal layers, shrunk by how few they are."""
        assert self._made is not None
        jobs, found, result = self._made
        left = result.measured - result.predicted - result.jacobian @ (z - result.z)
        groups: dict[tuple[str, str], list[float]] = {}
        for job, one, residual, is_kept in zip(jobs, found, left, kept, strict=True):
            if is_kept and len(job.layouts) == 1:
                name = layer_name(job.case.model, job.case.training, one.layout)
                groups.setdefault((job.case.software.framework, name), []).append(residual)
        layers: dict[str, dict[str, float]] = {}
        for (stack, name), residuals in groups.items():
            layers.setdefault(stack, {})[name] = math.exp(shared_residual(residuals))
        return layers


def shared_residual(residuals: Sequence[float]) -> float:
    """What runs of equal layers have in common beyond the parameters, of the logarithm; shrunk by
    how few they are, 0 for none."""
    if not residuals:
        return 0.0
    share = len(residuals) / (len(residuals) + (WITHIN_LAYER / _LAYER_SPREAD) ** 2)
    return share * statistics.median(residuals)


def _without(known: Fitted, names: frozenset[str]) -> Fitted:
    """The catalogue as if it had never seen some stacks; what all share stays."""
    stacks = {name: values for name, values in known.stacks.items() if name not in names}
    return known.model_copy(update={"stacks": stacks, "population": _population(stacks)})


def _by_prefix(
    result: Fit, z: NDArray[np.float64], seen: Mapping[str, int], prefix: str
) -> dict[str, dict[str, float]]:
    scopes = sorted(scope for scope in seen if scope.startswith(prefix) and seen[scope])
    return {scope.removeprefix(prefix): result.values(scope, z) for scope in scopes}


def _population(stacks: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Centre and spread over stacks of each of their parameters.

    Runs of many stacks say nothing of some parameters, which then stay at the prior's centre: the
    spread is never taken as less than half of the prior's.
    """
    found = {}
    for one in priors():
        if one.scope == "stack":
            values = [stack[one.name] for stack in stacks.values()] or [one.centre]
            centre, spread = _centre(values, one.is_fraction)
            found[one.name] = (centre, max(spread, one.spread / 2))
    return found


def _centre(values: Sequence[float], is_fraction: bool) -> tuple[float, float]:
    """The median, and a robust standard deviation (1.48 median absolute deviations)."""
    free = Free("", "", 0.5, 1.0, is_fraction)
    scaled = [free.scaled(value) for value in values]
    middle = statistics.median(scaled)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in scaled)
    return free.value(middle), max(spread, 0.05)


def observations(jobs: Sequence[Job], pricer: StackPricer) -> list[tuple[Job, Observation]]:
    """Each job that can be priced as an observation of its likeliest layout."""
    models: dict[object, StackModel] = {}
    found = []
    for job in jobs:
        case = job.case
        measured_s = job.row.step_time_s
        if measured_s is None:
            continue
        key = (id(case.model), id(case.profile), case.training, case.software)
        try:
            if key not in models:
                models[key] = pricer(case.model, case.training, case.profile, case.software)
            layout = _likeliest(models[key], job)
        except ShardwrightError:
            continue
        device = device_key(case.profile.devices.accelerator)
        scopes = frozenset({f"stack:{case.software.framework}", f"device:{device}"})
        weight = 1.0 if len(job.layouts) == 1 else _OPEN_WEIGHT
        base = stack_parameters(GENERIC, case.profile)
        found.append((job, Observation(models[key], layout, measured_s, base, scopes, weight)))
    return _balanced(found)


def _balanced(found: list[tuple[Job, Observation]]) -> list[tuple[Job, Observation]]:
    """A stack with very many runs must not outvote all others in what they share."""
    counts: dict[str, int] = {}
    for job, _ in found:
        counts[job.case.software.framework] = counts.get(job.case.software.framework, 0) + 1
    for job, one in found:
        count = counts[job.case.software.framework]
        one.weight *= min(1.0, math.sqrt(_LARGE / count))
    return found


_LARGE = 150.0
"""Runs of one stack up to which each counts in full."""


def _likeliest(model: StackModel, job: Job) -> Layout:
    """The cheapest that fits, as `validation.choose` takes it."""
    if len(job.layouts) == 1 and not job.spares:
        model.step_time_s(job.layouts[0])
        return job.layouts[0]
    return choose(model, job.layouts, job.spares).layout


def _all_free(found: Sequence[Observation]) -> list[Free]:
    """Every parameter that these observations can teach something about."""
    scopes = sorted({scope for one in found for scope in one.scopes})
    free = [_free(one, "all") for one in priors() if one.scope == "all"]
    for scope in scopes:
        kind = scope.partition(":")[0]
        free += [_free(one, scope) for one in priors() if one.scope == kind]
    return free


def _free(prior: Prior, scope: str) -> Free:
    return Free(prior.name, scope, prior.centre, prior.spread, prior.is_fraction)


def calibrated(jobs: Sequence[Job], known: Fitted | None = None) -> StackPricer:
    """The catalogue's cost model, corrected by a few runs."""
    known = known or fitted()
    pairs = observations(jobs, StackPricer(known))
    if not pairs:
        return StackPricer(known)
    found = [one for _, one in pairs]
    scopes = sorted({scope for one in found for scope in one.scopes})
    free = [one for scope in scopes for one in local_free(scope, known)]
    for job, one in pairs:
        one.base = stack_parameters(job.case.software.framework, job.case.profile, known)
    result = fit(found, free, noise=MODEL_ERROR)
    clocks = {
        scope.removeprefix("device:"): result.values(scope)["clock.sustained_ratio"]
        for scope in scopes
        if scope.startswith("device:")
    }
    fresh = {
        scope.removeprefix("stack:"): result.values(scope)
        for scope in scopes
        if scope.startswith("stack:")
    }
    return StackPricer(known.model_copy(update={"clocks": known.clocks | clocks}), fresh)


def local_free(scope: str, known: Fitted) -> list[Free]:
    """A stack's numbers, or a clock, with what is known as the prior.

    ``scope``: ``stack:NAME`` or ``device:KEY``.
    """
    kind, _, name = scope.partition(":")
    if kind == "device":
        centre, spread = known.clock_population
        if name in known.clocks:
            centre, spread = known.clocks[name], _KNOWN_CLOCK_SPREAD
        return [Free("clock.sustained_ratio", scope, centre, spread)]
    own = known.stacks.get(name, {})
    fractions = {one.name: one.is_fraction for one in priors()}
    return [
        Free(parameter, scope, own.get(parameter, centre), spread, fractions[parameter])
        for parameter, (centre, spread) in known.population.items()
    ]
