"""What single units of a model cost on devices of one group: the embedding, each layer, the head.

Units are priced by `StackModel` as stages of their own. Stages are sums of units, at the pace of
the later of device and host; that is also how `StackModel` prices them, so that no stage is below
what is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.stacks.mixed import MixedModel
from shardwright.cost_models.stacks.step import StageTimes, layer_name
from shardwright.planner.layout_text import recompute_from
from shardwright.planner.problem import Problem
from shardwright.specs import LayerBlock, Layout, Stage
from shardwright.specs.layout import Held

Floats = NDArray[np.float64]

SLACK = 1e-9
"""Relative: sums in another order than the prices' may differ by rounding."""


class Shape(NamedTuple):
    """How a group runs its segment: all that the price of a unit depends on."""

    group: int
    tp: int
    dp: int
    ep: int
    micro_batch: int
    zero: int
    recompute: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a pass takes of which the device alone takes so long, with so many kernels."""

    host_s: float
    sharpness: float
    launches: float
    """At least so many kernels' worth of messages for each pass."""
    ratio: float
    """Of layers that were measured."""

    def seconds(self, device_s: Floats, kernels: Floats) -> Floats:
        """A smooth maximum of device and host; see `cost_models.stacks.step`."""
        if self.host_s <= 0.0:
            return device_s * self.ratio
        host_s = (kernels + self.launches) * self.host_s
        largest = np.maximum(np.maximum(device_s, host_s), 1e-30)
        smooth = (device_s / largest) ** self.sharpness + (host_s / largest) ** self.sharpness
        found: Floats = self.ratio * largest * smooth ** (1.0 / self.sharpness)
        return found


class UnitTable:
    """Sums over the first 0, 1, ... units of a model of one `Shape`."""

    def __init__(self, rows: Floats, pace: Pace) -> None:
        """``rows``: [units, 4], device seconds and kernels of forward and backward."""
        self._sums = np.vstack([np.zeros(4), np.cumsum(rows, axis=0)])
        self._pace = pace

    @cached_property
    def matrix(self) -> Floats:
        """[i, k]: the stage of the units i to k; infinite where it is empty."""
        return self._stage(self._sums[None, :, :] - self._sums[:, None, :])

    @cached_property
    def first(self) -> Floats:
        """[k]: the first k units as one stage."""
        return self._stage(self._sums)

    @cached_property
    def last(self) -> Floats:
        """[i]: all units from i on as one stage."""
        return self._stage(self._sums[-1] - self._sums)

    def _stage(self, parts: Floats) -> Floats:
        pace, parts = self._pace, np.maximum(parts, 0.0)
        forward_s = pace.seconds(parts[..., 0], parts[..., 1])
        backward_s = pace.seconds(parts[..., 2], parts[..., 3])
        is_empty = parts[..., 0] + parts[..., 1] <= 0.0
        found: Floats = np.where(is_empty, np.inf, (forward_s + backward_s) * (1 - SLACK))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class UnitMemory:
    """Bytes on one rank, by the first 0, 1, ... units; admissible for any stage."""

    state: Floats
    saved: Floats
    moments: tuple[tuple[NDArray[np.int64], float], ...]
    """For each kind of unit: how many there are so far, and what one has on top at work."""
    message_bytes: float
    most_live_bytes: float
    """That a rank may hold."""

    def fits(self, in_flight: int, *, is_first: bool, is_last: bool) -> NDArray[np.bool_]:
        """[i, k]: whether the units i to k may fit as a stage with so many micro-batches."""
        state = self.state[None, :] - self.state[:, None]
        kept = self.saved[None, :] - self.saved[:, None]
        kept = np.maximum(0.0, kept + self.message_bytes * (is_last - is_first))
        moment = np.zeros_like(state)
        for counts, size in self.moments:
            held = counts[None, :] > counts[:, None]
            moment = np.maximum(moment, held * size)
        live = state + in_flight * kept + moment
        found: NDArray[np.bool_] = live <= self.most_live_bytes
        return found


