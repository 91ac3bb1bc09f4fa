"""What exporters read and what they give: a job of ours, and files of other software."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from shardwright.specs import (
    ClusterSpec,
    InputError,
    Layout,
    ModelSpec,
    Plan,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.rules import Violation

_NOTHING: Mapping[str, str] = MappingProxyType({})

FIRST_STEPS = 100
"""Optimizer steps of a job whose plan states no number of tokens: enough to see its speed."""


@dataclass(frozen=True, slots=True)
class Job:
    """The part of a plan that other software can be told."""

    model: ModelSpec
    training: TrainingSpec
    layout: Layout
    cluster: ClusterSpec
    software: SoftwareSpec = field(default_factory=SoftwareSpec)
    environment: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    @classmethod
    def of(cls, plan: Plan) -> Job:
        return cls(
            plan.model, plan.training, plan.layout, plan.cluster, plan.software, plan.environment
        )

    @property
    def num_steps(self) -> int:
        """Optimizer steps: the token budget's, else those until the learning rate ends, else
        `FIRST_STEPS`."""
        if self.training.token_budget is not None:
            return math.ceil(self.training.token_budget / self.training.tokens_per_step)
        return self.training.optimizer.decay_steps or FIRST_STEPS

    @property
    def states_steps(self) -> bool:
        """Whether the plan says how long the job is."""
        optimizer = self.training.optimizer
        return self.training.token_budget is not None or optimizer.decay_steps is not None


@dataclass(slots=True)
class Findings:
    """What an exporter meets on its way: rules that the job breaks, and harmless differences."""

    refused: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, rule: str, problem: str, nearest: str | None = None) -> None:
        """A choice that the target does not have."""
        self.refused.append(Violation(rule, problem, nearest))

    def note(self, text: str) -> None:
        """Something that the target does otherwise, without harm to mathematics or speed."""
        self.notes.append(text)

    def require(self, target: str) -> None:
        """Nothing where nothing was refused.

        Raises:
            InputError: every broken rule at once, with the nearest that would do.
        """
        if self.refused:
            raise cannot_express(target, self.refused)


def cannot_express(target: str, refused: Iterable[Violation]) -> InputError:
    """The error that names every broken rule of a target."""
    broken = list(dict.fromkeys(refused))
    nearest = list(dict.fromkeys(one.nearest for one in broken if one.nearest))
    return InputError(
        f"{target} cannot express this plan: {'; '.join(one.problem for one in broken)}",
        fix=f"plan again with {', and '.join(nearest)}"
        if nearest
        else "export to other software, or train with `shardwright run`",
    )


@dataclass(frozen=True, slots=True)
class Exported:
    """The files for one target. Nothing is on disk yet."""

    target: str
    version: str
    files: Mapping[str, str]
    """Text by file name, the one to start or to pass on first."""
    notes: tuple[str, ...] = ()
    arguments: tuple[tuple[str, ...], ...] = ()
    """Of the training script: each option with its values; empty where a file holds them."""
    environment: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    @property
    def main_file(self) -> str:
        return next(iter(self.files))
