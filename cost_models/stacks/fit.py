"""Fitting the parameters of stacks to measured steps: a maximum a posteriori estimate.

Every parameter has a prior: a centre, and the spread of its logarithm (fractions: of its log-odds).
Residuals are those of logarithms of step times; large ones count linearly, not squared (Huber), for
some published runs have gone wrong in ways that no model knows. The same estimate serves the whole
catalogue (`benchmarks.fit_stacks`) and one run of a user (`calibrate`): with few runs the prior
decides, with many the runs do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.stacks.parts import PartName, part_seconds
from shardwright.cost_models.stacks.step import StackModel
from shardwright.specs import Layout

Vector = NDArray[np.float64]

NOISE = 0.05
"""Standard deviation of what the model cannot explain, of the logarithm: about the spread between
repeats of one configuration (4 % in the median) and the model's own error."""
_HUBER = 2.5
"""Residuals beyond so many `NOISE` count linearly."""
_STEP = 0.02
"""Of the numeric derivative, in logarithms."""


@dataclass(frozen=True, slots=True)
class Free:
    """A parameter to be estimated, and its prior."""

    name: str
    scope: str
    """``all``, ``stack:NAME`` or ``device:SLUG``: which observations it has a part in."""
    centre: float
    spread: float
    is_fraction: bool = False

    def value(self, z: float) -> float:
        """From the unbounded scale on which it is estimated."""
        return 1.0 / (1.0 + math.exp(-z)) if self.is_fraction else math.exp(z)

    def scaled(self, value: float) -> float:
        """The inverse of `value`."""
        return math.log(value / (1.0 - value)) if self.is_fraction else math.log(value)


@dataclass(slots=True, eq=False)
class Observation:
    """One measured step, or a part of one. Observations of one job may share a model."""

    model: StackModel
    layout: Layout
    measured_s: float
    base: Mapping[str, float]
    """Every parameter that is not estimated."""
    scopes: frozenset[str]
    weight: float = 1.0
    part: PartName = "step"
    """What was measured."""
    of_last_rank: bool = False
    """Whether a part is that of the last pipeline rank."""

    @property
    def predicted_s(self) -> float:
        """By the model's present parameters."""
        return part_seconds(self.model, self.layout, self.part, of_last_rank=self.of_last_rank)


@dataclass(frozen=True, slots=True)
class Fit:
    """The estimate and what it was made of."""

    free: tuple[Free, ...]
    z: Vector
    predicted: Vector
    """Logarithms of seconds, by observation."""
    jacobian: Vector = field(repr=False)
    """[observation, parameter]."""
    measured: Vector = field(repr=False)
    weights: Vector = field(repr=False)
    noise: float = NOISE

    def values(self, scope: str, z: Vector | None = None) -> dict[str, float]:
        """The estimates that belong to one scope, by name."""
        at = self.z if z is None else z
        pairs = zip(self.free, at, strict=True)
        return {one.name: one.value(float(v)) for one, v in pairs if one.scope == scope}

    def without(self, kept: NDArray[np.bool_], columns: Sequence[int] | None = None) -> Vector:
        """The estimate from the ``kept`` observations alone, to first order around this one.

        ``columns``: which parameters may move; default all.
        """
        at = np.arange(len(self.free)) if columns is None else np.asarray(columns)
        residuals = (self.measured - self.predicted)[kept]
        z = self.z.copy()
        z[at] += _solve(
            self.jacobian[kept][:, at], residuals, self.weights[kept], self.z[at],
            [self.free[i] for i in at], damping=0.0, noise=self.noise,
        )  # fmt: skip
        return z


def spreads(found: Fit) -> Vector:
    """Standard deviation of each estimate on its own scale, whatever the others are: the prior's
    where the observations say nothing (Laplace's approximation around the estimate)."""
    normal, _ = _normal(
        found.jacobian, found.measured - found.predicted, found.weights, found.z, found.free,
        found.noise,
    )  # fmt: skip
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(normal))))


