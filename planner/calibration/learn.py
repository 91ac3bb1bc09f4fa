"""What runs of one software stack on one kind of accelerator teach: `learn`.

The stack's six numbers and the accelerator's sustained clock are estimated with what was known
before as the prior (`cost_models.stacks.fit`). What runs of equal layers then have in common stays
with those layers (``layer.<shape>``), shrunk by how few the runs are: the error of the model for a
shape of layers is larger than the scatter of its runs, so that one run already tells most of it.
Where all runs are of one shape, nothing tells what is the shape's and what the software's: then it
is the software's, and layouts with other layers share it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.stacks.fit import Fit, Free, Observation, fit, spreads
from shardwright.cost_models.stacks.parts import PartName
from shardwright.cost_models.stacks.step import layer_name
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.stacks import (
    Fitted,
    FittedBand,
    device_key,
    fitted,
    priors,
    stack_parameters,
)
from shardwright.planner.validation.results import Job
from shardwright.planner.validation.stack_fits import (
    MODEL_ERROR,
    WITHIN_LAYER,
    StackPricer,
    local_free,
    observations,
    shared_residual,
)
from shardwright.specs import InputError
from shardwright.specs.units import format_seconds

MEANINGS = {
    "clock.sustained_ratio": "rate of long training over that of a short benchmark",
    "stack.compute_ratio": "time of matrix products, over the device's best",
    "stack.attention_ratio": "time of attention, over the device's best",
    "stack.traffic_ratio": "bytes of element-wise kernels, over those of fused ones",
    "stack.host_s": "host time for each kernel launched",
    "stack.collective_ratio": "time of collectives, over the bare library's",
    "stack.hidden_fraction": "of communication that could hide behind compute, what does",
}
"""Every number that is learned, in words."""

PART_ERROR = 0.10
"""Of a part that was timed by itself, of the logarithm: timers start and end where the software
finds it convenient, and hold a little of their neighbours."""
_NORMAL_P975 = 1.96
FEWEST_FOR_BAND = 5
"""Configurations whose errors, each when it is left out, make a band of their own."""
UNLEARNED = 0.9
"""A number whose spread stays above this part of its prior's is known no better than before."""
OUTLIER = 2.5 * MODEL_ERROR
"""Logarithm of measured over predicted beyond which a run counts for little, and is named."""
_NORMAL_P90 = 1.2816
ABSURD_RATIO = 5.0
"""Measured over predicted beyond which a run is a mistake: of 1,298 published runs the catalogue is
off by more than a factor of 2 in none."""


@dataclass(frozen=True, slots=True)
class Learned:
    """One number before and after; spreads are standard deviations of its logarithm (log-odds of a
    fraction)."""

    name: str
    unit: str
    before: float
    after: float
    spread_before: float
    spread_after: float
    is_fraction: bool = False

    @property
    def is_learned(self) -> bool:
        """Whether it is known better than before."""
        return self.spread_after < UNLEARNED * self.spread_before

    @property
    def ends(self) -> tuple[float, float]:
        """Where it lies with a probability of 95 %."""
        scale = Free(self.name, "", self.after, self.spread_after, self.is_fraction)
        at, half = scale.scaled(self.after), _NORMAL_P975 * self.spread_after
        return scale.value(at - half), scale.value(at + half)


@dataclass(frozen=True, slots=True)
class RunCheck:
    """One run beside its predictions."""

    id: str
    measured_s: float
    before_s: float
    after_s: float
    left_out_s: float | None
    """Predicted by the other configurations alone; None where there are too few of them."""
    is_outlier: bool
    """Too far off for the rest to explain it: it counts less."""


