"""What steps of our own runtime teach a profile that was measured for it: `learn_measured`.

A profile's curves are those of single operations, measured once. Steps tell what has changed since,
and what operations meet inside a step: other caches, peers that are late, a machine that was busy
while it was measured. Three ratios are estimated, of computing, of collectives inside a node and of
those across nodes (the same that `trial` corrects, `planner.trials.correction`), with what the
profile holds as the prior. A step time alone moves the ratios along with their part of the step;
runs that communicate differently tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.communication import INTER_NODE_RATIO, INTRA_NODE_RATIO
from shardwright.cost_models.compute import COMPUTE_RATIO
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import HardwareProfile, Parameter
from shardwright.hardware_profiles.stacks import FittedBand
from shardwright.planner.calibration.learn import (
    FEWEST_FOR_BAND,
    OUTLIER,
    Learned,
    Lesson,
    RunCheck,
    interval_of_errors,
)
from shardwright.planner.validation.results import Job
from shardwright.planner.validation.stack_fits import MODEL_ERROR
from shardwright.specs import InputError

PRIOR_SPREADS = {COMPUTE_RATIO: 0.21, INTRA_NODE_RATIO: 0.35, INTER_NODE_RATIO: 0.35}
"""Of logarithms. Computing: a profile made beside heavy tests was 23 % too slow
(`benchmarks/local_layouts.md`). Collectives: how far software stacks differ in theirs inside a step
(the population's ``stack.collective_ratio``)."""
NOISE = 0.04
"""Scatter of runs around what the profile can say, of the logarithm: half of the 80 % band of
machines with a core for each rank (`hardware_profiles/measure/accuracy.json`)."""
_HUBER = 2.5
_STEP = 0.02
_MOST_ITERATIONS = 12
_CONVERGED = 1e-5

Vector = NDArray[np.float64]


def learn_measured(jobs: Sequence[Job], base: HardwareProfile) -> Lesson:
    """The ratios of a measured profile, from steps of our own runtime on it.

    Raises:
        InputError: a run is of other software, or of other devices than were measured.
    """
    _require_own(jobs, base)
    known = {one.name: one for one in base.parameters}
    names = tuple(PRIOR_SPREADS)
    centres = np.array([math.log(known[n].value) if n in known else 0.0 for n in names])
    spreads = np.array(
        [(known[n].spread if n in known else None) or PRIOR_SPREADS[n] for n in names]
    )
    measured = np.log([job.row.step_time_s or math.nan for job in jobs])

    def predicted(logs: Vector) -> Vector:
        profile = _at(base, dict(zip(names, np.exp(logs), strict=True)))
        return np.array([math.log(_seconds(job, profile)) for job in jobs])

    logs, slopes = _estimate(predicted, measured, centres, spreads)
    before, after = predicted(centres), predicted(logs)
    left = measured - after
    after_spreads = _spreads(slopes, left, spreads)
    groups = _configurations(jobs)
    left_out = _left_out(slopes, left, centres, spreads, logs, groups)
    band, source = _band(left_out, groups, base)
    return Lesson(
        stack="shardwright",
        parameters=tuple(
            Learned(name, "1", math.exp(a), math.exp(b), float(s), float(t))
            for name, a, b, s, t in zip(names, centres, logs, spreads, after_spreads, strict=True)
        ),
        layers={},
        band=band,
        band_source=source,
        runs=tuple(
            RunCheck(
                job.row.id, math.exp(measured[i]), math.exp(before[i]), math.exp(after[i]),
                None if left_out is None else math.exp(measured[i] - left_out[i]),
                bool(abs(left[i]) > OUTLIER),
            )
            for i, job in enumerate(jobs)
        ),
        num_configurations=len(set(groups)),
    )  # fmt: skip


def _require_own(jobs: Sequence[Job], base: HardwareProfile) -> None:
    for job in jobs:
        case = job.case
        if case.software.framework != "shardwright":
            raise InputError(
                f"{job.row.id} ran {case.software.framework}, and {base.devices.name} was measured"
                " with operations of our own runtime",
                why="steps of other software say nothing of these",
                fix="calibrate a cluster known by its data sheet on it",
            )
        if case.num_gpus != base.devices.num_devices or len(job.layouts) != 1:
            raise InputError(
                f"{job.row.id} ran on {case.num_gpus} devices, not on the"
                f" {base.devices.num_devices} that were measured",
                fix="give the profile of those devices",
            )


def _at(base: HardwareProfile, values: dict[str, float]) -> HardwareProfile:
    kept = [one for one in base.parameters if one.name not in values]
    made = [
        Parameter(name=name, value=value, unit="1", kind="derived", fitted_from="calibration")
        for name, value in values.items()
    ]  # fmt: skip
    return base.model_copy(update={"parameters": (*kept, *made)})


def _seconds(job: Job, profile: HardwareProfile) -> float:
    case = job.case
    model = StepModel(case.model, case.training, profile, case.software)
    return model.predict(job.layouts[0]).step_time_s


def _estimate(
    predicted: object, measured: Vector, centres: Vector, spreads: Vector
) -> tuple[Vector, Vector]:
    """The most probable logarithms (Gauss and Newton's steps), and the slopes there."""
    assert callable(predicted)
    at = centres.copy()
    for _ in range(_MOST_ITERATIONS):
        value = predicted(at)
        slopes = _slopes(predicted, at, value)
        normal, gradient = _normal(slopes, measured - value, at - centres, spreads)
        step = np.clip(np.linalg.solve(normal, gradient), -1.0, 1.0)
        at = at + step
        if np.abs(step).max() < _CONVERGED:
            break
    return at, _slopes(predicted, at, predicted(at))


def _slopes(predicted: object, at: Vector, value: Vector) -> Vector:
    assert callable(predicted)
    columns = [(predicted(at + _STEP * row) - value) / _STEP for row in np.eye(len(at))]
    return np.array(columns).T


def _normal(
    slopes: Vector, left: Vector, moved: Vector, spreads: Vector, noise: float = NOISE
) -> tuple[Vector, Vector]:
    """The normal equations; what is left beyond `_HUBER` times the noise counts linearly."""
    size = np.abs(left) / noise
    scale = np.where(size < _HUBER, 1.0, _HUBER / np.maximum(size, 1e-9)) / noise**2
    weighed = (slopes * scale[:, None]).T
    return weighed @ slopes + np.diag(spreads**-2), weighed @ left - moved / spreads**2


def _spreads(slopes: Vector, left: Vector, spreads: Vector) -> Vector:
    """What the cost model gets wrong is part of how well the ratios are known."""
    normal, _ = _normal(slopes, left, np.zeros(len(spreads)), spreads, MODEL_ERROR)
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(normal))))


