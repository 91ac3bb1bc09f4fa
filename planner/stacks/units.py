"""What single units of a model cost on a software stack: the embedding, each layer, the head.

Units are priced by `StackModel` itself, as stages of their own: nothing is priced here once more
in another way. Encoders count to the embedding and multi-token prediction to the head, where the
stack puts them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardwright.cost_models.stacks.memory import StageBytes
from shardwright.cost_models.stacks.step import StackModel, StageTimes
from shardwright.cost_models.stacks.updates import Trained
from shardwright.planner.layout_text import recompute_from
from shardwright.planner.problem import Problem
from shardwright.planner.stacks.choices import Cut, Grid, State, cut_fields, state_fields
from shardwright.specs import LayerBlock, Layout, PredictionBlock, Stage
from shardwright.specs.layout import Held

ALONE = State(0, 1, 1, True, "none", "tp-cp-dp-pp")
"""Nothing sharded, nothing offloaded."""

Sums = tuple[float, ...]
"""Of the first 0, 1, ... units: [units + 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitTimes:
    """Device seconds and kernels of one micro-batch, summed over the first 0, 1, ... units."""

    forward_s: Sums
    forward_kernels: Sums
    input_s: Sums
    """Of the gradient of the input, without what is computed again."""
    weight_s: Sums
    kernels: Sums
    """Of the whole backward pass, without what is computed again."""
    exchange_s: Sums
    """Of both passes, what experts' ranks exchange."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitAgain:
    """What a policy computes again for one micro-batch, and what is then still kept."""

    seconds: Sums
    kernels: Sums
    saved_bytes: Sums
    """By one micro-batch in flight."""
    working_bytes: tuple[float, ...]
    """Of each unit, on top while it runs backward."""
    unit_bytes: tuple[float, ...]
    """Of each unit, the largest of its parts that one micro-batch keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitState:
    """What units hold at all times, on one rank; summed over the first 0, 1, ... units."""

    held_bytes: Sums
    """Weights, gradients and optimizer state, without what is offloaded."""
    step_copy_bytes: Sums
    weight_bytes: Sums
    """Where weights are offloaded."""
    unit_bytes: tuple[float, ...]
    """Of each unit, the largest of its parts, where weights are offloaded."""
    whole_bytes: tuple[float, ...]
    """Of each unit's weights, where they are made whole for its passes."""
    whole_gradient_bytes: tuple[float, ...]
    dense: Sums
    """Trained parameters, routed experts apart."""
    experts: Sums
    tied: float
    """Of the last unit, those of a table that the first has a copy of, where it is on another
    rank."""


class UnitPricer:
    """Prices the units of one model."""

    def __init__(self, problem: Problem, pricer: StackModel, others: Mapping[str, Any]) -> None:
        """``others``: fields of every layout that are not searched."""
        self._problem, self._model, self._pricer = problem, problem.model, pricer
        self._others = others
        kinds: dict[LayerBlock, int] = {}
        self._first_layer: list[int] = []
        kind_of_unit = [0]
        for index, layer in enumerate(self._model.decoder.layers()):
            if layer not in kinds:
                kinds[layer] = len(kinds)
                self._first_layer.append(index)
            kind_of_unit.append(1 + kinds[layer])
        kind_of_unit.append(1 + len(kinds))
        self.kind_of_unit = tuple(kind_of_unit)
        self.has_encoders = len(self._model.towers) > 1
        self.has_predictions = any(
            isinstance(block, PredictionBlock) for block in self._model.decoder.blocks
        )
        self.num_layers_of_kind = tuple(kind_of_unit.count(1 + kind) for kind in range(len(kinds)))

    def _spread(self, by_kind: Sequence[float]) -> tuple[float, ...]:
        """Of each unit, from those of each kind."""
        return tuple(map(by_kind.__getitem__, self.kind_of_unit))

    def _sums(self, by_kind: Sequence[float]) -> Sums:
        return (0.0, *itertools.accumulate(self._spread(by_kind)))

    def times(self, grid: Grid, cut: Cut) -> UnitTimes:
        """Without recomputation, and without adding gradients up; pp and dp have no part in it."""
        layout = self.probe(grid, cut, ALONE)
        rows, added_s = self._pricer.stage_times(layout), self._pricer.accumulation_s(layout)
        return UnitTimes(
            self._sums([one.forward.total_s for one in rows]),
            self._sums([one.forward.kernels for one in rows]),
            self._sums([one.backward_input.total_s for one in rows]),
            self._sums(
                [
                    one.backward_weight.total_s - own_s
                    for one, own_s in zip(rows, added_s, strict=True)
                ]
            ),
            self._sums([one.backward_input.kernels + one.backward_weight.kernels for one in rows]),
            self._sums([one.forward.ep_s + one.backward_input.ep_s for one in rows]),
        )

    def accumulation_s(self, grid: Grid, cut: Cut, state: State) -> Sums:
        """What adding a micro-batch's gradients takes where no product does it by itself."""
        layout = self.probe(grid._replace(micro_batch=1), cut, state, is_apart=grid.pp > 1)
        return self._sums(self._pricer.accumulation_s(layout))

    def again(self, grid: Grid, cut: Cut, recompute: str, loss_chunks: int) -> UnitAgain:
        """Under one policy. More than one chunk of the loss makes its logits again, which counts
        here."""
        layout = self.probe(grid, cut, ALONE, recompute, loss_chunks)
        rows = self._pricer.stage_times(layout)
        sizes = self._pricer.stage_bytes(layout)
        seconds = [one.again.total_s for one in rows]
        kernels = [one.again.kernels for one in rows]
        if loss_chunks > 1:
            whole = self._pricer.stage_times(self.probe(grid, cut, ALONE, recompute))[-1]
            seconds[-1] += rows[-1].backward_input.total_s - whole.backward_input.total_s
            kernels[-1] += rows[-1].backward_input.kernels - whole.backward_input.kernels
        return UnitAgain(
            self._sums(seconds),
            self._sums(kernels),
            self._sums([one.saved for one in sizes]),
            self._spread([one.working for one in sizes]),
            self._spread([one.largest_saved for one in sizes]),
        )

    def shards(
        self, grid: Grid, cut: Cut, state: State, recompute: str, loss_chunks: int
    ) -> tuple[Sums, Sums]:
        """Exposed seconds of what is gathered, scattered and moved beside each pass (forward,
        backward)."""
        rows: Sequence[StageTimes] = self._pricer.stage_times(
            self.probe(grid, cut, state, recompute, loss_chunks)
        )
        return (
            self._sums([one.forward_shards_s for one in rows]),
            self._sums([one.backward_shards_s for one in rows]),
        )

    def state(self, grid: Grid, cut: Cut, state: State) -> UnitState:
        """Micro-batch and sequence have no part in it."""
        layout = self.probe(grid._replace(micro_batch=1), cut, state, is_apart=grid.pp > 1)
        sizes, trained = self._pricer.stage_bytes(layout), self._pricer.trained(layout)
        is_away = "parameters" in state.offload
        return UnitState(
            self._sums([_held(one, state.offload) for one in sizes]),
            self._sums([one.step_copy * ("optimizer" not in state.offload) for one in sizes]),
            self._sums([one.weights * is_away for one in sizes]),
            self._spread([one.largest_unit * is_away for one in sizes]),
            self._spread([sum(one.wholes[:1]) for one in sizes]),
            self._spread([one.whole_gradient for one in sizes]),
            self._sums([one.dense for one in trained]),
            self._sums([one.experts for one in trained]),
            trained[-1].tied,
        )

    def probe(
        self,
        grid: Grid,
        cut: Cut,
        state: State,
        recompute: str = "none",
        loss_chunks: int = 1,
        *,
        is_apart: bool = False,
    ) -> Layout:
        """A layout with a stage for each kind of unit, all on one pipeline rank; ``is_apart``: the
        last on another, as where a tied table has a copy at both ends."""
        plain = Layout.of(
            self._model, self._problem.training, tp=grid.tp, cp=grid.cp, dp=grid.dp,
            micro_batch=grid.micro_batch, loss_chunks=loss_chunks, **cut_fields(cut),
            **state_fields(state), **self._others,
        )  # fmt: skip
        stages = self._stages_apart if is_apart else self._stages
        update: dict[str, Any] = {
            "vpp": len(stages), "stages": stages,
            "recompute": recompute_from(recompute, len(stages)),
        }  # fmt: skip
        if is_apart:
            update["pp"] = 2
        elif grid.pp > 1 and state.rank_order != ALONE.rank_order:
            update |= {"pp": grid.pp}  # how far copies are apart
        return plain.model_copy(update=update)

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

    @cached_property
    def _stages_apart(self) -> tuple[Stage, ...]:
        *others, last = self._stages
        return (*others, last.model_copy(update={"rank": 1}))


def _held(one: StageBytes, offload: str) -> float:
    kept = one.gradients
    if "parameters" not in offload:
        kept += one.weights
    if "optimizer" not in offload:
        kept += one.optimizer_state
    return kept


def rank_trained(state: UnitState, num_ranks: int) -> Trained:
    """What the rank that trains most has at the least."""
    return Trained(state.dense[-1] / num_ranks, state.experts[-1] / num_ranks, state.tied)
