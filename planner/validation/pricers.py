"""Which cost model prices measured runs, and how it is fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.validation.choose import Predictor, Pricer
from shardwright.planner.validation.results import Job, KnowsMemoryKinds, Skip, peaks_of_kind
from shardwright.planner.validation.rows import MemoryKind
from shardwright.planner.validation.stack_fits import StackPricer, StackStudy
from shardwright.specs import (
    InputError,
    Layout,
    ModelSpec,
    Prediction,
    SoftwareSpec,
    TrainingSpec,
)


class Fitter(Protocol):
    """Learns a cost model's parameters from measured runs; calibration is fitting to few."""

    def fit(self, jobs: Sequence[Job], *, unseen: Sequence[Job] = ()) -> Pricer:
        """The cost model with parameters learned from these rows and no others.

        ``unseen``: rows that will be scored, of which nothing may be known from before either.
        """
        ...


def default_pricer() -> Pricer:
    """The cost model that `validate` scores; prices each layout once."""
    return Remembering.of(StackPricer())


def default_fitter(items: Sequence[Job | Skip], *, forget: bool = False) -> Fitter:
    """How `validate` learns from a file's rows.

    ``forget``: a calibration starts from what is known without the rows' own stack.
    """
    return StackStudy([item for item in items if isinstance(item, Job)], forget=forget)


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

    def memory_of_kind(self, layout: Layout, kind: MemoryKind) -> Sequence[int]:
        """Peak bytes of each pipeline rank as that kind of measurement reads them."""
        if isinstance(self.base, KnowsMemoryKinds):
            return self.base.memory_of_kind(layout, kind)
        return peaks_of_kind(self.predict(layout), kind, self.kept[1])
