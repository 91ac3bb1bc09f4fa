"""What timed layouts teach a measured profile: how much longer things take in a training step.

A profile's curves are those of single operations on ranks that wait for nothing else. In a step,
operations meet other caches, and a collective meets peers that do not run yet. So up to three
ratios are fitted, of compute, of collectives inside a node and of those across nodes, and two
numbers are taken as they were measured: host work outside of all terms, and reading the data.

The fit is least squares over all layouts at once: of the logarithm of predicted over measured step
times, and of each term of each pipeline rank, predicted less measured, as a part of the measured
step. Terms tell compute from communication where the layouts alone do not (a trial of three may all
communicate alike). A layout that nothing explains counts less (Huber's weights). A ratio that these
do not tell stays as it was: of those that are less than two standard errors from it, the least
certain is given up, and the rest fitted again. And unless each layout is predicted better by what
the others teach than without, nothing is changed at all. Curves stay as they were measured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.communication import INTER_NODE_RATIO, INTRA_NODE_RATIO
from shardwright.cost_models.compute import COMPUTE_RATIO
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import HardwareProfile, Parameter
from shardwright.planner.problem import Problem
from shardwright.planner.trials.terms import OF_A_BREAKDOWN, Timed, predicted_terms
from shardwright.specs import Prediction

RATIOS = (COMPUTE_RATIO, INTRA_NODE_RATIO, INTER_NODE_RATIO)
OVERHEAD, DATA = "step.overhead_s", "step.data_s_per_token"
MEANINGS = {
    COMPUTE_RATIO: "compute in a step, over the same operations alone",
    INTRA_NODE_RATIO: "collectives inside a node in a step, over the same ones alone",
    INTER_NODE_RATIO: "collectives across nodes in a step, over the same ones alone",
    OVERHEAD: "host work of a step outside of all terms",
    DATA: "reading and moving one token of input",
}
MOST_ITERATIONS = 20
CONVERGED = 1e-4
"""Of the logarithms of the ratios."""
FEWEST_ERRORS = 2.0
"""Standard errors by which a ratio must have moved to be told from what it was (95 %)."""

HUBER = 1.345
"""Standard deviations beyond which a layout's errors count linearly; for normal errors that costs
5 % (Huber, *Robust Estimation of a Location Parameter*, 1964)."""
MAD_TO_DEVIATION = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""
FEWEST_FOR_WEIGHTS = 4
"""Of fewer layouts none can be told to be the odd one."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Changed:
    """One number of the profile before and after."""

    name: str
    unit: str
    before: float
    after: float
    spread: float | None
    """Standard error of the logarithm of a ratio; None where nothing told it."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The corrected profile, and how much better it predicts what taught it."""

    profile: HardwareProfile
    changes: tuple[Changed, ...]
    before: tuple[Prediction, ...]
    after: tuple[Prediction, ...]
    """Of each timed layout."""
    left_out_s: tuple[float, ...] | None
    """Of each, its step as the others alone correct it (to first order); None for less than 3."""
    is_taken: bool = True
    """False: it would not have predicted the layouts better, so that nothing is changed."""

    def median_error(self, timed: Sequence[Timed], when: str) -> float | None:
        """Of abs(predicted / measured - 1) ``before``, ``after`` or ``left_out``."""
        if when == "left_out":
            steps: Sequence[float] | None = self.left_out_s
        else:
            steps = [one.step_time_s for one in getattr(self, when)]
        if steps is None:
            return None
        return statistics.median(
            abs(step / one.step_time_s - 1) for step, one in zip(steps, timed, strict=True)
        )