@dataclass(frozen=True, slots=True)
class PartCheck:
    """A part of a run's step that was timed by itself, beside its predictions."""

    id: str
    """Of the run."""
    name: PartName
    measured_s: float
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the runs taught."""

    stack: str
    parameters: tuple[Learned, ...]
    layers: dict[str, float]
    """By ``layer.<shape>``: measured over predicted time of such layers."""
    band: FittedBand
    band_source: str
    runs: tuple[RunCheck, ...]
    num_configurations: int
    parts: tuple[PartCheck, ...] = ()

    def median_error(self, when: str) -> float | None:
        """Of abs(predicted / measured - 1) ``before``, ``after`` or ``left_out``."""
        predicted = [(getattr(run, f"{when}_s"), run.measured_s) for run in self.runs]
        errors = [abs(p / m - 1.0) for p, m in predicted if p is not None]
        return statistics.median(errors) if errors else None


def learn(jobs: Sequence[Job], known: Fitted | None = None) -> Lesson:
    """The numbers of the jobs' stack and accelerator, which must be one each.

    ``known``: the catalogue's numbers. A calibrated profile of the same stack speaks first.

    Raises:
        InputError: no job can be priced.
    """
    known = known or fitted()
    pairs = observations(jobs, StackPricer(known))
    if not pairs:
        raise InputError(
            "none of the runs can be priced",
            why="the cost model describes none of their layouts",
            fix="run `shardwright validate` on them to see each one's reason",
        )
    first = pairs[0][0].case
    stack, profile = first.software.framework, first.profile
    scopes = (f"stack:{stack}", f"device:{device_key(profile.devices.accelerator)}")
    free = _own([one for scope in scopes for one in local_free(scope, known)], profile, stack)
    for job, one in pairs:
        one.base = stack_parameters(stack, job.case.profile, known)
    timed = [(index, one) for index, pair in enumerate(pairs) for one in _parts(*pair)]
    owners = [*range(len(pairs)), *(index for index, _ in timed)]
    found = [*(one for _, one in pairs), *(one for _, one in timed)]
    before = _predicted(found, {})
    result = fit(found, free, noise=WITHIN_LAYER)
    names = [_layer_of(job, one) for job, one in pairs]
    left = (result.measured - result.predicted)[: len(pairs)]
    layers = {name: math.exp(shared) for name, shared in _shared(left, names).items()}
    after = _predicted(found, _values(result) | _on_top(layers, found[0].base))
    groups = _configurations(pairs)
    left_out = _left_out(result, names, groups, owners)
    band, source = _band(left_out, groups, known, profile, stack)
    return Lesson(
        stack=stack,
        parameters=_learned(result),
        layers=_on_top(layers, found[0].base),
        band=band,
        band_source=source,
        runs=tuple(
            RunCheck(
                job.row.id, one.measured_s, before[i], after[i],
                None if left_out is None else one.measured_s * math.exp(-left_out[i]),
                bool(abs(left[i]) > OUTLIER),
            )
            for i, (job, one) in enumerate(pairs)
        ),
        num_configurations=len(set(groups)),
        parts=tuple(
            PartCheck(pairs[owner][0].row.id, one.part, one.measured_s, before[i], after[i])
            for i, (owner, one) in enumerate(timed, start=len(pairs))
        ),
    )  # fmt: skip


def _parts(job: Job, whole: Observation) -> list[Observation]:
    """What of a run's step was timed by itself, where the model has such a part."""
    weight = whole.weight * (WITHIN_LAYER / PART_ERROR) ** 2
    found = [
        replace(
            whole, measured_s=part.seconds, weight=weight, part=part.name,
            of_last_rank=part.of_last_rank,
        )
        for part in job.parts
    ]  # fmt: skip
    return [one for one in found if one.predicted_s > 0.0]


def refuse_absurd(run: RunCheck) -> None:
    """Raise `InputError` for a run that no stack explains: it is not what it says."""
    ratio = run.measured_s / run.before_s
    if not 1.0 / ABSURD_RATIO < ratio < ABSURD_RATIO:
        raise InputError(
            f"the step took {format_seconds(run.measured_s)}, {ratio:.3g} times the predicted"
            f" {format_seconds(run.before_s)}",
            why=f"no software is off by more than a factor of {ABSURD_RATIO:g}: the step time,"
            " batch, sequence length or layout must be another",
            fix="correct them",
        )


def _own(free: Sequence[Free], profile: HardwareProfile, stack: str) -> list[Free]:
    """With a profile's earlier estimates as the prior, where it was calibrated on this stack."""
    if profile.software is None:
        return list(free)
    same = profile.software.framework == stack
    known = {p.name: p for p in profile.parameters if p.spread is not None}
    made = []
    for one in free:
        own = known.get(one.name)
        if own is None or own.spread is None or (one.name.startswith("stack.") and not same):
            made.append(one)
        else:
            made.append(Free(one.name, one.scope, own.value, own.spread, one.is_fraction))
    return made


def _predicted(found: Sequence[Observation], values: Mapping[str, float]) -> list[float]:
    """Predicted seconds with these numbers in place of the base's."""
    times = []
    for one in found:
        one.model.reprice({**one.base, **values})
        times.append(one.predicted_s)
    return times