def fit(
    observations: Sequence[Observation],
    free: Sequence[Free],
    *,
    start: Vector | None = None,
    iterations: int = 8,
    noise: float = NOISE,
) -> Fit:
    """The maximum a posteriori estimate of ``free`` (Levenberg-Marquardt).

    ``noise``: standard deviation of what the model cannot explain, of the logarithm.
    """
    measured = np.array([math.log(one.measured_s) for one in observations])
    weights = np.array([one.weight for one in observations])
    z = np.array([one.scaled(one.centre) for one in free]) if start is None else start.copy()
    predicted = predict(observations, free, z)
    cost = _cost(measured - predicted, weights, z, free, noise)
    damping = 1e-3
    slopes = jacobian(observations, free, z, predicted)
    for _ in range(iterations):
        for _ in range(6):
            step = _solve(slopes, measured - predicted, weights, z, free, damping, noise)
            candidate = z + step
            seen = predict(observations, free, candidate)
            new_cost = _cost(measured - seen, weights, candidate, free, noise)
            if new_cost < cost:
                break
            damping *= 8.0
        else:
            break
        gained = (cost - new_cost) / max(abs(cost), 1e-12)
        z, predicted, cost, damping = candidate, seen, new_cost, max(damping / 5.0, 1e-6)
        slopes = jacobian(observations, free, z, predicted)
        if gained < 1e-3:
            break
    return Fit(tuple(free), z, predicted, slopes, measured, weights, noise)


def predict(observations: Sequence[Observation], free: Sequence[Free], z: Vector) -> Vector:
    """Logarithms of predicted seconds."""
    by_scope: dict[str, dict[str, float]] = defaultdict(dict)
    for one, at in zip(free, z, strict=True):
        by_scope[one.scope][one.name] = one.value(float(at))
    groups: dict[tuple[int, frozenset[str]], list[int]] = defaultdict(list)
    for index, seen in enumerate(observations):
        groups[id(seen.model), seen.scopes].append(index)
    found = np.empty(len(observations))
    for indices in groups.values():
        first = observations[indices[0]]
        parameters = dict(first.base) | by_scope.get("all", {})
        for scope in sorted(first.scopes):
            parameters |= by_scope.get(scope, {})
        first.model.reprice(parameters)
        for index in indices:
            found[index] = math.log(observations[index].predicted_s)
    return found


def jacobian(
    observations: Sequence[Observation], free: Sequence[Free], z: Vector, predicted: Vector
) -> Vector:
    """Derivatives of the predictions, by forward differences."""
    slopes = np.zeros((len(observations), len(free)))
    for column, one in enumerate(free):
        own = [
            i
            for i, seen in enumerate(observations)
            if one.scope == "all" or one.scope in seen.scopes
        ]
        if not own:
            continue
        moved = z.copy()
        moved[column] += _STEP
        seen_there = predict([observations[i] for i in own], free, moved)
        slopes[own, column] = (seen_there - predicted[own]) / _STEP
    return slopes


def _prior(z: Vector, free: Sequence[Free]) -> tuple[Vector, Vector]:
    """Distance from the prior's centre, and its precision."""
    centres = np.array([one.scaled(one.centre) for one in free])
    precision = np.array([1.0 / one.spread**2 for one in free])
    return z - centres, precision


def _cost(
    residuals: Vector, weights: Vector, z: Vector, free: Sequence[Free], noise: float
) -> float:
    size = np.abs(residuals) / noise
    loss = np.where(size < _HUBER, size**2, 2 * _HUBER * size - _HUBER**2)
    distance, precision = _prior(z, free)
    return float((weights * loss).sum() + (distance**2 * precision).sum())


def _solve(
    slopes: Vector,
    residuals: Vector,
    weights: Vector,
    z: Vector,
    free: Sequence[Free],
    damping: float,
    noise: float,
) -> Vector:
    """One damped Gauss-Newton step; no parameter moves by more than a factor of e at once."""
    normal, gradient = _normal(slopes, residuals, weights, z, free, noise)
    damped = normal + damping * np.diag(np.diag(normal))
    return np.asarray(np.clip(np.linalg.solve(damped, gradient), -1.0, 1.0))


def _normal(
    slopes: Vector,
    residuals: Vector,
    weights: Vector,
    z: Vector,
    free: Sequence[Free],
    noise: float,
) -> tuple[Vector, Vector]:
    """The matrix of the normal equations and the downhill gradient, both halved."""
    size = np.abs(residuals) / noise
    robust = np.where(size < _HUBER, 1.0, _HUBER / np.maximum(size, 1e-9))
    scale = weights * robust / noise**2
    distance, precision = _prior(z, free)
    normal = (slopes * scale[:, None]).T @ slopes + np.diag(precision)
    gradient = (slopes * scale[:, None]).T @ residuals - distance * precision
    return normal, gradient
