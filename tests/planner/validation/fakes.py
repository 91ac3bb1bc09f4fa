"""Cost models that anyone can check by hand."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.validation.choose import Pricer
from shardwright.planner.validation.results import Job, evaluate
from shardwright.specs import (
    Breakdown,
    Layout,
    MemoryParts,
    ModelSpec,
    Prediction,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.prediction import MemoryVerdict

CAPACITY = 80 * 10**9


def prediction(
    step_s: float = 2.0,
    *,
    peaks: tuple[int, ...] = (10 * 10**9,),
    fixed: int = 10**9,
    band: tuple[float, float] = (0.5, 1.5),
    verdict: MemoryVerdict | None = None,
) -> Prediction:
    memory = tuple(
        MemoryParts(
            weights=peak - fixed, gradients=0, optimizer_state=0, activations=0,
            gathered_weights=0, transient=0, fixed=fixed,
        )
        for peak in peaks
    )  # fmt: skip
    return Prediction(
        step_time_s=step_s,
        step_time_band_s=(band[0] * step_s, band[1] * step_s),
        tokens_per_s=1.0,
        tokens_per_s_per_gpu=1.0,
        mfu=None,
        bubble_fraction=0.0,
        peak_memory_bytes=peaks,
        memory_capacity_bytes=CAPACITY,
        memory_verdict=verdict or ("fits" if max(peaks) <= CAPACITY else "does_not_fit"),
        breakdown=Breakdown(compute_forward=step_s),
        memory=memory,
    )


@dataclass(frozen=True)
class FakePredictor:
    """Prices by a function of the layout and the model."""

    model: ModelSpec
    training: TrainingSpec
    price: Callable[[ModelSpec, Layout], Prediction]

    def predict(self, layout: Layout) -> Prediction:
        return self.price(self.model, layout)


@dataclass(frozen=True)
class FakePricer:
    """A cost model from one function."""

    price: Callable[[ModelSpec, Layout], Prediction]

    def __call__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec,
        /,
    ) -> FakePredictor:
        return FakePredictor(model, training, self.price)


@dataclass(frozen=True, slots=True)
class ScaleFitter:
    """One number per stack: the median of measured over predicted step time.

    A stack that was not seen takes the median of the stacks' numbers. It is the plainest thing that
    can be learned.
    """

    base: Pricer

    def fit(self, jobs: Sequence[Job], *, unseen: Sequence[Job] = ()) -> Pricer:
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
    ) -> FakePredictor:
        scale = self.scales.get(software.framework, self.otherwise)
        base = self.base(model, training, profile, software)

        def price(_: ModelSpec, layout: Layout) -> Prediction:
            return scaled(base.predict(layout), scale)

        return FakePredictor(model, training, price)


def scaled(found: Prediction, scale: float) -> Prediction:
    """The same prediction with every second of the step times ``scale``."""
    low_s, high_s = found.step_time_band_s
    step_s = found.step_time_s * scale
    return found.model_copy(
        update={
            "step_time_s": step_s,
            "step_time_band_s": (low_s * scale, high_s * scale),
            "breakdown": Breakdown(compute_forward=step_s),
        }
    )