def _values(result: Fit) -> dict[str, float]:
    pairs = zip(result.free, result.z, strict=True)
    return {one.name: one.value(float(z)) for one, z in pairs}


def _learned(result: Fit) -> tuple[Learned, ...]:
    units = {one.name: one.unit for one in priors()}
    # What the model gets wrong for a layout is part of how well its numbers are known.
    known = spreads(replace(result, noise=MODEL_ERROR))
    rows = zip(result.free, result.z, known, strict=True)
    return tuple(
        Learned(
            one.name, units[one.name], one.centre, one.value(float(z)), one.spread, float(spread),
            one.is_fraction,
        )
        for one, z, spread in rows
    )  # fmt: skip


def _layer_of(job: Job, one: Observation) -> str | None:
    """The shape of a run's layers, where its layout is known for sure."""
    if len(job.layouts) > 1:
        return None
    return layer_name(job.case.model, job.case.training, one.layout)


def _shared(left: NDArray[np.float64], names: Sequence[str | None]) -> dict[str, float]:
    """What runs of equal layers have in common beyond the parameters, of the logarithm, by shape;
    nothing where all are of one shape."""
    groups: dict[str, list[float]] = defaultdict(list)
    for residual, name in zip(left, names, strict=True):
        if name is not None:
            groups[name].append(float(residual))
    if len(groups) < 2:
        return {}
    return {name: shared_residual(residuals) for name, residuals in groups.items()}


def _on_top(layers: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """Ratios of layers over those that were known before."""
    return {name: ratio * base.get(name, 1.0) for name, ratio in layers.items()}


def _configurations(pairs: Sequence[tuple[Job, Observation]]) -> list[int]:
    """Equal numbers for runs that repeat one job in one layout: they are left out together."""
    seen: dict[object, int] = {}
    numbers = []
    for job, one in pairs:
        case = job.case
        key = (case.model, case.training, case.software, case.num_gpus, one.layout)
        numbers.append(seen.setdefault(key, len(seen)))
    return numbers


def _left_out(
    result: Fit, names: Sequence[str | None], groups: Sequence[int], owners: Sequence[int]
) -> list[float] | None:
    """Logarithm of measured over predicted of each run, predicted by the other configurations (to
    first order around the estimate); None where these are fewer than `FEWEST_FOR_BAND`.

    ``owners``: by observation, the run that it is of; runs come first.
    """
    if len(set(groups)) < FEWEST_FOR_BAND:
        return None
    found = [0.0] * len(groups)
    members: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    for own in members.values():
        kept = np.array([owner not in own for owner in owners])
        z = result.without(kept)
        left = result.measured - result.predicted - result.jacobian @ (z - result.z)
        shared = _shared(
            left[: len(groups)], [name if kept[i] else None for i, name in enumerate(names)]
        )
        for i in own:
            found[i] = float(left[i]) - shared.get(names[i] or "", 0.0)
    return found


def _band(
    left_out: Sequence[float] | None,
    groups: Sequence[int],
    known: Fitted,
    profile: HardwareProfile,
    stack: str,
) -> tuple[FittedBand, str]:
    """Where 80 % of measured over predicted lie: by the errors of what was left out, else as of
    stacks that the catalogue knows; on an accelerator that it never saw timed, as of others."""
    if left_out is None:
        seen = device_key(profile.devices.accelerator) in known.clocks
        band = known.band_seen if seen else known.band_unseen
        kind = "stacks that are known" if seen else "stacks that are not known"
        return band, f"published runs of {kind}: fewer than {FEWEST_FOR_BAND} configurations"
    return interval_of_errors(left_out, len(set(groups)))


def interval_of_errors(left_out: Sequence[float], count: int) -> tuple[FittedBand, str]:
    """Where 80 % of measured over predicted lie, by the errors of ``count`` configurations."""
    half = _student_p90(count - 1) * statistics.stdev(left_out) * math.sqrt(1.0 + 1.0 / count)
    middle = statistics.fmean(left_out)
    band = FittedBand(low=math.exp(middle - half), high=math.exp(middle + half))
    return band, f"errors of {count} configurations, each predicted by the others"


def _student_p90(freedom: int) -> float:
    """90th percentile of Student's t (Abramowitz and Stegun 26.7.5, two terms)."""
    z = _NORMAL_P90
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
