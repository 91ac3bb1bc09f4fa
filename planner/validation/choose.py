"""Of the layouts that a row may have run, the cheapest that fits.

Spares are layouts to fall back on where no other fits. Where none fits at all, the one that needs
the least memory is taken: a run that took place did fit, and that one is the nearest to it. Ties:
the first in lexicographic order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import (
    Layout,
    ModelSpec,
    Prediction,
    ShardwrightError,
    SoftwareSpec,
    TrainingSpec,
)


class Predictor(Protocol):
    """Prices layouts of one job."""

    def predict(self, layout: Layout) -> Prediction:
        """What the layout costs; raises `ShardwrightError` for what it does not describe."""
        ...


class Pricer(Protocol):
    """A cost model: makes the predictor of a job. A class such as `StepModel` is one."""

    def __call__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec,
        /,
    ) -> Predictor: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The layout that a row is taken to have run, priced."""

    layout: Layout
    prediction: Prediction
    num_open: int
    """How many layouts were priced to find it."""

    @property
    def fits(self) -> bool:
        return self.prediction.memory_verdict != "does_not_fit"

    @property
    def is_at_risk(self) -> bool:
        """Fits only without the margin for fragmentation, or not at all."""
        return self.prediction.memory_verdict != "fits"


def choose(
    predictor: Predictor, layouts: Sequence[Layout], spares: Sequence[Layout] = ()
) -> Choice:
    """The cheapest layout that fits, else the cheapest spare, else the one nearest to fitting.

    Raises:
        ShardwrightError: none of them can be priced; the first one's reason.
    """
    assert layouts
    priced: list[_Priced] = []
    reasons: list[ShardwrightError] = []
    for some in (layouts, spares):
        for layout in some:
            try:
                priced.append((layout, predictor.predict(layout)))
            except ShardwrightError as error:
                reasons.append(error)
        fitting = [one for one in priced if one[1].memory_verdict != "does_not_fit"]
        if fitting:
            layout, prediction = min(fitting, key=lambda one: one[1].step_time_s)
            return Choice(layout, prediction, len(priced))
    if not priced:
        raise reasons[0]
    layout, prediction = min(priced, key=_need)
    return Choice(layout, prediction, len(priced))


_Priced = tuple[Layout, Prediction]


def _need(one: _Priced) -> tuple[int, float]:
    """How much memory a layout needs, and then how long it takes."""
    return max(one[1].peak_memory_bytes), one[1].step_time_s
