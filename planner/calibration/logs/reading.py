"""`LogReading`: what a training log says, in SI units and in the order in which it was printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

LogKind = Literal[
    "megatron-lm", "megatron-deepspeed", "megatron-bridge", "gpt-neox", "deepspeed", "torchtitan",
    "nemo", "hf-trainer", "nanochat", "shardwright", "theoretical-memory",
]  # fmt: skip
"""Whose lines they are. Forks of Megatron-LM that kept its lines read as ``megatron-lm``."""

MemoryKind = Literal["allocated", "max_allocated", "reserved", "max_reserved"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One line that reports a step, or the mean of the steps since the line before."""

    iteration: int | None = None
    """As printed; from 0 or from 1, anew in each epoch where the software counts so."""
    order: int | None = None
    """Grows over the whole run; None where only ``iteration`` is printed."""
    time_s: float | None = None
    """Of one step, as printed."""
    printed: str | None = None
    """The time as it stands there."""
    global_batch: int | None = None
    """Sequences."""
    samples_per_s: float | None = None
    """Of the whole job."""
    tokens_per_s: float | None = None
    """Of the whole job."""
    tokens_per_s_per_gpu: float | None = None
    flops_per_s_per_gpu: float | None = None
    """By the software's own count of FLOPs: `LogReading.flops_convention`."""
    mfu_fraction: float | None = None
    """By the same count, over the peak that the software believes in."""
    loss: float | None = None
    mean_time_s: float | None = None
    """Of all steps up to this one, where only that is printed."""
    is_mean: bool = False
    """Whether ``samples_per_s`` is the mean since the training's begin."""
    skipped: int = 0
    """Iterations whose update was skipped, for a gradient overflowed."""
    printer: str | None = None
    """Which process printed it, where the line says."""

    @property
    def number(self) -> int | None:
        """What orders it among the others."""
        return self.iteration if self.order is None else self.order


@dataclass(frozen=True, slots=True)
class LoggedMemory:
    """One reading of a device's memory."""

    kind: MemoryKind
    num_bytes: float
    rank: int | None = None
    iteration: int | None = None
    """After so many."""
    device_fraction: float | None = None
    """Of the device's memory, where it is printed beside."""
    text: str | None = None
    """The number as it stands there."""


@dataclass(frozen=True, slots=True)
class LogReading:
    """A training log."""

    source: str
    """The file, as the user named it."""
    kind: LogKind
    steps: tuple[LoggedStep, ...] = ()
    memory: tuple[LoggedMemory, ...] = ()
    timers: tuple[Mapping[str, float], ...] = ()
    """Seconds by name of what the software timed within steps."""
    timers_are: Literal["of the last rank", "of the longest"] = "of the last rank"
    runtimes_s: tuple[float, ...] = ()
    """Of the whole training, as the end of it says."""
    theoretical_bytes: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    """What the software expected to need, by its own words for it."""
    flops_convention: str | None = None
    """How the software counts FLOPs, where it prints a rate of them."""
    stated: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """The configuration that the log prints, under the names of `logs.configuration`."""
    unread: tuple[str, ...] = ()
    """What was seen and not taken, each in words."""

    @property
    def iterations(self) -> tuple[int, ...]:
        """Of each printed step."""
        return _known(step.iteration for step in self.steps)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """As printed; empty where the log prints none."""
        return _known(step.time_s for step in self.steps)

    @property
    def losses(self) -> tuple[float, ...]:
        return _known(step.loss for step in self.steps)

    @property
    def samples_per_s(self) -> tuple[float, ...]:
        return _known(step.samples_per_s for step in self.steps)

    @property
    def flops_per_s_per_gpu(self) -> tuple[float, ...]:
        return _known(step.flops_per_s_per_gpu for step in self.steps)

    @property
    def global_batches(self) -> tuple[int, ...]:
        """Each that was trained with, in the order of their first steps."""
        return tuple(dict.fromkeys(_known(step.global_batch for step in self.steps)))

    def memory_bytes(self, kind: MemoryKind) -> tuple[float, ...]:
        """Every reading of one kind."""
        return tuple(one.num_bytes for one in self.memory if one.kind == kind)


def _known(values: Any) -> tuple[Any, ...]:
    return tuple(value for value in values if value is not None)


@dataclass(slots=True)
class Notes:
    """What readers gather line by line."""

    steps: dict[str, list[LoggedStep]] = field(default_factory=dict)
    """By family of lines: a trainer's own beside those of what it is built upon."""
    memory: list[LoggedMemory] = field(default_factory=list)
    timers: list[dict[str, float]] = field(default_factory=list)
    runtimes_s: list[float] = field(default_factory=list)
    theoretical_bytes: dict[str, float] = field(default_factory=dict)
    stated: dict[str, Any] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    """What tells software of one family apart."""

    def add(self, family: str, *steps: LoggedStep) -> bool:
        """Steps of a family; whether there are any."""
        self.steps.setdefault(family, []).extend(steps)
        return bool(steps)

    def measured_nothing(self) -> bool:
        """Whether nothing but a configuration was read."""
        return not (
            any(self.steps.values()) or self.memory or self.timers or self.runtimes_s
            or self.theoretical_bytes
        )  # fmt: skip
