"""Lower bounds on the step time and the memory of layouts whose boundaries are open.

F and B are the whole model's seconds for one micro-batch, forward and backward, without what is
computed again; p ranks share them, m micro-batches pass. Whatever the boundaries,

- some rank has at least (F + B) / p to do, and of each kind of layer a p-th, rounded up;
- one micro-batch goes there and back;
- where every rank has one stage, rank i starts after the forwards of those before it and, where
  the backward is not split, their backwards follow its last: with t_i its own seconds for a
  micro-batch the step takes t_0 + ... + t_{i-1} + m t_i at least (forwards alone before, where it
  is split). Ranks that all use up a step S do S (1 - (1 - 1/m)^p) together.

`StackModel` only ever adds to these. A stage's host and device run side by side, each waiting for
the other at times: all stages together take no less than they would as one (Minkowski).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost_models.pipeline.fast import in_flight
from shardwright.planner.stacks.choices import Cut, Grid, Leaf, Pipeline, State
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.rooms import SLACK, Floats, Path, Rooms
from shardwright.planner.stacks.units import ALONE
from shardwright.specs import ScheduleName
from shardwright.specs.layout import UNSPLIT, V_SHAPED


@dataclass(frozen=True, slots=True)
class ShapeWork:
    """A micro-batch through the whole model on the ranks of one shape."""

    forward_s: float
    input_s: float
    backward_s: float
    """With ``input_s``."""
    layer_s: tuple[float, ...]
    """Of a layer of each kind, forward and backward."""
    forward_ratio: float
    """Of a layer's seconds, those of its forward pass at the least."""
    there_and_back_ratio: float
    """Of a layer's and of the head's seconds, those of the forward pass and of the gradient of the
    input at the least."""
    overlap_ratio: float
    """What an overlapped pair takes of both passes' seconds."""

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


def shape_work(prices: StackPrices, grid: Grid, cut: Cut) -> ShapeWork:
    """At the pace of the later of device and host, without messages between stages."""
    times, pricer, units = prices.times(grid, cut), prices.pricer, prices.units
    ratio = prices.measured_ratio(grid, cut)

    def paced(device_s: float, kernels: float) -> float:
        return ratio * pricer.at_host_pace_s(device_s, kernels, grid.tp)

    device_s = times.input_s[-1] + times.weight_s[-1]

    def unit_s(at: int) -> tuple[float, float, float]:
        forward_s, input_s, weight_s, kernels, forward_kernels = (
            sums[at + 1] - sums[at]
            for sums in (times.forward_s, times.input_s, times.weight_s, times.kernels,
                         times.forward_kernels)
        )  # fmt: skip
        forward_s = paced(forward_s, forward_kernels)
        total_s = forward_s + paced(input_s + weight_s, kernels)
        return total_s, forward_s / total_s, (forward_s + ratio * input_s) / total_s

    num_kinds = len(units.num_layers_of_kind)
    layers = [unit_s(units.kind_of_unit.index(1 + kind)) for kind in range(num_kinds)]
    last = unit_s(len(units.kind_of_unit) - 1)
    whole_s = times.forward_s[-1] + device_s
    dispatch_s = min(times.exchange_s[-1], whole_s - times.exchange_s[-1])
    overlapped_s = pricer.exposed_s(whole_s, dispatch_s, gradients=None)
    return ShapeWork(
        paced(times.forward_s[-1], times.forward_kernels[-1]),
        ratio * times.input_s[-1],
        paced(device_s, times.kernels[-1]),
        tuple(layer[0] for layer in layers),
        min(layer[1] for layer in layers) * (1 - SLACK),
        min(layer[2] for layer in (*layers, last)) * (1 - SLACK),
        overlapped_s / whole_s * (1 - SLACK) if whole_s else 1.0,
    )


