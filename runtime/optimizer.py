"""AdamW on flat slices, the global gradient norm, and the learning rate.

Each rank updates the slice of every unit that belongs to it, with torch's fused AdamW on views of
flat buffers: one view per run of neighbouring parameters that are all decayed or all not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

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
        self._optimizer = self._bind()

    def _bind(self) -> torch.optim.AdamW | None:
        """torch's optimizer over views of our buffers; None on a stage without parameters."""
        views: dict[bool, list[Tensor]] = {True: [], False: []}
        state: dict[Tensor, dict[str, Tensor]] = {}
        for unit_state in self.states:
            for decayed, place in unit_state.decay_runs():
                view = unit_state.updated[place]
                view.grad = unit_state.unit.gradients[place]
                views[decayed].append(view)
                state[view] = {
                    "step": torch.zeros((), dtype=torch.float32, device=view.device),
                    "exp_avg": unit_state.exp_avg[place],
                    "exp_avg_sq": unit_state.exp_avg_sq[place],
                }
        groups = [
            {"params": views[decayed], "weight_decay": self.spec.weight_decay if decayed else 0.0}
            for decayed in (True, False)
            if views[decayed]
        ]
        if not groups:
            return None
        betas = (self.spec.beta1, self.spec.beta2)
        optimizer = torch.optim.AdamW(
            groups, lr=self.spec.learning_rate, betas=betas, eps=self.spec.epsilon, fused=True
        )
        optimizer.state.update(state)
        return optimizer

    @property
    def num_steps(self) -> int:
        """Updates done so far, on which the bias correction of the moments depends."""
        return self._num_steps

    @num_steps.setter
    def num_steps(self, value: int) -> None:
        self._num_steps = value
        if self._optimizer is not None:
            for state in self._optimizer.state.values():
                state["step"].fill_(value)

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
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
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
