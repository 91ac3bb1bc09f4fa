"""`Reading`: what a file of other software says of a training job, in our nouns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from shardwright.planner.problem import ChoiceValue
from shardwright.specs import Layout, ModelSpec, TrainingSpec

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reading:
    """One job as a file describes it. What the file leaves open is None, never guessed."""

    source: str
    """The file, as the user named it."""
    target: str
    """Whose file it is: ``megatron-lm``, ``torchtitan``, ``deepspeed``, ``accelerate``."""
    model: ModelSpec | None = None
    """None where the file does not state all of its sizes."""
    training: TrainingSpec | None = None
    """None where batch or sequence length are not stated."""
    layout: Layout | None = None
    """None where the model, the batch or the number of devices is not known."""
    choices: Mapping[str, ChoiceValue] = field(default_factory=lambda: _NOTHING)
    """The layout's choices as `layout_text.normalise_choices` gives them, without ``dp``: what is
    left of the world. They hold where ``layout`` is None, too, and on another number of devices."""
    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    accelerator: str | None = None
    """As the file names it (``a100``); None where it does not."""
    software: str | None = None
    """A stack of `hardware_profiles.stacks` that fits what the file belongs to."""
    environment: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Variables that the job is started with."""
    arguments: tuple[tuple[str, ...], ...] = ()
    """Each option with its values, as read and in order."""
    stated: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """What the file itself states, under the names of ``import --json``; None where it does not."""
    assumed: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Defaults of the other software that were taken, by name."""
    unread: tuple[str, ...] = ()
    """What could not be read or has no counterpart here, each in words."""
    conflicts: tuple[str, ...] = ()
    """Where the file contradicts itself or the other software's rules, each in words."""
