"""Of the layouts that a row may have run, the cheapest that fits.

Where none fits, the one that needs the least memory is taken: a run that took place did fit, and
that one is the nearest to it. Ties: the first in lexicographic order.
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
    """How many layouts the row left open, all told."""

    @property
    def fits(self) -> bool:
        return self.prediction.memory_verdict != "does_not_fit"

    @property
    def is_at_risk(self) -> bool:
        """Fits only without the margin for fragmentation, or not at all."""
        return self.prediction.memory_verdict != "fits"


def choose(predictor: Predictor, layouts: Sequence[Layout]) -> Choice:
    """The cheapest layout that fits, else the one that needs the least memory.

    Raises:
        ShardwrightError: none of them can be priced; the first one's reason.
    """
    assert layouts
    priced: list[tuple[Layout, Prediction]] = []
    reasons: list[ShardwrightError] = []
    for layout in layouts:
        try:
            priced.append((layout, predictor.predict(layout)))
        except ShardwrightError as error:
            reasons.append(error)
    if not priced:
        raise reasons[0]
    fitting = [one for one in priced if one[1].memory_verdict != "does_not_fit"]
    if fitting:
        layout, prediction = min(fitting, key=lambda one: one[1].step_time_s)
    else:
        layout, prediction = min(
            priced, key=lambda one: (max(one[1].peak_memory_bytes), one[1].step_time_s)
        )
    return Choice(layout, prediction, len(layouts))