def correct(problem: Problem, timed: Sequence[Timed], *, source: str) -> Correction:
    """The problem's profile, corrected by what was timed on it.

    Args:
        source: what taught it, in words, for the profile.
    """
    assert timed
    base = {parameter.name: parameter.value for parameter in problem.profile.parameters}
    fixed = {OVERHEAD: _mean(timed, "other"), DATA: _data_s_per_token(problem, timed)}
    start = np.array([math.log(base.get(name, 1.0)) for name in RATIOS])

    def profile_at(logs: Vector, spreads: Sequence[float | None] = ()) -> HardwareProfile:
        ratios = dict(zip(RATIOS, map(math.exp, logs.tolist()), strict=True))
        return _with(problem.profile, ratios | fixed, spreads, source)

    def residuals(logs: Vector) -> Vector:
        return _residuals(_model(problem, profile_at(logs)), timed)

    ends = _ends(timed)
    logs, jacobian, spreads = _fit(residuals, start, ends)
    left = residuals(logs)
    made = profile_at(logs, spreads)
    before = [_model(problem, problem.profile).predict(one.layout) for one in timed]
    after = [_model(problem, made).predict(one.layout) for one in timed]
    units = {OVERHEAD: "s", DATA: "s"}
    known = {p.name: p.value for p in made.parameters}
    found = Correction(
        profile=made,
        changes=tuple(
            Changed(
                name, units.get(name, "1"), base.get(name, 0.0 if name in fixed else 1.0),
                known[name], dict(zip(RATIOS, spreads, strict=True)).get(name),
            )
            for name in MEANINGS
        ),
        before=tuple(before),
        after=tuple(after),
        left_out_s=_left_out(ends, after, jacobian, left),
    )  # fmt: skip
    return found if _helps(found, timed) else _unchanged(found, problem.profile)


def _helps(found: Correction, timed: Sequence[Timed]) -> bool:
    left_out, before = (found.median_error(timed, when) for when in ("left_out", "before"))
    return left_out is None or before is None or left_out < before


def _unchanged(found: Correction, profile: HardwareProfile) -> Correction:
    """With what was tried forgotten, but for how it predicted what was left out."""
    changes = tuple(replace(one, after=one.before, spread=None) for one in found.changes)
    return replace(found, profile=profile, changes=changes, after=found.before, is_taken=False)


def _model(problem: Problem, profile: HardwareProfile) -> StepModel:
    return StepModel(problem.model, problem.training, profile, problem.software)


def _mean(timed: Sequence[Timed], term: str) -> float:
    """Over layouts, of the median rank."""
    return statistics.fmean(
        statistics.median(row.get(term, 0.0) for row in one.terms_s) for one in timed
    )


def _data_s_per_token(problem: Problem, timed: Sequence[Timed]) -> float:
    """Over layouts, of the tokens that one rank reads."""
    seq_len = problem.training.seq_len
    return statistics.fmean(
        statistics.median(row.get("data", 0.0) for row in one.terms_s)
        / (one.layout.micro_batches * one.layout.micro_batch * seq_len)
        for one in timed
    )


def _residuals(model: StepModel, timed: Sequence[Timed]) -> Vector:
    """Rows by layout, equally many of each: the step, then the terms."""
    found: list[float] = []
    for one in timed:
        breakdowns = model.rank_breakdowns(one.layout)
        found.append(math.log(breakdowns[0].total_s / one.step_time_s))
        weight = 1 / (one.step_time_s * math.sqrt(len(breakdowns)))
        for rank, breakdown in enumerate(breakdowns):
            predicted, measured = predicted_terms(breakdown), one.of_stage(rank)
            found += [weight * (seconds - measured[name]) for name, seconds in predicted.items()]
    return np.array(found)


def _ends(timed: Sequence[Timed]) -> list[int]:
    """Where the rows of each layout begin, and the last end."""
    sizes = [1 + len(OF_A_BREAKDOWN) * one.layout.pp for one in timed]
    return [0, *itertools.accumulate(sizes)]


def _fit(
    residuals: Callable[[Vector], Vector], start: Vector, ends: Sequence[int]
) -> tuple[Vector, Vector, list[float | None]]:
    """The estimate, its Jacobian, and standard errors, None for what is not told."""
    free = list(range(len(start)))
    while True:
        at, jacobian = _least_squares(residuals, start, free, ends)
        if not free:
            return at, jacobian, [None] * len(start)
        errors = _errors(jacobian[:, free], residuals(at))
        certain = [
            abs(at[i] - start[i]) / error if error else 0.0
            for i, error in zip(free, errors, strict=True)
        ]
        if min(certain) >= FEWEST_ERRORS:
            known = dict(zip(free, errors, strict=True))
            return at, jacobian, [known.get(i) for i in range(len(start))]
        free.pop(certain.index(min(certain)))


