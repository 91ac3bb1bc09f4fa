"""One training step of one rank: the single place that performs *Step* of the architecture.

(1) valid tokens, summed over dp; (2) the schedule; (3) reductions, unit by unit; (4) one all_reduce
over the world of [loss, squared gradient norm]; (5) clip and AdamW on the own slices; (6) weights
published to the ranks that keep full copies (ZeRO 1, 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright.runtime.models import RankModule
from shardwright.runtime.optimizer import FlatAdamW, clip_factor
from shardwright.runtime.parallel.dtypes import promoted
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.loss import IGNORE_INDEX
from shardwright.runtime.pipeline import MicroBatch, PipelineExecutor
from shardwright.runtime.sharding import FlatUnit, ShardPlan, flatten_units
from shardwright.runtime.stopwatch import during
from shardwright.specs import Layout, Schedule, TrainingSpec


@dataclass(frozen=True, slots=True)
class StepResult:
    """What every rank knows after a step. Where a number is not finite, no weight was changed."""

    loss: float
    """Mean over the valid tokens of the whole batch."""
    grad_norm: float
    """Of the whole model's gradient, before clipping."""
    valid_tokens: int
    """Labels of the whole batch that are not ignored."""

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class TrainStep:
    """The state of training on this rank (flat units, optimizer, pipeline) and its one verb.

    Attributes:
        units: the flat units of this rank's stages in unit order.
        optimizer: holds the optimizer state; `FlatAdamW.state_entries` exposes it by global name.
    """

    def __init__(
        self,
        model: RankModule,
        layout: Layout,
        training: TrainingSpec,
        groups: ParallelGroups,
        schedule: Schedule,
    ) -> None:
        """Takes over the model's parameters. ``schedule`` is the plan's, of all pipeline ranks."""
        self.layout = layout
        self.training = training
        self.groups = groups
        self.units: tuple[FlatUnit, ...] = flatten_units(
            model.units, ShardPlan.of(layout, groups), training.dtypes
        )
        hidden = model.hidden_like
        self._device, self._loss_dtype = hidden.device, promoted(hidden.dtype)
        self.optimizer = FlatAdamW(self.units, training.optimizer, training.dtypes, self._device)
        self._executor = PipelineExecutor(model.stages, schedule, groups.coordinates.pp, groups.pp)

    def run(self, micro_batches: Sequence[MicroBatch], learning_rate: float) -> StepResult:
        """One step over this dp rank's micro-batches of (tokens, labels), each [B, T] int64.

        Labels are the next tokens; -100 is ignored. Every tp and pp rank of a dp rank is given the
        same micro-batches.
        """
        result = self.accumulate(micro_batches)
        if result.is_finite:
            factor = clip_factor(result.grad_norm, self.training.optimizer.clip_norm)
            with during("optimizer"):
                if factor < 1:
                    self.optimizer.scale_gradients(factor)
                self.optimizer.step(learning_rate)
            self._publish_weights()
        return result

    def accumulate(self, micro_batches: Sequence[MicroBatch]) -> StepResult:
        """The step up to its reduced, unclipped gradients; weights stay as they are."""
        assert len(micro_batches) == self.layout.micro_batches
        with during("optimizer"):
            for unit in self.units:
                unit.zero_gradients()
        valid_tokens = self._count_valid_tokens(micro_batches)
        loss_gradient = torch.tensor(
            1 / max(1, valid_tokens), dtype=self._loss_dtype, device=self._device
        )
        loss_sum = self._executor.run(micro_batches, loss_gradient)
        for unit in self.units:
            unit.reduce()
        loss, squared_norm = self._sum_over_world(loss_sum * loss_gradient)
        return StepResult(loss, math.sqrt(squared_norm), valid_tokens)

    def restored(self, num_steps: int) -> None:
        """After `state_entries` were filled from a checkpoint of step ``num_steps``."""
        self.optimizer.num_steps = num_steps
        self._publish_weights()

    def _publish_weights(self) -> None:
        for unit in self.units:
            unit.publish_weights()

    def _count_valid_tokens(self, micro_batches: Sequence[MicroBatch]) -> int:
        counts = [(labels != IGNORE_INDEX).sum() for _, labels in micro_batches]
        total = torch.stack(counts).sum().to(self._device)
        if self.groups.dp is not None:
            with during("dp_comm"):
                dist.all_reduce(total, group=self.groups.dp)
        return int(total)

    def _sum_over_world(self, loss: Tensor) -> list[float]:
        """[loss, squared gradient norm], of which each rank has a part."""
        counts_loss = self.groups.coordinates.tp == 0
        with during("optimizer"):
            norm = self.optimizer.squared_gradient_norm().to(self._device)
        sums = torch.stack([loss.double() * counts_loss, norm])
        if self.layout.world > 1:
            with during("waiting"):  # for the slowest rank
                dist.all_reduce(sums)
        return sums.tolist()
