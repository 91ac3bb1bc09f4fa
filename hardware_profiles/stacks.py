"""Training software that others wrote: what each stack does, and the few numbers that describe it.

``catalogue_data/stacks.json`` holds facts: kernels, what overlaps, defaults. ``catalogue_data/
fitted.json`` holds numbers that were fitted from published runs: at most six per stack, a sustained
clock per accelerator, and the shape of kernels that all share (`cost_models.stacks.parameters`
lists them). Software that is not listed takes the population's centre.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import AcceleratorSpec, InputError, SoftwareSpec, Spec
from shardwright.specs.training import DType, Precision

_DATA = Path(__file__).parent / "catalogue_data"

_SAME_PART = 0.05
"""Relative difference of memory bandwidth within which a part is the catalogue's."""

OF_SOFTWARE = ("stack.", "layer.", "band.")
"""Of a profile's parameters: those that describe the software that it was calibrated on."""

_PCIE4_BYTES_PER_S = 31e9
"""A x16 port of the fourth generation, after coding (PCI-SIG)."""
_HOST_LINK_SHARE = 0.8
"""25 of 31 GB/s: large pinned copies on PCIe 4 (recalled)."""

GENERIC = "generic"
"""The stack that stands for mature software that nothing more is known of."""


class StackDefaults(Spec):
    """What a stack does where its user says nothing; null = nothing is customary."""

    zero: Literal[0, 1, 2, 3] | None = None
    sequence_parallel: bool | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    gradient_dtype: dict[Precision, DType] = Field(default_factory=dict)
    """Of the gradient buffer, where it is not the precision's own."""


class StackFacts(Spec):
    """One generation of one framework."""

    name: str
    description: str
    software: SoftwareSpec
    defaults: StackDefaults = StackDefaults()
    source: str


class Prior(Spec):
    """What is believed of a parameter before any run: its centre, and the standard deviation of its
    logarithm (of its log-odds, where ``is_fraction``)."""

    name: str
    scope: Literal["all", "device", "stack"]
    centre: float = Field(gt=0)
    spread: float = Field(gt=0)
    is_fraction: bool = False
    unit: str
    source: str


class FittedBand(Spec):
    """Ratios of measured to predicted between which 80 % of measurements lie."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)


class Seen(Spec):
    """How far the fitted runs reach; beyond, predictions extrapolate."""

    num_gpus: int
    seq_len: int
    hidden_size: int
    blocks: tuple[str, ...]
    """Kinds of blocks that their layers are made of."""


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
    band_unmeasured: FittedBand
    """Where the accelerator itself was never timed, whatever the stack."""
    layers: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By stack: what runs of equal layers say beyond the parameters (``layer.<shape>``). The
    catalogue holds none; a calibration on many runs of one's own does."""
    seen: Seen | None = None
    num_runs: dict[str, int] = Field(default_factory=dict)
    """By stack: how many runs it was fitted from."""

    def band(self, stack: str | None, device: str) -> FittedBand:
        """The band of predictions for a stack on an accelerator (its `device_key`)."""
        if device not in self.clocks:
            return self.band_unmeasured
        return self.band_seen if stack in self.stacks else self.band_unseen


@functools.cache
def fitted() -> Fitted:
    """The fitted numbers of the catalogue."""
    path = _DATA / "fitted.json"
    return Fitted.from_json(path.read_text(encoding="utf-8"), source=path.name)


@functools.cache
def priors() -> tuple[Prior, ...]:
    """What is believed of every fitted parameter before any run."""
    rows = json.loads((_DATA / "priors.json").read_text(encoding="utf-8"))
    return tuple(Prior.model_validate(row) for row in rows)


def device_key(accelerator: AcceleratorSpec) -> str:
    """By which a clock is kept: the slug, and the memory bandwidth where it is another part's."""
    try:
        entry = catalogue.accelerator_entry(accelerator.name)
    except InputError:
        return accelerator.name
    listed = entry.memory_bandwidth.in_base_units("bytes_per_s")
    own = accelerator.memory_bandwidth_bytes_per_s
    if abs(own / listed - 1.0) < _SAME_PART:
        return accelerator.name
    return f"{accelerator.name}@{own / 1e9:.0f}GB/s"


@functools.cache
def _facts() -> dict[str, StackFacts]:
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

    A profile's own parameters win: what was calibrated or measured there is better. Those of
    software, and a band, count only where the profile was calibrated on this very stack.
    """
    known = known or fitted()
    values: dict[str, float] = {key: centre for key, (centre, _) in known.population.items()}
    values |= known.kernels
    values |= known.stacks.get(name or GENERIC, {})
    values |= known.layers.get(name or GENERIC, {})
    key = device_key(profile.devices.accelerator)
    values["clock.sustained_ratio"] = known.clocks.get(key, known.clock_population[0])
    values["host.link_bytes_per_s"] = _host_link_bytes_per_s(profile.devices.accelerator)
    band = known.band(name, key)
    values |= {"band.low_ratio": band.low, "band.high_ratio": band.high}
    calibrated = profile.software is not None and profile.software.framework == (name or GENERIC)
    return values | {
        parameter.name: parameter.value
        for parameter in profile.parameters
        if calibrated or not parameter.name.startswith(OF_SOFTWARE)
    }


def _host_link_bytes_per_s(accelerator: AcceleratorSpec) -> float:
    """What copies between host and device reach: `_HOST_LINK_SHARE` of the port's rate."""
    try:
        port = catalogue.accelerator_entry(accelerator.name).host_bandwidth
    except InputError:
        port = None
    rate = _PCIE4_BYTES_PER_S if port is None else port.in_base_units("bytes_per_s")
    return rate * _HOST_LINK_SHARE


def defaults_of(name: str | None, precision: str | None = None) -> Mapping[str, Any]:
    """A stack's software fields and defaults by name, for readers of measured runs."""
    facts = stack_facts(name)
    found: dict[str, Any] = facts.software.model_dump(exclude={"framework"})
    stated = facts.defaults.model_dump(exclude={"gradient_dtype"})
    found |= {key: value for key, value in stated.items() if value is not None}
    dtype = facts.defaults.gradient_dtype.get(Precision(precision)) if precision else None
    return found | ({"gradient_dtype": dtype} if dtype else {})


def framework_of_run(stack: str | None, zero: int | None) -> str:
    """The stack of the catalogue that a published run used.

    Runs of Megatron-LM 2021 with ZeRO 3 are DeepSpeed's, which that paper compared itself with.
    Megatron-DeepSpeed without ZeRO is that of 2023, as vTrain's authors ran it.
    """
    if stack == "megatron-lm-2021" and zero == 3:
        return "deepspeed-zero3-2021"
    if stack == "megatron-deepspeed" and zero == 0:
        return "megatron-deepspeed-2023"
    return stack or GENERIC