class UnitPrices:
    """Unit tables of one problem, each made once."""

    def __init__(self, problem: Problem, pricer: MixedModel) -> None:
        self._problem, self._pricer = problem, pricer
        kinds: dict[LayerBlock, int] = {}
        first_layer: list[int] = []
        kind_of_unit = [0]
        for index, layer in enumerate(problem.model.decoder.layers()):
            if layer not in kinds:
                kinds[layer] = len(kinds)
                first_layer.append(index)
            kind_of_unit.append(1 + kinds[layer])
        kind_of_unit.append(1 + len(kinds))
        self._kind_of_unit = np.array(kind_of_unit)
        self._stages = _unit_stages(first_layer, problem.num_layers)
        self._tables: dict[tuple[Shape, bool], UnitTable] = {}
        self._memory: dict[Shape, UnitMemory] = {}
        self._device_s: dict[Shape, Floats] = {}
        self._optimizer_s: dict[Shape, float] = {}

    def table(self, shape: Shape, *, in_pipeline: bool) -> UnitTable:
        """Seconds for each micro-batch."""
        # Below zero 2 nothing is sharded while a micro-batch runs: only the end of a step differs.
        if shape.zero == 1:
            shape = shape._replace(zero=0)
        key = (shape, in_pipeline)
        if key not in self._tables:
            self._tables[key] = self._make_table(shape, in_pipeline)
        return self._tables[key]

    def device_s(self, shape: Shape) -> Floats:
        """Of each kind of unit, for each micro-batch: what the device alone takes."""
        if shape not in self._device_s:
            model, probe = self._pricer.on_group(shape.group), self._probe(shape)
            ratio = model.parameters.get(
                layer_name(self._problem.model, model.training, probe), 1.0
            )
            rows = np.array([_row(one) for one in self._times(shape)])
            self._device_s[shape] = (rows[:, 0] + rows[:, 2]) * (ratio * (1 - SLACK))
        return self._device_s[shape]

    def sum_of(self, by_kind: Floats) -> float:
        """Over all units of the model."""
        return float(by_kind[self._kind_of_unit].sum())

    def optimizer_s(self, shape: Shape) -> float:
        """Of all units on one rank."""
        if shape not in self._optimizer_s:
            one = np.array([unit.optimizer_s for unit in self._times(shape)])
            self._optimizer_s[shape] = float(one[self._kind_of_unit].sum()) * (1 - SLACK)
        return self._optimizer_s[shape]

    def _times(self, shape: Shape) -> tuple[StageTimes, ...]:
        return self._pricer.on_group(shape.group).stage_times(self._probe(shape))

    def _make_table(self, shape: Shape, in_pipeline: bool) -> UnitTable:
        model, probe = self._pricer.on_group(shape.group), self._probe(shape)
        rows = np.array([_row(one) for one in self._times(shape)])[self._kind_of_unit]
        values = model.parameters
        waiting = 1.0 + values["host.sync_ratio"] * (shape.tp - 1)
        pace = Pace(
            host_s=0.0 if model.software.cuda_graphs else values["stack.host_s"] * waiting,
            sharpness=values["host.sharpness"],
            launches=values["host.message_launches"] * in_pipeline,
            ratio=values.get(layer_name(self._problem.model, model.training, probe), 1.0),
        )
        return UnitTable(rows, pace)

    def memory(self, shape: Shape) -> UnitMemory:
        """Bytes, of stages in a pipeline or alone."""
        if shape not in self._memory:
            model, probe = self._pricer.on_group(shape.group), self._probe(shape)
            sizes = model.stage_bytes(probe)
            state = [one.weights + one.gradients + one.optimizer_state for one in sizes]
            saved = [one.saved for one in sizes]
            self._memory[shape] = UnitMemory(
                state=self._sum(state), saved=self._sum(saved),
                moments=tuple(
                    (self._sum(kind == np.arange(len(sizes))).astype(np.int64),
                     one.working + one.gathered)
                    for kind, one in enumerate(sizes)
                ),
                message_bytes=model.message_bytes(probe),
                most_live_bytes=model.most_live_bytes(probe) * (1 + 1e-6),
            )  # fmt: skip
        return self._memory[shape]

    def _sum(self, by_kind: object) -> Floats:
        values = np.asarray(by_kind, dtype=np.float64)[self._kind_of_unit]
        return np.concatenate([[0.0], np.cumsum(values)])

    def _probe(self, shape: Shape) -> Layout:
        """A layout with a stage for each kind of unit, all on one pipeline rank."""
        plain = Layout.of(
            self._problem.model, self._problem.training, tp=shape.tp, dp=shape.dp, ep=shape.ep,
            micro_batch=shape.micro_batch, zero=shape.zero, sequence_parallel=shape.tp > 1,
        )  # fmt: skip
        count = len(self._stages)
        return plain.model_copy(update={
            "vpp": count, "stages": self._stages,
            "recompute": recompute_from(shape.recompute, count),
        })  # fmt: skip


def _unit_stages(first_layer: list[int], num_layers: int) -> tuple[Stage, ...]:
    ranges: list[tuple[int, int, tuple[Held, ...]]] = [(0, 0, ("embedding",))]
    ranges += [(first, first + 1, ()) for first in first_layer]
    ranges.append((num_layers, num_layers, ("final_norm", "head")))
    return tuple(
        Stage(stage=index, rank=0, chunk=index, layers=(start, stop), holds=holds)
        for index, (start, stop, holds) in enumerate(ranges)
    )


def _row(one: StageTimes) -> tuple[float, float, float, float]:
    """Device seconds and kernels of forward and backward."""
    forward, again = one.forward, one.again
    backward, weight = one.backward_input, one.backward_weight
    return (
        forward.total_s + one.forward_shards_s, forward.kernels,
        backward.total_s + weight.total_s + again.total_s + one.backward_shards_s,
        backward.kernels + weight.kernels + again.kernels,
    )  # fmt: skip
