"""`Problem`: what is to be planned. `Constraints`: what the user fixed, forbade and asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import ClusterSpec, InputError, ModelSpec, SoftwareSpec, TrainingSpec

ChoiceValue = int | str | bool | tuple[int, ...]
"""A value of one choice; a tuple holds stage boundaries."""


@dataclass(frozen=True)
class Problem:
    """A model to train, how, on what hardware and with what software."""

    model: ModelSpec
    training: TrainingSpec
    profile: HardwareProfile
    software: SoftwareSpec = field(default_factory=SoftwareSpec)

    @property
    def cluster(self) -> ClusterSpec:
        return self.profile.devices

    @property
    def world(self) -> int:
        """Ranks in all: every device of the cluster is used."""
        return self.cluster.num_devices

    @cached_property
    def num_layers(self) -> int:
        return self.model.decoder.num_layers

    @property
    def num_units(self) -> int:
        """Indivisible pieces in model order: embedding, each layer, final norm with head."""
        return self.num_layers + 2


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit on one number of a layout: ``tp <= 4``, ``peak_memory <= 7.5e10`` (bytes)."""

    name: str
    """Of `bounds_text.BOUNDABLE`."""
    sign: Literal["<=", ">="]
    value: float

    def allows(self, value: float) -> bool:
        """Whether a value keeps the limit."""
        return value <= self.value if self.sign == "<=" else value >= self.value

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.value:.12g}"


PEAK_MEMORY = "peak_memory"
"""The bound on what the fullest rank needs; all others are on choices."""


@dataclass(frozen=True)
class Constraints:
    """What the user decided already.

    ``fixed``: names and values as of `choices.parse_choices`. ``forbidden``: names of
    `space.FORBIDDABLE`, or ``name=value``. ``bounds``: as of `bounds_text.parse_bounds`.
    """

    fixed: Mapping[str, ChoiceValue] = field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()
    top: int = 3
    """Rows wanted in all: the best layout and its runners-up, each with other choices."""
    time_limit_s: float | None = None
    """Stop proving after this long and return the best found, with its gap; but not before one
    was found."""
    bounds: tuple[Bound, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be asked for; raises `InputError`."""
        if self.top < 1:
            raise InputError(f"top = {self.top} asks for no layout", fix="set top to 1 or more")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise InputError(
                f"a time limit of {self.time_limit_s} s leaves no time to search",
                fix="give a positive number of seconds",
            )

    @property
    def are_any(self) -> bool:
        """Whether anything was decided."""
        return bool(self.fixed or self.forbidden or self.bounds)

    def bounds_of(self, name: str) -> list[Bound]:
        """Those on one number."""
        return [bound for bound in self.bounds if bound.name == name]

    def allows(self, name: str, value: object) -> bool:
        """Whether a choice keeps every bound on it; what is no number has none."""
        if isinstance(value, bool) or not isinstance(value, int):
            return True
        return all(bound.allows(value) for bound in self.bounds_of(name))

    @property
    def most_bytes(self) -> float | None:
        """What no rank may need more than; None where only the device limits it."""
        limits = [bound.value for bound in self.bounds_of(PEAK_MEMORY)]
        return min(limits) if limits else None
