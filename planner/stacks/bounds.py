"""Lower bounds on the step time and the memory of layouts on software stacks.

f_i, b_i and w_i are a stage's seconds for one micro-batch, forward, gradient of the input and of
the weights; m micro-batches pass. `StackModel` simulates what follows from them, and only ever adds
to these paths:

- a rank's work: m times all that its stages do;
- there and back: one micro-batch's forward through all stages and its backward through all, with
  the gradients of weights where they are not split off;
- waiting and work: rank r starts after the forwards of the stages before its first one, which take
  sum_{j<r} f_j, and then does all its work. Where a backward is not split, r's last work is
  a backward too, after which the backwards of those stages follow: sum_{j<r} (b_j + w_j) more.
  (A rank's first stage is stage r under every schedule.)

Memory: what a rank's stages always hold, and what the micro-batches in flight keep. The first and
the last rank are looked at, which under every schedule are the fullest or hold the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.pipeline.fast import in_flight
from shardwright.cost_models.pipeline.orders import ranks_of_stages
from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.stacks.choices import Grid, Pipeline
from shardwright.planner.stacks.units import Floats, UnitBytes, UnitTimes
from shardwright.specs import ScheduleName

SLACK = 1e-9
"""Relative: sums in another order than the simulation's may differ by rounding."""

_FULL = 2
"""Times pp micro-batches: as many fill every pipeline; more never make a rank hold less."""

_UNSPLIT = (ScheduleName.GPIPE, ScheduleName.ONE_F_ONE_B, ScheduleName.INTERLEAVED)


@dataclass(frozen=True, slots=True)
class PerToken:
    """What each token of a micro-batch costs at the least where micro-batches are endless.

    Tiles and waves of matrix products are full then, and latencies are nothing: no micro-batch has
    less for a token. Context parallelism adds messages and shortens attention's inner loop.
    """

    work_s: float
    saved_bytes: float
    moment_bytes: float


ENDLESS_TOKENS = 2**21
"""Of the micro-batch that stands for an endless one."""
_ENDLESS_SLACK = 0.01
"""By which it may still lie above: of 2^14 tiles in a row the last may be empty, and of 10^2 waves
of the smaller products."""


def per_token(times: UnitTimes, held: UnitBytes, num_tokens: float) -> PerToken:
    """From the price of units at ``num_tokens``."""
    total = times.total
    work_s = total["forward_s"] + total["input_s"] + total["weight_s"]
    return PerToken(
        work_s / num_tokens * (1 - _ENDLESS_SLACK),
        float(held.saved[-1]) / num_tokens * (1 - _ENDLESS_SLACK),
        held.moment / num_tokens * (1 - _ENDLESS_SLACK),
    )


def work_bound_s(times: UnitTimes, grid: Grid, pricer: StackModel, *, again: bool = False) -> float:
    """Over every pipeline and every way to split: the work spread evenly, or one pass.

    ``again``: with what is recomputed and with gathering and scattering of shards.
    """
    total = times.total
    passing_s = total["forward_s"] + total["input_s"]
    kernels = total["forward_kernels"] + total["kernels"]
    if again:
        passing_s += total["again_s"] + total["forward_shards_s"] + total["backward_shards_s"]
        kernels += total["again_kernels"]
    # Stages take no less together than the model would as one stage, and that is no less than what
    # the device or the host takes.
    host_s = pricer.at_host_pace_s(0.0, kernels, grid.tp)
    work_s = max(passing_s + total["weight_s"], host_s)
    return max(passing_s, work_s * grid.num_microbatches / grid.pp) * (1 - SLACK)


def mean_bytes(held: UnitBytes, grid: Grid) -> float:
    """The least that the fullest rank holds over every pipeline and every way to split."""
    return float(max((held.state[-1] + held.saved[-1]) / grid.pp, held.moment))


