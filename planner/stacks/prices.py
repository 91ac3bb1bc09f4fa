"""Prices of partial layouts, each made once."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.stacks.step import StackModel
from shardwright.cost_models.stacks.updates import Trained
from shardwright.planner.problem import Problem
from shardwright.planner.stacks.choices import Cut, Grid, Leaf, State
from shardwright.planner.stacks.rooms import Floats
from shardwright.planner.stacks.space import FEW_INTERLEAVED, StackSpace
from shardwright.planner.stacks.splits import few_ways
from shardwright.planner.stacks.units import (
    ALONE,
    Sums,
    UnitAgain,
    UnitPricer,
    UnitState,
    UnitTimes,
    rank_trained,
)
from shardwright.specs import Layout, ScheduleName, Stage
from shardwright.specs.layout import V_SHAPED, place_stages
from shardwright.specs.ranges import MOST_SEQUENCES

ENDLESS_TOKENS = 2**21
"""Of the micro-batch that stands for an endless one."""
_ENDLESS_SLACK = 0.01
"""By which it may still lie above: of 2^14 tiles in a row the last may be empty, and of 10^2 waves
of the smaller products."""


@dataclass(frozen=True, slots=True)
class After:
    """What follows the last micro-batch of a rank, as if nothing hid it."""

    reduction_s: float
    publish_s: float
    optimizer_s: float
    tied_sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What a second of the device, and a kernel, add at least to a pass over some layers, whatever
    else the stage has: the slopes of `StackModel.at_host_pace_s`, which is convex, there."""

    forward: tuple[float, float]
    backward: tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """What layers and ends hold under n states of one shape, alike states once: n rows."""

    index: tuple[int, ...]
    """Of each state, its row."""
    held: Floats
    """Of a layer of each kind: [kinds, n]."""
    first_bytes: Floats
    last_bytes: Floats
    gathering: tuple[State, ...]
    """One of all states that gather alike, and offload activations or not."""
    gathering_index: tuple[int, ...]
    """Of each row, which of them it is like."""