def _configurations(jobs: Sequence[Job]) -> list[int]:
    seen: dict[object, int] = {}
    keys = [(job.case.model, job.case.training, job.layouts[0]) for job in jobs]
    return [seen.setdefault(key, len(seen)) for key in keys]


def _left_out(
    slopes: Vector, left: Vector, centres: Vector, spreads: Vector, logs: Vector,
    groups: Sequence[int],
) -> list[float] | None:  # fmt: skip
    """Logarithm of measured over predicted of each run, by the other configurations."""
    if len(set(groups)) < FEWEST_FOR_BAND:
        return None
    found = [0.0] * len(groups)
    for group in set(groups):
        kept = np.array([one != group for one in groups])
        normal, gradient = _normal(slopes[kept], left[kept], logs - centres, spreads)
        moved = np.linalg.solve(normal, gradient)
        for i, one in enumerate(groups):
            if one == group:
                found[i] = float(left[i] - slopes[i] @ moved)
    return found


def _band(
    left_out: Sequence[float] | None, groups: Sequence[int], base: HardwareProfile
) -> tuple[FittedBand, str]:
    if left_out is not None:
        return interval_of_errors(left_out, len(set(groups)))
    known = {one.name: one.value for one in base.parameters}
    band = FittedBand(
        low=known.get("band.low_ratio", 1.0), high=known.get("band.high_ratio", 1.0)
    )  # fmt: skip
    return band, f"as the profile stated it: fewer than {FEWEST_FOR_BAND} configurations"
