"""AdamW on flat slices, the global gradient norm, and the learning rate.

Each rank updates the slice of every unit that belongs to it, with torch's fused AdamW on views of
flat buffers: one view per run of neighbouring parameters that are all decayed or all not. It is the
functional form: the class `torch.optim.AdamW` would import torch's compiler, which costs each rank
seconds and memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from shardwright.runtime.parallel.dtypes import torch_dtype
from shardwright.runtime.parallel.shards import ParameterShard
from shardwright.runtime.sharding import FlatUnit
from shardwright.specs import OptimizerSpec, PrecisionDTypes

StateKind = Literal["weight", "master", "exp_avg", "exp_avg_sq"]


@dataclass(frozen=True, slots=True)
class StateEntry:
    """What this rank holds of one parameter's weights or optimizer state."""

    kind: StateKind
    shard: ParameterShard
    """The parameter's global name, and the part of it that this tensor-parallel rank has."""
    start: int
    stop: int
    """Elements [start, stop) of that part, flattened in its local shape, that ``tensor`` holds."""
    tensor: Tensor
    """[stop - start]; a view: writing to it changes the state."""


class UnitState:
    """The optimizer's buffers for one unit, each as long as the unit's slice.

    Attributes:
        updated: what AdamW updates: the master copy, or where the precision has none, the weights.
    """

    def __init__(self, unit: FlatUnit, dtypes: PrecisionDTypes) -> None:
        self.unit = unit
        self.master: Tensor | None = None
        if dtypes.master is not None:
            self.master = unit.weights.to(torch_dtype(dtypes.master), copy=True)
        self.updated = unit.weights if self.master is None else self.master
        moment_dtype = torch_dtype(dtypes.moment)
        self.exp_avg = torch.zeros_like(unit.weights, dtype=moment_dtype)
        self.exp_avg_sq = torch.zeros_like(unit.weights, dtype=moment_dtype)

    def decay_runs(self) -> list[tuple[bool, slice]]:
        """(whether decayed, place in the slice) of the longest runs that are treated alike."""
        runs = []
        for decayed, group in groupby(self.unit.held_parts(), lambda p: p.shard.weight_decay):
            parts = list(group)
            runs.append((decayed, slice(parts[0].place.start, parts[-1].place.stop)))
        return runs

    def copy_to_weights(self) -> None:
        if self.master is not None:
            self.unit.weights.copy_(self.master)

    def buffers(self) -> dict[StateKind, Tensor]:
        found: dict[StateKind, Tensor] = {
            "weight": self.unit.weights,
            "exp_avg": self.exp_avg,
            "exp_avg_sq": self.exp_avg_sq,
        }
        return found if self.master is None else found | {"master": self.master}


@dataclass(frozen=True, slots=True)
class _Runs:
    """Views of all runs that are treated alike, as torch's functional AdamW takes them."""

    weights: list[Tensor]
    gradients: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    steps: list[Tensor]
    """Of each run its count of updates, a float32 scalar."""

    @classmethod
    def of(cls, states: Sequence[UnitState], *, decayed: bool, device: torch.device) -> _Runs:
        runs = [
            (state, place)
            for state in states
            for is_decayed, place in state.decay_runs()
            if is_decayed == decayed
        ]
        return cls(
            weights=[state.updated[place] for state, place in runs],
            gradients=[state.unit.gradients[place] for state, place in runs],
            exp_avgs=[state.exp_avg[place] for state, place in runs],
            exp_avg_sqs=[state.exp_avg_sq[place] for state, place in runs],
            steps=[torch.zeros((), dtype=torch.float32, device=device) for _ in runs],
        )


class FlatAdamW:
    """AdamW (Loshchilov & Hutter 2019) on the slices of flat units."""

    def __init__(
        self,
        units: Sequence[FlatUnit],
        spec: OptimizerSpec,
        dtypes: PrecisionDTypes,
        device: torch.device,
    ) -> None:
        self.units = tuple(units)
        self.spec = spec
        self.states = tuple(UnitState(unit, dtypes) for unit in units)
        self._device = device
        self._num_steps = 0
        self._runs = {
            decayed: _Runs.of(self.states, decayed=decayed, device=device)
            for decayed in (True, False)
        }

    @property
    def num_steps(self) -> int:
        """Updates done so far, on which the bias correction of the moments depends."""
        return self._num_steps

    @num_steps.setter
    def num_steps(self, value: int) -> None:
        self._num_steps = value
        for runs in self._runs.values():
            for step in runs.steps:
                step.fill_(value)

    def squared_gradient_norm(self) -> Tensor:
        """Scalar float64: the squares of the gradients of every element that this rank owns.

        Over all ranks each element of the model is owned once, so the sum over the world is the
        squared norm of the model's gradient.
        """
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for unit in self.units:
            gradients = unit.gradients
            precision = torch.promote_types(gradients.dtype, torch.float32)
            for part in unit.held_parts(owned_only=True):
                norm = torch.linalg.vector_norm(gradients[part.place], dtype=precision)
                total += norm.double().square()
        return total

    def scale_gradients(self, factor: float) -> None:
        for unit in self.units:
            unit.gradients.mul_(factor)

    def step(self, learning_rate: float) -> None:
        """One update of the own slices, from reduced and clipped gradients."""
        self._num_steps += 1
        for decayed, runs in self._runs.items():
            if runs.weights:
                adamw(
                    runs.weights,
                    runs.gradients,
                    runs.exp_avgs,
                    runs.exp_avg_sqs,
                    [],
                    runs.steps,
                    fused=True,
                    amsgrad=False,
                    maximize=False,
                    lr=learning_rate,
                    beta1=self.spec.beta1,
                    beta2=self.spec.beta2,
                    eps=self.spec.epsilon,
                    weight_decay=self.spec.weight_decay if decayed else 0.0,
                )
        for state in self.states:
            state.copy_to_weights()

    def state_entries(self, *, owned_only: bool) -> Iterator[StateEntry]:
        """Weights, master copy and moments by parameter, as views of this rank's slices.

        ``owned_only``: of the ranks that hold the same elements, one alone yields them, so that
        over all ranks every element of the model comes once (for saving); otherwise everything
        that this rank needs to be filled (for loading; call `TrainStep.restored` afterwards).
        """
        for state in self.states:
            for part in state.unit.held_parts(owned_only=owned_only):
                for kind, buffer in state.buffers().items():
                    yield StateEntry(kind, part.shard, part.start, part.stop, buffer[part.place])


def clip_factor(norm: float, clip_norm: float | None) -> float:
    """What gradients are multiplied with so that their norm is at most ``clip_norm``."""
    return 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm


def learning_rate(spec: OptimizerSpec, step: int, num_steps: int) -> float:
    """The rate of step ``step`` (from 0): linear warm-up, then a cosine to the minimum.

    Warm-up ends at step ``warmup_steps`` with the full rate. The minimum is reached at step
    ``decay_steps``, by default ``num_steps``, the length of the run, and kept.
    """
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / (spec.warmup_steps + 1)
    last = spec.decay_steps or num_steps
    progress = min(1.0, (step - spec.warmup_steps) / max(1, last - spec.warmup_steps))
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return spec.min_learning_rate + (spec.learning_rate - spec.min_learning_rate) * cosine