class StackPrices:
    """Prices under one problem and its constraints."""

    def __init__(self, problem: Problem, space: StackSpace, pricer: StackModel) -> None:
        self.problem, self.space, self.pricer = problem, space, pricer
        self.units = UnitPricer(problem, pricer, space.others)
        self._times: dict[tuple[object, ...], UnitTimes] = {}
        self._arrays: dict[tuple[object, ...], Floats] = {}
        self._again: dict[tuple[object, ...], UnitAgain] = {}
        self._added: dict[tuple[object, ...], Sums] = {}
        self._shards: dict[tuple[object, ...], tuple[Sums, Sums]] = {}
        self._states: dict[tuple[object, ...], UnitState] = {}
        self._held_rows: dict[tuple[object, ...], HeldRows] = {}
        self._frames: dict[tuple[object, ...], Layout] = {}
        self._after: dict[tuple[object, ...], After] = {}
        self._most_live: dict[tuple[object, ...], float] = {}
        self._hulls: dict[tuple[object, ...], tuple[tuple[float, float], ...]] = {}
        self._paces: dict[tuple[object, ...], Pace] = {}
        self._gathering: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._messages: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._unit_s: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._moments: dict[tuple[object, ...], tuple[float, float]] = {}
        self._ratios: dict[tuple[object, ...], float] = {}
        self._endless: dict[tuple[object, ...], float] = {}

    # Of the layers of a shape, whatever the pipeline and the copies

    def times(self, grid: Grid, cut: Cut) -> UnitTimes:
        """Without recomputation."""
        key = _shape(grid, cut)
        if key not in self._times:
            self._times[key] = self.units.times(_plain(grid), cut)
        return self._times[key]

    def least_stages_s(self, grid: Grid, cut: Cut, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """Forward and backward of every stage under any state: without recomputation, messages,
        shards and adding gradients up."""
        key = _shape(grid, cut)
        if key not in self._arrays:
            one = self.times(grid, cut)
            self._arrays[key] = np.array(
                [one.forward_s, one.forward_kernels, np.add(one.input_s, one.weight_s),
                 one.kernels]
            )  # fmt: skip
        device_s, kernels, back_s, back_kernels = np.diff(self._arrays[key][:, list(edges)])
        ratio, paced = self.measured_ratio(grid, cut), self.pricer.each_at_host_pace_s
        return (
            ratio * paced(device_s, kernels, grid.tp),
            ratio * paced(back_s, back_kernels, grid.tp),
        )

    def again(self, grid: Grid, cut: Cut, recompute: str, loss_chunks: int = 1) -> UnitAgain:
        """Under one policy."""
        key = (*_shape(grid, cut), recompute, loss_chunks)
        if key not in self._again:
            self._again[key] = self.units.again(_plain(grid), cut, recompute, loss_chunks)
        return self._again[key]

    def measured_ratio(self, grid: Grid, cut: Cut) -> float:
        """Measured over predicted seconds of such layers; 1 where none were measured."""
        key = _shape(grid, cut)
        if key not in self._ratios:
            layout = self.units.probe(_plain(grid), cut, ALONE)
            self._ratios[key] = self.pricer.measured_ratio(layout)
        return self._ratios[key]

    def tokens(self, grid: Grid) -> float:
        """Of a micro-batch on one rank, before tensor parallelism."""
        return grid.micro_batch * self.problem.training.seq_len / grid.cp

    def least_token_s(self, grid: Grid, cut: Cut) -> float:
        """Work for each token where micro-batches are endless.

        Tiles and waves of matrix products are full then, and latencies are nothing: no micro-batch
        has less for a token. Context parallelism adds messages and shortens attention's inner loop.
        """
        base_s = self._of_endless(grid.tp, 1, cut._replace(cp_kind="ring"))
        if grid.cp > 1:
            # Attention alone sees cp, and experts alone see ep and etp.
            plain = cut._replace(ep=1, etp=1)
            apart_s = self._of_endless(grid.tp, grid.cp, plain)
            whole_s = self._of_endless(grid.tp, 1, plain._replace(cp_kind="ring"))
            base_s += max(0.0, apart_s - whole_s)
        return base_s * (1 - _ENDLESS_SLACK) * self._least_ratio

    @cached_property
    def _least_ratio(self) -> float:
        ratios = [v for k, v in self.pricer.parameters.items() if k.startswith("layer.")]
        return min([1.0, *ratios])

    def _of_endless(self, tp: int, cp: int, cut: Cut) -> float:
        key = (tp, cp, cut)
        if key not in self._endless:
            seq_len = self.problem.training.seq_len
            size = min(max(1, ENDLESS_TOKENS * cp // seq_len), MOST_SEQUENCES)
            grid = Grid(tp, cp, 1, 1, size, 1)
            one = self.units.times(grid, cut)
            work_s = one.forward_s[-1] + one.input_s[-1] + one.weight_s[-1]
            self._endless[key] = work_s / self.tokens(grid)
        return self._endless[key]

    @property
    def leanest_policies(self) -> list[str]:
        """Those that may keep least of any unit."""
        kinds = self._open_policies
        return ["full"] if "full" in kinds else kinds

    def least_moments(self, grid: Grid, cut: Cut) -> tuple[float, float]:
        """What a layer with the least, and the head, have on top while they run backward."""
        key = _shape(grid, cut)
        if key not in self._moments:
            policies = [self.again(grid, cut, policy) for policy in self.leanest_policies]
            layer = min(min(one.working_bytes[1:-1]) for one in policies)
            chunks = self.space.loss_chunks[-1]
            head = min(
                self.again(grid, cut, policy, chunks).working_bytes[-1]
                for policy in self.leanest_policies
            )
            self._moments[key] = layer, head
        return self._moments[key]

    def pace(self, grid: Grid, cut: Cut, kind: int) -> Pace:
        """Of layers of one kind."""
        key = (*_shape(grid, cut), kind)
        if key not in self._paces:
            times, pricer = self.times(grid, cut), self.pricer
            launch_s = pricer.launch_s(grid.tp)
            at = self.units.kind_of_unit.index(1 + kind)

            def slopes(device_s: float, kernels: float) -> tuple[float, float]:
                host_s = kernels * launch_s
                device, host = pricer.pace_slopes(device_s, host_s)
                return device, host * launch_s

            self._paces[key] = Pace(
                slopes(_of(times.forward_s, at), _of(times.forward_kernels, at)),
                slopes(_of(times.input_s, at) + _of(times.weight_s, at), _of(times.kernels, at)),
            )
        return self._paces[key]

    def ends_s(self, grid: Grid, cut: Cut, kind: int) -> tuple[float, float]:
        """What the embedding, and the head, add at least to a stage with layers of a kind."""
        times, pace = self.times(grid, cut), self.pace(grid, cut, kind)

        def added_s(at: int) -> float:
            backward_s = _of(times.input_s, at) + _of(times.weight_s, at)
            return self.measured_ratio(grid, cut) * (
                pace.forward[0] * _of(times.forward_s, at)
                + pace.forward[1] * _of(times.forward_kernels, at)
                + pace.backward[0] * backward_s
                + pace.backward[1] * _of(times.kernels, at)
            )

        return added_s(0), added_s(len(self.units.kind_of_unit) - 1)

    def recompute_hull(
        self, grid: Grid, cut: Cut, state: State, kind: int
    ) -> tuple[tuple[float, float], ...]:
        """(seconds that computing again adds at least, bytes still kept) of a layer: the policies
        that no mix of others beats, the shortest first. Seconds are with what shows of gathering
        and moving meanwhile, at the least: behind as much computing as could be."""
        is_offloaded = "activations" in state.offload
        gathering_s = self._gathering_s(grid, cut, state)[1 + kind] if state.zero >= 2 else 0.0
        key = (*_shape(grid, cut), kind, is_offloaded, gathering_s)
        if key not in self._hulls:
            ratio, pace = self.measured_ratio(grid, cut), self.pace(grid, cut, kind)
            at, points = self.units.kind_of_unit.index(1 + kind), []
            for policy in self._open_policies:
                again = self.again(grid, cut, policy)
                kept = _of(again.saved_bytes, at)
                beside_s = gathering_s + is_offloaded * self.pricer.moving_s(2 * kept)
                shown_s = self.pricer.exposed_s(beside_s, beside_s, gradients=None)
                seconds = (
                    pace.backward[0] * _of(again.seconds, at)
                    + pace.backward[1] * _of(again.kernels, at)
                    + min(pace.forward[0], pace.backward[0]) * shown_s
                )
                points.append((seconds * ratio, kept * (not is_offloaded)))
            self._hulls[key] = _lower_hull(sorted(points))
        return self._hulls[key]

    def _gathering_s(self, grid: Grid, cut: Cut, state: State) -> tuple[float, ...]:
        """Of one unit of each kind, what ZeRO gathers and scatters in both passes."""
        state = state._replace(offload="none")
        pp = grid.pp if state.rank_order != ALONE.rank_order else 1
        key = (grid.tp, grid.cp, grid.dp, pp, cut.ep, cut.etp, state)
        if key not in self._gathering:
            probe = self.units.probe(grid._replace(pp=pp, micro_batch=1), cut, state)
            self._gathering[key] = self.pricer.gathering_s(probe)
        return self._gathering[key]

    @property
    def _open_policies(self) -> list[str]:
        parts = {part for policy in self.space.recomputes for part in policy.split("/")}
        return sorted({"full" if part.startswith("full") else part for part in parts})

    # Of what is sharded over copies

    def shards(
        self, grid: Grid, cut: Cut, state: State, recompute: str, loss_chunks: int = 1
    ) -> tuple[Sums, Sums] | None:
        """See `UnitPricer.shards`; None where nothing is beside the passes."""
        if state.zero < 2 and state.offload == "none":
            return None
        pp = grid.pp if state.rank_order != ALONE.rank_order else 1
        key = (*_shape(grid, cut), grid.dp, pp, state, recompute, loss_chunks)
        if key not in self._shards:
            self._shards[key] = self.units.shards(
                grid._replace(pp=pp), cut, state, recompute, loss_chunks
            )
        return self._shards[key]

    def state(self, grid: Grid, cut: Cut, state: State) -> UnitState:
        """What units hold at all times."""
        plain = state._replace(rank_order=ALONE.rank_order)
        key = (grid.tp, grid.pp > 1, cut.ep, cut.etp, plain)
        if key not in self._states:
            self._states[key] = self.units.state(grid, cut, plain)
        return self._states[key]

    def held_rows(self, grid: Grid, cut: Cut, states: Sequence[State]) -> HeldRows:
        """Gathered weights alone differ with the order of ranks."""
        key = (grid.tp, grid.pp > 1, cut.ep, cut.etp, tuple(states))
        if key not in self._held_rows:
            alike = [one if one.zero >= 2 else one._replace(rank_order="") for one in states]
            rows: dict[State, int] = {}
            index = tuple(rows.setdefault(one, len(rows)) for one in alike)
            first = {row: state for row, state in zip(index[::-1], states[::-1], strict=True)}
            chosen = [first[row] for row in range(len(rows))]
            self._held_rows[key] = self._hold(grid, cut, index, chosen)
        return self._held_rows[key]

    def _hold(
        self, grid: Grid, cut: Cut, index: tuple[int, ...], states: Sequence[State]
    ) -> HeldRows:
        kinds = self.units.kind_of_unit
        held = [self.state(grid, cut, state).held_bytes for state in states]
        starts = [kinds.index(1 + kind) for kind in range(len(self.units.num_layers_of_kind))]
        gathering: dict[tuple[bool, State], State] = {}
        alike = [
            ("activations" in one.offload, one._replace(offload="") if one.zero >= 2 else ALONE)
            for one in states
        ]
        for key, state in zip(alike, states, strict=True):
            gathering.setdefault(key, state)
        places = {key: place for place, key in enumerate(gathering)}
        return HeldRows(
            index,
            np.array([[one[at + 1] - one[at] for one in held] for at in starts]),
            np.array([one[1] for one in held]),
            np.array([one[-1] - one[-2] for one in held]),
            tuple(gathering.values()),
            tuple(places[key] for key in alike),
        )

    def weight_s(self, grid: Grid, cut: Cut, state: State) -> Sums:
        """Of the gradient of the weights, with adding it up."""
        alone = self.times(grid, cut).weight_s
        if self.pricer.software.fused_accumulation:
            return alone
        plain = state._replace(rank_order=ALONE.rank_order)
        key = (grid.tp, grid.pp > 1, cut.ep, cut.etp, plain)
        if key not in self._added:
            self._added[key] = self.units.accumulation_s(grid, cut, plain)
        return tuple(map(operator.add, alone, self._added[key]))

    def frame(self, grid: Grid, cut: Cut, state: State) -> Layout:
        """A layout over those ranks, whatever its stages."""
        key = (*grid[:5], cut, state)
        if key not in self._frames:
            plain = self.units.probe(grid._replace(pp=1), cut, state)
            self._frames[key] = plain.model_copy(update={"pp": grid.pp})
        return self._frames[key]

    def messages_s(self, leaf: Leaf) -> tuple[float, ...]:
        """Of each boundary between virtual stages."""
        grid, cut, pipeline = leaf.grid, leaf.cut, leaf.pipeline
        name = ScheduleName(pipeline.schedule)
        key = (grid._replace(num_microbatches=1), cut, leaf.state.rank_order, name in V_SHAPED,
               pipeline.vpp)  # fmt: skip
        if key not in self._messages:
            stages = _empty_stages(grid.pp, pipeline.vpp, name)
            frame = self.frame(grid, cut, leaf.state).model_copy(update={"stages": stages})
            self._messages[key] = self.pricer.messages_s(frame)
        return self._messages[key]

    def unit_s(self, grid: Grid, cut: Cut) -> tuple[float, ...]:
        """Of each unit forward and backward, on the device."""
        key = _shape(grid, cut)
        if key not in self._unit_s:
            one = self.times(grid, cut)
            totals = map(sum, zip(one.forward_s, one.input_s, one.weight_s, strict=True))
            self._unit_s[key] = tuple(b - a for a, b in itertools.pairwise(totals))
        return self._unit_s[key]

    @cached_property
    def layers_before(self) -> NDArray[np.int_]:
        """Of each kind, among the first 0, 1, ... units: [kinds, units + 1]."""
        kinds = np.array(self.units.kind_of_unit)
        kinds[0] = kinds[-1] = 0  # the embedding, the head
        is_of_kind = kinds == np.arange(1, len(self.units.num_layers_of_kind) + 1)[:, None]
        return np.pad(np.cumsum(is_of_kind, axis=1), ((0, 0), (1, 0)))

    def fixed_starts(self, leaf: Leaf) -> tuple[int, ...] | None:
        """The first unit of stages 1, 2, ... where boundaries are fixed."""
        fixed = self.space.boundaries(leaf.grid.pp * leaf.pipeline.vpp)
        return None if fixed is None else tuple(layer + 1 for layer in fixed)

    def ways_to_split(self, leaf: Leaf) -> list[tuple[int, ...]]:
        """Those to look at where ranks have several stages, as `fixed_starts`."""
        fixed = self.fixed_starts(leaf)
        if fixed is not None:
            return [fixed]
        count = leaf.grid.pp * leaf.pipeline.vpp
        return few_ways(self.unit_s(leaf.grid, leaf.cut), count, FEW_INTERLEAVED)

    def message_bytes(self, grid: Grid, cut: Cut, state: State) -> float:
        """What a stage sends to the next."""
        if grid.pp == 1:
            return 0.0
        return self.pricer.message_bytes(self.frame(grid, cut, state))

    def after(self, grid: Grid, cut: Cut, state: State, trained: Trained) -> After:
        """What follows the last micro-batch of a rank that trains so much."""
        key = (grid.tp, grid.cp, grid.pp, grid.dp, cut.ep, cut.etp, state, trained)
        if key not in self._after:
            frame = self.frame(grid, cut, state)
            self._after[key] = After(*self.pricer.update_seconds(frame, trained))
        return self._after[key]

    def least_after(self, grid: Grid, cut: Cut, state: State) -> After:
        """What follows on the rank that trains most, at the least."""
        return self.after(grid, cut, state, rank_trained(self.state(grid, cut, state), grid.pp))

    def most_live_bytes(self, grid: Grid, cut: Cut) -> float:
        """What tensors of a rank may take up at most."""
        key = (grid.tp > 1, grid.cp > 1, grid.dp * grid.cp > 1, grid.pp > 1, cut.ep > 1)
        if key not in self._most_live:
            frame = self.frame(grid, cut, ALONE)
            self._most_live[key] = self.pricer.most_live_bytes(frame)
        return self._most_live[key]


@lru_cache(maxsize=512)
def _empty_stages(pp: int, vpp: int, name: ScheduleName) -> tuple[Stage, ...]:
    return place_stages([0] * (pp * vpp), 0, pp, name)


def _lower_hull(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Of points in ascending order: those below every line between two others."""
    hull: list[tuple[float, float]] = []
    for x, y in points:
        if hull and y >= hull[-1][1]:
            continue
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return tuple(hull)


def _of(sums: Sums, at: int) -> float:
    """Of one unit."""
    return sums[at + 1] - sums[at]


def _plain(grid: Grid) -> Grid:
    return grid._replace(pp=1, dp=1, num_microbatches=1)


def _shape(grid: Grid, cut: Cut) -> tuple[object, ...]:
    return grid.tp, grid.cp, grid.micro_batch, cut