def _least_squares(
    residuals: Callable[[Vector], Vector], start: Vector, free: Sequence[int], ends: Sequence[int]
) -> tuple[Vector, Vector]:
    """Gauss and Newton's steps, weighted anew each time and halved until they improve; the estimate
    and its Jacobian, whose columns are nothing where a ratio is not free."""
    at, value = start, residuals(start)
    for _ in range(MOST_ITERATIONS):
        jacobian, weights = _jacobian(residuals, at, value, free), _weights(value, ends)
        step = np.linalg.lstsq(weights[:, None] * jacobian, -weights * value, rcond=1e-6)[0]
        while np.abs(step).max() > CONVERGED:
            tried = residuals(at + step)
            if np.sum((weights * tried) ** 2) < np.sum((weights * value) ** 2):
                break
            step = step / 2
        else:
            return at, jacobian
        at, value = at + step, tried
    return at, _jacobian(residuals, at, value, free)


def _weights(value: Vector, ends: Sequence[int]) -> Vector:
    """Of every row, equal within a layout: the root of Huber's weight of its errors together."""
    sizes = np.diff(ends)
    errors = np.sqrt(np.add.reduceat(value**2, ends[:-1]))
    if len(errors) < FEWEST_FOR_WEIGHTS:
        return np.ones(len(value))
    most = HUBER * MAD_TO_DEVIATION * float(np.median(errors))
    return np.repeat(np.sqrt(np.minimum(1.0, most / np.maximum(errors, 1e-12))), sizes)


def _jacobian(
    residuals: Callable[[Vector], Vector], at: Vector, value: Vector, free: Sequence[int]
) -> Vector:
    move = 1e-3
    found = np.zeros((len(value), len(at)))
    for axis in free:
        found[:, axis] = (residuals(at + move * np.eye(len(at))[axis]) - value) / move
    return found


def _errors(jacobian: Vector, left: Vector) -> list[float | None]:
    """Standard errors; None of what changes nothing. Terms that no layout has do not count."""
    freedom = max(1, np.count_nonzero(left) - jacobian.shape[1])
    variance = float(left @ left) / freedom
    is_seen = np.abs(jacobian).max(axis=0) > 0
    covariance = variance * np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-9)
    return [
        float(math.sqrt(covariance[i, i])) if is_seen[i] and covariance[i, i] > 0 else None
        for i in range(jacobian.shape[1])
    ]


def _left_out(
    ends: Sequence[int], after: Sequence[Prediction], jacobian: Vector, left: Vector
) -> tuple[float, ...] | None:
    """Each layout's step when its own rows take no part, to first order around the estimate."""
    if len(after) < 3:
        return None
    assert ends[-1] == len(left)
    root = _weights(left, ends)
    found = []
    for own, one in enumerate(after):
        kept = np.ones(len(left), dtype=bool)
        kept[ends[own] : ends[own + 1]] = False
        rows = root[kept]
        moved = np.linalg.lstsq(rows[:, None] * jacobian[kept], -rows * left[kept], rcond=1e-6)[0]
        found.append(one.step_time_s * math.exp(float(jacobian[ends[own]] @ moved)))
    return tuple(found)


def _with(
    base: HardwareProfile,
    values: dict[str, float],
    spreads: Sequence[float | None],
    source: str,
) -> HardwareProfile:
    taught = f"corrected {datetime.now(UTC):%Y-%m-%d} by {source}"
    known = dict(zip(RATIOS, spreads, strict=False))
    kept = [parameter for parameter in base.parameters if parameter.name not in values]
    made = [
        Parameter(
            name=name, value=value, unit="1" if name in RATIOS else "s", kind="derived",
            fitted_from=taught, spread=known.get(name),
        )
        for name, value in values.items()
    ]  # fmt: skip
    return base.model_copy(update={"parameters": (*kept, *made)})