class PipelineBound:
    """Bounds of one split of one pipeline."""

    def __init__(
        self,
        times: UnitTimes,
        grid: Grid,
        pipeline: Pipeline,
        starts: tuple[int, ...],
        pricer: StackModel,
        *,
        recomputes: bool = True,
    ) -> None:
        """``recomputes``: whether every unit recomputes as ``times`` has it; else none may."""
        self._edges = np.array([0, *starts, len(times.total_s)])
        self._grid, self._pipeline = grid, pipeline
        self._schedule = None if grid.pp == 1 else ScheduleName(pipeline.schedule)
        self._stages = times.stages(self._edges)
        self._recomputes = recomputes
        self._pricer = pricer
        self._rank_of_stage = _ranks(self._schedule, grid.pp, pipeline.vpp)

    def step_s(self) -> float:
        """The longest of the paths named at the top of this file."""
        forward_s, input_s, weight_s = self._seconds()
        work_s = self._by_rank(forward_s + input_s + weight_s)
        m, pp = self._grid.num_microbatches, self._grid.pp
        if pp == 1:
            return m * float(work_s.sum()) * (1 - SLACK)
        backward_s = input_s + weight_s if self._schedule in _UNSPLIT else input_s
        there_and_back = float((forward_s + backward_s).sum())
        before = np.concatenate([[0.0], np.cumsum(forward_s[: pp - 1])])
        if self._schedule in _UNSPLIT:
            before[1:] += np.cumsum(backward_s[: pp - 1])
        longest = max(there_and_back, float((before + m * work_s).max()))
        return longest * (1 - SLACK)

    def _seconds(self) -> tuple[Floats, ...]:
        """Each stage's forward and both backwards, at the pace of the later of device and host."""
        one = self._stages
        forward_s = self._paced(one["forward_s"] + one["forward_shards_s"], one["forward_kernels"])
        inputs, kernels = one["input_s"] + one["backward_shards_s"], one["kernels"]
        if self._recomputes:
            inputs, kernels = inputs + one["again_s"], kernels + one["again_kernels"]
        backward = inputs + one["weight_s"]
        paced = self._paced(backward, kernels)
        stretch = np.divide(paced, backward, out=np.ones_like(paced), where=backward > 0)
        return forward_s, inputs * stretch, one["weight_s"] * stretch

    def _paced(self, device_s: Floats, kernels: Floats) -> Floats:
        pace, tp = self._pricer.at_host_pace_s, self._grid.tp
        known: dict[tuple[float, float], float] = {}
        found = np.empty(len(device_s))
        for index, (seconds, count) in enumerate(zip(device_s, kernels, strict=True)):
            # Equal stages differ by the rounding of sums.
            key = (round(seconds, 12), count)
            if key not in known:
                known[key] = pace(float(seconds), float(count), tp)
            found[index] = known[key]
        return found

    def _by_rank(self, values: Floats) -> Floats:
        found = np.zeros(self._grid.pp)
        np.add.at(found, list(self._rank_of_stage), values)
        return found

    def peak_bytes(self, held: UnitBytes, message_bytes: float) -> float:
        """The least peak of the first and the last rank. A first stage keeps no input, and what a
        stage sends on it does not keep."""
        grid, pipeline = self._grid, self._pipeline
        edges = self._edges
        state, saved = (
            held.state[edges[1:]] - held.state[edges[:-1]],
            (held.saved[edges[1:]] - held.saved[edges[:-1]]),
        )
        saved[0] = max(0.0, saved[0] - message_bytes)
        if self._schedule is None:
            return float((state + saved).sum())
        count = min(grid.num_microbatches, _FULL * grid.pp)
        found = 0.0
        for own, flights in _ends_in_flight(self._schedule, grid.pp, pipeline.vpp, count):
            found = max(found, float(state[own].sum() + (flights @ saved[own]).max()))
        return found


@lru_cache(maxsize=1024)
def _ends_in_flight(
    schedule: ScheduleName, pp: int, vpp: int, count: int
) -> tuple[tuple[NDArray[np.intp], NDArray[np.int64]], ...]:
    """Of the first and the last rank: its stages, and micro-batches held at once by chunk."""
    flights = in_flight(schedule, pp=pp, vpp=vpp, num_micro_batches=count)
    ranks = np.array(_ranks(schedule, pp, vpp))
    return tuple((np.flatnonzero(ranks == rank), np.array(flights[rank])) for rank in (0, pp - 1))


@lru_cache(maxsize=1024)
def _ranks(schedule: ScheduleName | None, pp: int, vpp: int) -> tuple[int, ...]:
    return (0,) * vpp if schedule is None else ranks_of_stages(schedule, pp, vpp)