def step_bound_s(
    work: ShapeWork, grid: Grid, pipeline: Pipeline, num_layers_of_kind: tuple[int, ...]
) -> float:
    """Of the pipeline alone, over all boundaries and whatever is recomputed."""
    m, pp = grid.num_microbatches, grid.pp
    if pp == 1:
        return m * work.total_s * (1 - SLACK)
    busiest_s = work.total_s / pp
    for count, layer_s in zip(num_layers_of_kind, work.layer_s, strict=True):
        busiest_s = max(busiest_s, -(-count // pp) * layer_s)
    name = ScheduleName(pipeline.schedule)
    there_and_back_s = work.total_s if name in UNSPLIT else work.forward_s + work.input_s
    bound_s = max(m * busiest_s, there_and_back_s)
    if pipeline.vpp == 1:
        # Layers of two kinds together may take less than both apart: of one kind alone.
        layers_s = max(map(operator.mul, num_layers_of_kind, work.layer_s))
        if name in UNSPLIT:
            bound_s = max(bound_s, _chain_s(work.total_s, 1.0, m, pp))
        else:
            bound_s = max(bound_s, _chain_s(layers_s, work.forward_ratio, m, pp))
    if name is ScheduleName.DUALPIPE_V:
        bound_s *= work.overlap_ratio
    return bound_s * (1 - SLACK)


def _chain_s(total_s: float, ratio: float, m: int, pp: int) -> float:
    """The least S so that ranks with m t_i + ratio (t_0 + ... + t_{i-1}) <= S do all together."""
    return total_s * ratio / (1 - (1 - ratio / m) ** pp)


@dataclass(frozen=True, slots=True)
class AfterBound:
    """What follows the last micro-batch, at the least."""

    update_s: float
    """The optimizer and publishing: of the rank that trains most."""
    reduction_s: float
    """What shows of reducing gradients: of ranks on average."""
    tied_sum_s: float
    """Of a tied table: after the first rank's last backward, but before the update."""


def after_bound(
    prices: StackPrices, grid: Grid, cut: Cut, state: State, work: ShapeWork
) -> AfterBound:
    """A p-th of all parameters, beside a p-th of what one micro-batch takes: the rank that trains
    most has no less, and what shows of R beside w, R - h min(R, w), is convex in both."""
    after, pricer, pp = prices.least_after(grid, cut, state), prices.pricer, grid.pp
    messages_s = 2 * pricer.exchange_kernels * pricer.launch_s(grid.tp) * (pp > 1)
    forward_s, backward_s = work.forward_s / pp + messages_s, work.backward_s / pp + messages_s
    if not pricer.software.fused_accumulation:
        backward_s += prices.weight_s(grid, cut, state)[-1] / pp
    if state.zero >= 2 or state.offload != "none":
        forward_s = math.inf
    publish_s = pricer.exposed_s(after.publish_s, forward_s, gradients=False)
    reduction_s = pricer.exposed_s(after.reduction_s, backward_s, gradients=True)
    return AfterBound(
        (after.optimizer_s + publish_s) * (1 - SLACK), max(0.0, reduction_s) * (1 - SLACK),
        after.tied_sum_s * (1 - SLACK),
    )  # fmt: skip


def whole_bound_s(
    work: ShapeWork, leaf: Leaf, step_s: float, busy_s: float, after: AfterBound
) -> float:
    """Of a leaf from the bounds of its pipeline and its busiest rank, with what follows.

    Every rank has reduced its gradients after its own work: the step is no shorter than both are
    together on average.
    """
    grid = leaf.grid
    ratio = work.overlap_ratio if leaf.pipeline.schedule == ScheduleName.DUALPIPE_V else 1.0
    mean_s = ratio * grid.num_microbatches * work.total_s / grid.pp * (1 - SLACK)
    longest_s = max(step_s, ratio * busy_s)
    if grid.pp == 1:
        return longest_s + after.reduction_s + after.update_s
    there_and_back_s = ratio * (work.forward_s + work.input_s) * (1 - SLACK)
    return max(
        longest_s, mean_s + after.reduction_s, there_and_back_s + after.tied_sum_s
    ) + after.update_s  # fmt: skip


def path_of(work: ShapeWork, leaf: Leaf, message_s: float, *, blocks: bool) -> Path:
    """``message_s``: of any boundary, at the least."""
    if leaf.grid.pp == 1:
        return Path()
    name = ScheduleName(leaf.pipeline.schedule)
    if leaf.pipeline.vpp > 1:
        # The first stages of the ranks before have a layer each, but for that of the embedding.
        layer_s = min(work.layer_s) * (1.0 if name in UNSPLIT else work.forward_ratio)
        return Path(message_s=layer_s + message_s, first_less_s=layer_s)
    received_s = message_s if blocks else 0.0
    if name in UNSPLIT:
        # A rank that waits for its messages has one of both in its own seconds.
        loop_ratio = 1.0 if name is ScheduleName.ONE_F_ONE_B else 0.0
        return Path(1.0, loop_ratio, 2 * message_s, message_s, received_s, received_s)
    loop_ratio = work.there_and_back_ratio if name is ScheduleName.ZB_H1 else 0.0
    return Path(work.forward_ratio, loop_ratio, message_s, message_s, received_s)


def path_kind(leaf: Leaf) -> tuple[bool, ...]:
    """Pipelines of one kind have the same path and keep as many micro-batches, on one grid."""
    name = leaf.pipeline.schedule
    has_loop = name in (ScheduleName.ONE_F_ONE_B, ScheduleName.ZB_H1)
    return name in V_SHAPED, leaf.pipeline.vpp > 1, leaf.is_split, has_loop


@dataclass(frozen=True, slots=True)
class StateRows:
    """What layers and ends hold under the states of one shape on one grid, alike states once: n
    rows."""

    index: tuple[int, ...]
    """Of each state, its row."""
    held: Floats
    """Of a layer of each kind: [kinds, n]."""
    points: tuple[tuple[tuple[Floats, Floats], ...], ...]
    """Of each kind, the recompute hull: seconds and bytes, [n] each."""
    first_bytes: Floats
    last_bytes: Floats


def state_rows(prices: StackPrices, grid: Grid, cut: Cut, states: Sequence[State]) -> StateRows:
    """Gathered weights alone differ with the order of ranks."""
    one = prices.held_rows(grid, cut, states)
    index = list(one.gathering_index)
    points = []
    for kind in range(len(one.held)):
        hulls = [prices.recompute_hull(grid, cut, state, kind) for state in one.gathering]
        points.append(tuple((seconds[index], kept[index]) for seconds, kept in _padded(hulls)))
    return StateRows(one.index, one.held, tuple(points), one.first_bytes, one.last_bytes)


def leanest_rows(prices: StackPrices, grid: Grid, cut: Cut, states: Sequence[State]) -> StateRows:
    """One row that needs no more than any of the states: it holds as little as any, gathers
    nothing, and keeps no activations where one of them does not."""
    one = prices.held_rows(grid, cut, states)
    alone = ALONE
    if any("activations" in state.offload for state in one.gathering):
        alone = ALONE._replace(offload="activations")
    return StateRows(
        (0,),
        one.held.min(axis=1, keepdims=True),
        tuple(
            _padded([prices.recompute_hull(grid, cut, alone, kind)])
            for kind in range(len(one.held))
        ),
        one.first_bytes.min(keepdims=True),
        one.last_bytes.min(keepdims=True),
    )


def _padded(hulls: list[tuple[tuple[float, float], ...]]) -> tuple[tuple[Floats, Floats], ...]:
    """Point by point; the last of shorter hulls again."""
    longest = max(map(len, hulls))
    table = np.array([(*hull, *[hull[-1]] * (longest - len(hull))) for hull in hulls])
    return tuple((table[:, i, 0], table[:, i, 1]) for i in range(longest))


def least_busy_s(
    prices: StackPrices, leaf: Leaf, rows: StateRows, work: ShapeWork, path: Path, limit_s: float
) -> list[float]:
    """When the busiest rank has done all micro-batches so that all layers fit, under each state;
    some number of at least ``limit_s`` where it is no less."""
    m, pp = leaf.grid.num_microbatches, leaf.grid.pp
    found = np.zeros(len(rows.first_bytes))
    for kind, layer_s in enumerate(work.layer_s):
        rooms = _rooms(prices, leaf, rows, work, kind, path)
        if limit_s < math.inf:
            found[~rooms.are_enough(limit_s)] = limit_s * (1 + 2 * SLACK)
        else:
            low_s = m * rooms.num_layers * layer_s / pp
            found = np.maximum(found, rooms.least_busy_s(low_s))
    by_row = found.tolist()
    return [by_row[row] for row in rows.index]


def _flights(leaf: Leaf) -> tuple[int, ...]:
    """Micro-batches of which rank r of p keeps something: as the schedule has it where a rank has
    one stage; of any of several stages p - r at least, or r + 1 where the pipeline is a V."""
    m, pp, pipeline = leaf.grid.num_microbatches, leaf.grid.pp, leaf.pipeline
    if pp > 1 and pipeline.vpp == 1:
        ranks = in_flight(pipeline.schedule, pp=pp, vpp=1, num_micro_batches=m)
        return tuple(count for ((count,),) in ranks)
    is_v = pipeline.schedule in V_SHAPED
    return tuple(min(m, rank + 1 if is_v else pp - rank) for rank in range(pp))


def _rooms(
    prices: StackPrices, leaf: Leaf, rows: StateRows, work: ShapeWork, kind: int, path: Path
) -> Rooms:
    """For layers of one kind."""
    grid, cut = leaf.grid, leaf.cut
    layer, head = prices.least_moments(grid, cut)
    live = prices.most_live_bytes(grid, cut)
    is_v = leaf.pipeline.schedule in V_SHAPED
    first_s, last_s = prices.ends_s(grid, cut, kind)
    return Rooms(
        layer_s=work.layer_s[kind],
        num_layers=prices.units.num_layers_of_kind[kind],
        flights=_flights(leaf),
        room_bytes=live - layer,
        held=rows.held[kind],
        points=rows.points[kind],
        first_s=first_s,
        first_bytes=rows.first_bytes,
        last_s=last_s,
        last_bytes=rows.last_bytes + max(0.0, head - layer),
        last_rank=0 if is_v else grid.pp - 1,
        num_microbatches=grid.num_microbatches,
        path=path,
        ends_fit=(rows.first_bytes <= live) & (rows.last_bytes + head <= live),
    )
