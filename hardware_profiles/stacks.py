"""Training software that others wrote: what each stack does, and the few numbers that describe it.

``catalogue_data/stacks.json`` holds facts: kernels, what overlaps, defaults. ``catalogue_data/
fitted.json`` holds numbers that were fitted from published runs: at most six per stack, a sustained
clock per accelerator, and the shape of kernels that all share (`cost_models.stacks.parameters`
lists them). Software that is not listed takes the population's centre.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import SoftwareSpec, Spec
from shardwright.specs.training import DType, Precision

_DATA = Path(__file__).parent / "catalogue_data"

GENERIC = "generic"
"""The stack that stands for mature software that nothing more is known of."""


class StackDefaults(Spec):
    """What a stack does where its user says nothing; null = nothing is customary."""

    zero: Literal[0, 1, 2, 3] | None = None
    sequence_parallel: bool | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    gradient_dtype: dict[Precision, DType] = {}
    """Of the gradient buffer, where it is not the precision's own."""


class StackFacts(Spec):
    """One generation of one framework."""

    name: str
    description: str
    software: SoftwareSpec
    defaults: StackDefaults = StackDefaults()
    source: str


class FittedBand(Spec):
    """Ratios of measured to predicted between which 80 % of measurements lie."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)


class Fitted(Spec):
    """Numbers fitted from published runs, and how."""

    fitted_from: str
    kernels: dict[str, float]
    """Shared by all."""
    clocks: dict[str, float]
    """``clock.sustained_ratio`` by accelerator slug."""
    stacks: dict[str, dict[str, float]]
    """By stack name."""
    population: dict[str, tuple[float, float]]
    """By parameter: the centre over stacks, and the standard deviation of its logarithm (of its
    log-odds for fractions)."""
    clock_population: tuple[float, float]
    band_seen: FittedBand
    """For a stack of the catalogue."""
    band_unseen: FittedBand
    """For any other."""
    num_runs: dict[str, int] = {}
    """By stack: how many runs it was fitted from."""


@functools.cache
def fitted() -> Fitted:
    """The fitted numbers of the catalogue."""
    path = _DATA / "fitted.json"
    return Fitted.from_json(path.read_text(encoding="utf-8"), source=path.name)


@functools.cache
def _facts() -> dict[str, StackFacts]:
    import json

    rows = json.loads((_DATA / "stacks.json").read_text(encoding="utf-8"))
    return {row["name"]: StackFacts.model_validate_json(json.dumps(row)) for row in rows}


def list_stacks() -> list[str]:
    """Names that `stack_facts` knows."""
    return sorted(_facts())


def stack_facts(name: str | None) -> StackFacts:
    """What is known of a stack; of one that is not listed, what is customary today."""
    return _facts().get(name or GENERIC, _facts()[GENERIC])


def is_known(name: str | None) -> bool:
    """Whether numbers were fitted for a stack."""
    return name in fitted().stacks


def stack_parameters(
    name: str | None, profile: HardwareProfile, known: Fitted | None = None
) -> dict[str, float]:
    """Every number that pricing this stack on these devices reads, by name.

    A profile's own parameters win: what was calibrated or measured there is better.
    """
    known = known or fitted()
    values: dict[str, float] = {key: centre for key, (centre, _) in known.population.items()}
    values |= known.kernels
    values |= known.stacks.get(name or GENERIC, {})
    slug = profile.devices.accelerator.name
    values["clock.sustained_ratio"] = known.clocks.get(slug, known.clock_population[0])
    band = known.band_seen if name in known.stacks else known.band_unseen
    own = {parameter.name: parameter.value for parameter in profile.parameters}
    own.pop("band.low_ratio", None), own.pop("band.high_ratio", None)
    values |= {"band.low_ratio": band.low, "band.high_ratio": band.high}
    return values | own


def defaults_of(name: str | None, precision: str | None = None) -> Mapping[str, Any]:
    """A stack's software fields and defaults by name, for readers of measured runs."""
    facts = stack_facts(name)
    found: dict[str, Any] = facts.software.model_dump(exclude={"framework"})
    stated = facts.defaults.model_dump(exclude={"gradient_dtype"})
    found |= {key: value for key, value in stated.items() if value is not None}
    dtype = facts.defaults.gradient_dtype.get(Precision(precision)) if precision else None
    return found | ({"gradient_dtype": dtype} if dtype else {})
