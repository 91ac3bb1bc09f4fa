"""Which cost model prices measured runs, how it is fitted, and what is known of stacks.

`StepModel` describes our own runtime: dense decoders, tp, pp, dp, ZeRO, full recompute. What it
does not describe is refused by name, so that such a row is skipped and not priced as another.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.validation.choose import Predictor, Pricer
from shardwright.planner.validation.results import Job, evaluate
from shardwright.planner.validation.rows import Row
from shardwright.specs import (
    Breakdown,
    InputError,
    Layout,
    ModelSpec,
    Precision,
    Prediction,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.layout import ScheduleName

_PRICED_PRECISIONS = (
    Precision.FP64, Precision.FP32, Precision.FP16, Precision.BF16, Precision.BF16_PURE,
)  # fmt: skip
_PRICED_SCHEDULES = (None, ScheduleName.ONE_F_ONE_B, ScheduleName.GPIPE)


class Fitter(Protocol):
    """Learns a cost model's parameters from measured runs; calibration is fitting to few."""

    def fit(self, jobs: Sequence[Job]) -> Pricer:
        """The cost model with parameters learned from these rows and no others."""
        ...


class OurSteps:
    """`StepModel`, refusing what it does not describe."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec,
        /,
    ) -> None:
        self._training = training
        self._step = StepModel(model, training, profile, replace_framework(software))

    def predict(self, layout: Layout) -> Prediction:
        """The whole step; raises `InputError` for what is not described."""
        problems = list(self._problems(layout))
        if problems:
            raise InputError(f"not priced yet: {', '.join(problems)}")
        return self._step.predict(layout)

    def _problems(self, layout: Layout) -> Iterator[str]:
        if self._training.precision not in _PRICED_PRECISIONS:
            yield f"precision {self._training.precision}"
        if self._training.trainable != "full":
            yield f"trainable = {self._training.trainable}"
        if layout.schedule not in _PRICED_SCHEDULES:
            yield f"schedule {layout.schedule}"
        elif layout.vpp > 1:
            yield f"vpp = {layout.vpp}"
        yield from (f"offload of {what}" for what in layout.offload)


def replace_framework(software: SoftwareSpec) -> SoftwareSpec:
    """Priced as our own runtime, whoever ran."""
    return software.model_copy(update={"framework": SoftwareSpec().framework})


def default_pricer() -> Pricer:
    """The cost model that `validate` scores; prices each layout once."""
    return Remembering.of(OurSteps)


def default_fitter(base: Pricer) -> Fitter:
    """How `validate` learns from rows, starting from the cost model that it scores."""
    return ScaleFitter(base)


def run_defaults(row: Row) -> Mapping[str, Any]:
    """What a row's software is known to do where the row says nothing."""
    return {}


@dataclass(frozen=True, slots=True)
class ScaleFitter:
    """One number per stack: the median of measured over predicted step time.

    A stack that was not seen takes the median of the stacks' numbers. It is the plainest thing that
    can be learned, and so the yardstick for every other way to learn.
    """

    base: Pricer

    def fit(self, jobs: Sequence[Job]) -> Pricer:
        ratios: dict[str, list[float]] = defaultdict(list)
        for job, result in zip(jobs, evaluate(jobs, self.base), strict=True):
            if result.ratio is not None:
                ratios[job.case.software.framework].append(1 / result.ratio)
        scales = {stack: statistics.median(values) for stack, values in ratios.items()}
        return _ScaledPricer(self.base, scales, statistics.median(scales.values() or [1.0]))


@dataclass(frozen=True, slots=True)
class _ScaledPricer:
    base: Pricer
    scales: Mapping[str, float]
    otherwise: float

    def __call__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec,
        /,
    ) -> Predictor:
        scale = self.scales.get(software.framework, self.otherwise)
        return _ScaledPredictor(self.base(model, training, profile, software), scale)


@dataclass(frozen=True, slots=True)
class _ScaledPredictor:
    base: Predictor
    scale: float

    def predict(self, layout: Layout) -> Prediction:
        return scaled(self.base.predict(layout), self.scale)


def scaled(prediction: Prediction, scale: float) -> Prediction:
    """The same prediction with every second of the step times ``scale``."""
    low_s, high_s = prediction.step_time_band_s
    seconds = {name: value * scale for name, value in prediction.breakdown}
    return prediction.model_copy(
        update={
            "step_time_s": prediction.step_time_s * scale,
            "step_time_band_s": (low_s * scale, high_s * scale),
            "tokens_per_s": prediction.tokens_per_s / scale,
            "tokens_per_s_per_gpu": prediction.tokens_per_s_per_gpu / scale,
            "mfu": None if prediction.mfu is None else prediction.mfu / scale,
            "breakdown": Breakdown(**seconds),
        }
    )


@dataclass(slots=True)
class Remembering:
    """A cost model that prices each layout of a job once, however often it is asked.

    Jobs are told apart by the identity of their model and cluster, which rows of a file share.
    """

    base: Pricer
    _made: dict[object, _RememberingPredictor]

    @classmethod
    def of(cls, base: Pricer) -> Remembering:
        return cls(base, {})

    def __call__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec,
        /,
    ) -> Predictor:
        key = (id(model), id(profile), training, software)
        if key not in self._made:
            base = self.base(model, training, profile, software)
            self._made[key] = _RememberingPredictor(base, {}, (model, profile))
        return self._made[key]


@dataclass(slots=True)
class _RememberingPredictor:
    base: Predictor
    known: dict[Layout, Prediction | InputError]
    kept: tuple[ModelSpec, HardwareProfile]
    """Held, so that no other object takes their identity."""

    def predict(self, layout: Layout) -> Prediction:
        if layout not in self.known:
            try:
                self.known[layout] = self.base.predict(layout)
            except InputError as error:
                self.known[layout] = error
        found = self.known[layout]
        if isinstance(found, InputError):
            raise found
        return found
