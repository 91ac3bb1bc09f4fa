"""Lower bounds on the step time and the memory of layouts whose boundaries are open.

F and B are the whole model's seconds for one micro-batch, forward and backward, without what is
computed again; p ranks share them, m micro-batches pass. Whatever the boundaries,

- some rank has at least (F + B) / p to do, and of each kind of layer a p-th, rounded up;
- one micro-batch goes there and back;
- where every rank has one stage, the last one starts after the forwards of all others and, where
  the backward is not split, their backwards follow its last: with x its own seconds the step takes
  F + B - x + m x at least (F - x + m x where it is split), and m (F + B - x) / (p - 1) for the
  busiest of the others. The larger of both is least where they are equal.

`StackModel` only ever adds to these. A stage's host and device run side by side, each waiting for
the other at times: all stages together take no less than they would as one (Minkowski).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.planner.stacks.choices import Cut, Grid, Leaf, Pipeline, State
from shardwright.planner.stacks.partition import SLACK
from shardwright.planner.stacks.prices import StackPrices
from shardwright.specs import ScheduleName
from shardwright.specs.layout import V_SHAPED

_BISECTION = 1e-3
"""Relative: how near the least is looked for."""

UNSPLIT = (ScheduleName.GPIPE, ScheduleName.ONE_F_ONE_B, ScheduleName.INTERLEAVED)
"""Schedules that do not split the backward pass."""


@dataclass(frozen=True, slots=True)
class ShapeWork:
    """A micro-batch through the whole model on the ranks of one shape."""

    forward_s: float
    input_s: float
    backward_s: float
    """With ``input_s``."""
    layer_s: tuple[float, ...]
    """Of a layer of each kind, forward and backward."""
    ends_s: tuple[float, float]
    """Of the embedding, and of the head, forward and backward."""
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

    def unit_s(at: int) -> float:
        forward_s, input_s, weight_s, kernels, forward_kernels = (
            sums[at + 1] - sums[at]
            for sums in (times.forward_s, times.input_s, times.weight_s, times.kernels,
                         times.forward_kernels)
        )  # fmt: skip
        return paced(forward_s, forward_kernels) + paced(input_s + weight_s, kernels)

    num_kinds = len(units.num_layers_of_kind)
    layers = [unit_s(units.kind_of_unit.index(1 + kind)) for kind in range(num_kinds)]
    whole_s = times.forward_s[-1] + device_s
    dispatch_s = min(times.exchange_s[-1], whole_s - times.exchange_s[-1])
    overlapped_s = pricer.exposed_s(whole_s, dispatch_s, gradients=None)
    return ShapeWork(
        paced(times.forward_s[-1], times.forward_kernels[-1]),
        ratio * times.input_s[-1],
        paced(device_s, times.kernels[-1]),
        tuple(layers),
        (unit_s(0), unit_s(len(units.kind_of_unit) - 1)),
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
        before_s = work.total_s if name in UNSPLIT else work.forward_s
        bound_s = max(bound_s, _last_rank_s(work.total_s, before_s, m, pp))
    if name is ScheduleName.DUALPIPE_V:
        bound_s *= work.overlap_ratio
    return bound_s * (1 - SLACK)


def _last_rank_s(total_s: float, before_s: float, m: int, pp: int) -> float:
    """The least over x of the larger of before_s + (m - 1) x and m (total_s - x) / (p - 1)."""
    others = m / (pp - 1)
    own_s = max(0.0, (others * total_s - before_s) / (m - 1 + others))
    return before_s + (m - 1) * own_s


def after_bound_s(prices: StackPrices, grid: Grid, cut: Cut, state: State) -> float:
    """What follows the last micro-batch: the rank that trains most has a p-th of all parameters."""
    after, pricer = prices.least_after(grid, cut, state), prices.pricer
    publish_s = pricer.exposed_s(after.publish_s, after.publish_s, gradients=False)
    found_s = after.optimizer_s + publish_s
    if grid.pp == 1:
        found_s += pricer.exposed_s(after.reduction_s, after.reduction_s, gradients=True)
    return found_s


@dataclass(frozen=True, slots=True)
class Room:
    """How many of a model's equal layers fit on each rank, and how long that takes.

    A layer holds S bytes, takes W seconds for a micro-batch and keeps V bytes of it; of these g(t)
    are given up for t seconds of recomputation (the hull of the policies). With k micro-batches in
    flight, a rank that has w seconds for each fits w / (W + t) layers where
    w (S + k (V - g(t))) <= room (W + t), and only whole ones. Ranks must hold all layers together.
    """

    layer_s: float
    """W, with nothing gathered, moved or computed again."""
    held: float
    points: tuple[tuple[float, float], ...]
    """(t, V - g(t)), the shortest first; t with what is gathered and moved beside the passes."""
    num_layers: int
    flights: tuple[int, ...]
    """k of each rank."""
    room_bytes: float
    """Of a rank that holds layers alone."""
    first: tuple[float, float]
    """Seconds and bytes that the first rank needs for other blocks in any case."""
    last: tuple[float, float]
    last_rank: int
    """That with the head: the first where the pipeline is a V."""

    def is_enough(self, rank_s: float) -> bool:
        """Whether all layers find a place on ranks that have so many seconds each."""
        left = self.num_layers
        for rank, count in enumerate(self.flights):
            own_s, room = rank_s, self.room_bytes
            if rank == 0:
                own_s, room = own_s - self.first[0], room - self.first[1]
            if rank == self.last_rank:
                own_s, room = own_s - self.last[0], room - self.last[1]
            if own_s > 0.0 and room > 0.0:
                left -= int(self._share(count, room, own_s) * (1 + SLACK))
                if left <= 0:
                    return True
        return False

    def _share(self, count: int, room: float, rank_s: float) -> float:
        """As many layers as there is room and time for, with fractions."""
        held, layer_s = self.held, self.layer_s
        before_s, more = self.points[0]
        if rank_s * (held + count * more) <= room * (layer_s + before_s):
            return rank_s / (layer_s + before_s)
        for after_s, less in self.points[1:]:
            if rank_s * (held + count * less) <= room * (layer_s + after_s):
                # Between two policies both sides are linear in t.
                slope = count * (more - less) / (after_s - before_s)
                lacking = rank_s * (held + count * more) - room * (layer_s + before_s)
                return rank_s / (layer_s + before_s + lacking / (rank_s * slope + room))
            before_s, more = after_s, less
        needed = held + count * more
        return rank_s / (layer_s + before_s) if needed <= 0.0 else room / needed

    def least_rank_s(self) -> float:
        """The least that the busiest rank takes; infinite where not all layers find a place."""
        most_s = self.first[0] + self.last[0]
        high_s = most_s + self.num_layers * (self.layer_s + self.points[-1][0])
        low_s = self.num_layers * self.layer_s / len(self.flights)
        if self.is_enough(low_s):
            return low_s
        if not self.is_enough(high_s):
            return math.inf
        while high_s - low_s > _BISECTION * low_s:
            middle_s = (low_s + high_s) / 2
            if self.is_enough(middle_s):
                high_s = middle_s
            else:
                low_s = middle_s
        return low_s


def room_of(prices: StackPrices, leaf: Leaf, work: ShapeWork, kind: int) -> Room:
    """For layers of one kind. Of any of its stages rank r of p keeps what p - r micro-batches left
    at least, or r + 1 where the pipeline is a V."""
    grid, cut, state = leaf.grid, leaf.cut, leaf.state
    units, held = prices.units, prices.state(grid, cut, state).held_bytes
    at = units.kind_of_unit.index(1 + kind)
    layer, head = prices.least_moments(grid, cut)
    room = prices.most_live_bytes(grid, cut) - layer
    m, pp = grid.num_microbatches, grid.pp
    is_v = leaf.pipeline.schedule in V_SHAPED
    return Room(
        work.layer_s[kind],
        held[at + 1] - held[at],
        prices.recompute_hull(leaf, at),
        units.num_layers_of_kind[kind],
        tuple(min(m, rank + 1 if is_v else pp - rank) for rank in range(pp)),
        room,
        (work.ends_s[0], held[1]),
        (work.ends_s[1], held[-1] - held[-2] + max(0.0, head - layer)),
        0 if is_v else pp - 1,
    )
