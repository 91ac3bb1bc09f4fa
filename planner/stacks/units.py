"""What single units of a model cost on a software stack: the embedding, each layer, the head.

Units are priced by `StackModel` itself, as stages of their own: nothing is priced here once more
in another way. Encoders count to the embedding and multi-token prediction to the head, where the
stack puts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.stacks.step import StackModel, StageTimes
from shardwright.planner.layout_text import recompute_from
from shardwright.planner.problem import Problem
from shardwright.planner.stacks.choices import Cut, Grid
from shardwright.specs import LayerBlock, Layout, Stage
from shardwright.specs.layout import Held

Floats = NDArray[np.float64]

FIELDS = (
    "forward_s", "forward_shards_s", "forward_kernels", "input_s", "weight_s", "kernels", "again_s",
    "again_kernels", "backward_shards_s", "exchange_s",
)  # fmt: skip
"""Device seconds and kernels of one micro-batch; ``input_s``, ``weight_s`` and ``kernels`` are of
the backward pass, ``exchange_s`` is part of the passes: what experts' ranks exchange."""
_COLUMN = {name: index for index, name in enumerate(FIELDS)}


@dataclass(frozen=True, slots=True, eq=False)
class UnitTimes:
    """Seconds of one micro-batch, summed over the first 0, 1, ... units."""

    sums: Floats
    """[units + 1, fields]"""
    total_s: tuple[float, ...]
    """Of each unit, forward and backward."""

    def stages(self, edges: NDArray[np.intp]) -> dict[str, Floats]:
        """Each field summed over the units of every stage, given where stages start and end."""
        parts = self.sums[edges[1:]] - self.sums[edges[:-1]]
        return {name: parts[:, column] for name, column in _COLUMN.items()}

    @property
    def total(self) -> dict[str, float]:
        """Each field summed over the model."""
        return dict(zip(FIELDS, map(float, self.sums[-1]), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class UnitBytes:
    """Bytes on one rank, summed over the first 0, 1, ... units; [units + 1] each."""

    state: Floats
    """Weights, gradients and optimizer state."""
    saved: Floats
    """Kept by one micro-batch in flight."""
    moment: float
    """The most that one unit keeps, and has on top while it runs backward."""


class UnitPricer:
    """Prices the units of one model."""

    def __init__(self, problem: Problem, pricer: StackModel) -> None:
        self._problem, self._model, self._pricer = problem, problem.model, pricer
        kinds: dict[LayerBlock, int] = {}
        self._first_layer: list[int] = []
        kind_of_unit = [0]
        for index, layer in enumerate(self._model.decoder.layers()):
            if layer not in kinds:
                kinds[layer] = len(kinds)
                self._first_layer.append(index)
            kind_of_unit.append(1 + kinds[layer])
        kind_of_unit.append(1 + len(kinds))
        self._kind_of_unit = np.array(kind_of_unit)

    def times(
        self, grid: Grid, cut: Cut, recompute: str, zero: int, others: Mapping[str, Any]
    ) -> UnitTimes:
        """Units under one choice of everything but the pipeline."""
        layout = self._probe(grid, cut, recompute, zero, others)
        rows = np.array([_row(one) for one in self._pricer.stage_times(layout)])
        rows = rows[self._kind_of_unit]
        columns = [_COLUMN[name] for name in ("forward_s", "input_s", "weight_s", "again_s")]
        total = rows[:, columns].sum(axis=1)
        sums = np.vstack([np.zeros(len(FIELDS)), np.cumsum(rows, axis=0)])
        return UnitTimes(sums, tuple(map(float, total)))

    def bytes(
        self, grid: Grid, cut: Cut, recompute: str, zero: int, others: Mapping[str, Any]
    ) -> UnitBytes:
        """As `times`."""
        sizes = self._pricer.stage_bytes(self._probe(grid, cut, recompute, zero, others))
        rows = np.array([
            (one.weights + one.gradients + one.optimizer_state, one.saved) for one in sizes
        ])  # fmt: skip
        sums = np.vstack([np.zeros(2), np.cumsum(rows[self._kind_of_unit], axis=0)])
        moment = max(one.saved + one.working for one in sizes)
        return UnitBytes(sums[:, 0], sums[:, 1], moment)

    def _probe(
        self, grid: Grid, cut: Cut, recompute: str, zero: int, others: Mapping[str, Any]
    ) -> Layout:
        """A layout with a stage for each kind of unit, all on one pipeline rank."""
        plain = Layout.of(
            self._model, self._problem.training, tp=grid.tp, cp=grid.cp, dp=grid.dp,
            micro_batch=grid.micro_batch, cp_kind=cut.cp_kind, ep=cut.ep, etp=cut.etp,
            sequence_parallel=cut.sequence_parallel, zero=zero, **others,
        )  # fmt: skip
        count = len(self._stages)
        return plain.model_copy(update={
            "vpp": count, "stages": self._stages, "recompute": recompute_from(recompute, count),
        })  # fmt: skip

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        layers = self._model.decoder.num_layers
        ranges: list[tuple[int, int, tuple[Held, ...]]] = [(0, 0, ("embedding",))]
        ranges += [(first, first + 1, ()) for first in self._first_layer]
        ranges.append((layers, layers, ("final_norm", "head")))
        return tuple(
            Stage(stage=index, rank=0, chunk=index, layers=(start, stop), holds=holds)
            for index, (start, stop, holds) in enumerate(ranges)
        )


def _row(one: StageTimes) -> tuple[float, ...]:
    """The fields of a unit, in the order of `FIELDS`."""
    backward, weight, again = one.backward_input, one.backward_weight, one.again
    return (
        one.forward.total_s, one.forward_shards_s, one.forward.kernels, backward.total_s,
        weight.total_s, backward.kernels + weight.kernels, again.total_s, again.kernels,
        one.backward_shards_s, one.forward.ep_s + backward.ep_s + weight.ep_s,
    )  # fmt: skip
