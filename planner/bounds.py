"""Admissible lower bounds on step time and memory of layouts whose boundaries are still open.

Everything here is built from `UnitSeconds` and `UnitBytes`: what each indivisible unit of the model
(embedding, each layer, final norm with head) costs at least under one `Choices`, taken from the
same priced operations as the simulation. Stage i of a cut holds units [a, e); its forward pass
takes f_i, its backward pass b_i, each with the receive that the rank waits for before it;
W_i = f_i + b_i; m is the number of micro-batches. The makespan of a pipeline is the longest path
through its actions, so the length of *any* path is a lower bound. `StageBounds` takes, for every
stage, paths that end on stage 0 and depend on the cut only through that stage's own units:

- stay: down to stage i, all its 2m actions, and up again: sum_{j<i} W_j + m W_i
- 1F1B, where stage i runs w = min(pp - 1 - i, m) forwards ahead. Before its first backward a trip
  down to the last stage and back is needed (start), and likewise after its last forward (end):

      start:          sum_j W_j + (m - 1) b_i + (m - 1 - w) f_i
      end:            sum_j W_j + (m - 1) f_i + (m - 1 - w) b_i
      start and end:  sum_j W_j + sum_{j>i} W_j + (m - 1 - w) W_i,  where m >= w + 2

- GPipe: all forwards flow down, all backwards up: sum_j W_j + (m - 1) W_i

The simulation only ever adds to these: waiting, shared cores, collectives in each other's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.choices import Choices
from shardwright.specs import Layout, Prediction, ScheduleName

Floats = NDArray[np.float64]

Window = tuple[slice, slice]
"""First units of a stage, and first units after it."""

SLACK = 1e-12
"""Relative: sums in another order than the simulation's may differ by rounding, and a bound must
not exceed what it bounds."""


@dataclass(frozen=True, slots=True)
class UnitSeconds:
    """The least that each unit takes on one rank, under one `Choices`. Arrays are [units] long,
    in model order, but for the two receives, which are [pp] long."""

    forward_s: Floats
    """Of one micro-batch."""
    backward_s: Floats
    receive_forward_s: Floats
    """What stage i waits for one micro-batch's input to cross; 0 for the first stage."""
    receive_backward_s: Floats
    """As above for the gradient of its output; 0 for the last stage."""
    reduction_s: Floats
    """After the stage's last backward: reducing a unit's gradients, and its part of the norm."""
    tied_sum_s: float
    """Sum of a tied weight's gradient over the first and the last stage, after the reductions of
    both; 0 where nothing is tied or both are one."""
    optimizer_s: Floats
    """What a unit costs after the global gradient norm is known: update and gathering."""
    fixed_s: float
    """What every step pays once: counts, the norm, barriers."""
    shared_work_s: float
    """What the pipeline takes where ranks share cores and these never rest; 0 = none shared."""


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """The least that each unit holds on one rank, under one `Choices`; margins are in it."""

    state: Floats
    """Weights, gradients and optimizer state."""
    saved: Floats
    """Kept from forward to backward for one micro-batch, its output included."""
    peak: Floats
    """While the unit runs: the most alive beyond state and what earlier units saved."""
    hidden: float
    """The hidden states of one micro-batch, which a stage receives and sends on."""
    fixed: float
    """On every rank, whatever its stage holds."""


class Pricer(Protocol):
    """What the search needs to know of a problem's costs."""

    @property
    def capacity_bytes(self) -> int:
        """Usable memory of a device."""

    def unit_seconds(self, choices: Choices) -> UnitSeconds:
        """Lower bounds on the time of every unit."""

    def unit_bytes(self, choices: Choices) -> UnitBytes:
        """Lower bounds on the memory of every unit."""

    def predict(self, layout: Layout) -> Prediction:
        """The simulated step."""


def quick_step_bound_s(choices: Choices, seconds: UnitSeconds) -> float:
    """A bound over all cuts, in a few additions.

    The slowest stage takes sum W / pp at least, and as long as the slowest unit. For 1F1B with
    m > pp, the "start and end" paths alone give sum W + (m - 1) sum W / pp: their mean, with
    weights l_0 = K / (m - pp) and l_j = (K - l_0 - ... - l_{j-1}) / (m - pp + j), which are
    positive, counts every W_j exactly K = (m - 1) / pp times beyond the first.
    """
    pp, m = choices.pp, choices.num_microbatches
    forward = float(seconds.forward_s.sum() + seconds.receive_forward_s.sum())
    backward = float(seconds.backward_s.sum() + seconds.receive_backward_s.sum())
    work = forward + backward
    slowest = max(work / pp, float((seconds.forward_s + seconds.backward_s).max()))
    pipeline = max(work, m * slowest, seconds.shared_work_s)
    if choices.schedule != ScheduleName.ONE_F_ONE_B or m > pp:
        pipeline = max(pipeline, work + (m - 1) * work / pp)
    reduction = float(seconds.reduction_s[0]) + seconds.tied_sum_s
    optimizer = max(float(seconds.optimizer_s.sum()) / pp, float(seconds.optimizer_s.max()))
    return (seconds.fixed_s + pipeline + reduction + optimizer) * (1 - SLACK)


def quick_memory_bound_bytes(choices: Choices, unit_bytes: UnitBytes) -> float:
    """The least peak over all cuts: the fullest stage holds the mean at least.

    Each stage keeps one micro-batch at least, and under GPipe all of them. Over all stages, what
    they receive and do not keep of their outputs cancels out.
    """
    in_flight = min(micro_batches_in_flight(choices))
    states, saved = float(unit_bytes.state.sum()), float(unit_bytes.saved.sum())
    mean = (states + (in_flight - 1) * saved) / choices.pp
    fullest = max(mean, float((unit_bytes.state + unit_bytes.peak).max()))
    return (unit_bytes.fixed + fullest) * (1 - SLACK)


def micro_batches_in_flight(choices: Choices) -> list[int]:
    """The most micro-batches whose activations each stage holds at once."""
    m, pp = choices.num_microbatches, choices.pp
    if pp == 1:
        return [1]
    if choices.schedule == ScheduleName.GPIPE:
        return [m] * pp
    return [min(pp - stage, m) for stage in range(pp)]


def stage_windows(pp: int, num_units: int) -> list[Window]:
    """For each stage the first units, and the first units after it, that a cut may give it: one
    unit at least is left to every other stage."""
    spare = num_units - pp
    windows = [
        (slice(stage, stage + spare + 1), slice(stage + 1, stage + spare + 2))
        for stage in range(pp)
    ]
    windows[0] = slice(0, 1), windows[0][1]
    windows[-1] = windows[-1][0], slice(num_units, num_units + 1)
    return windows


def stage_memory_bytes(choices: Choices, unit_bytes: UnitBytes) -> Floats:
    """The least peak of each stage: [pp, units + 1, units + 1] over (stage, first unit, first unit
    after it), infinite where no cut has such a stage.

    A stage holds its state, what earlier micro-batches saved, the input of the current one, and the
    peak of the unit at which this needs most. What a stage sends on goes with the send, and what it
    receives is saved with it.
    """
    held, pp, num_units = unit_bytes, choices.pp, len(unit_bytes.state)
    saved, state = _sums(held.saved), _sums(held.state)
    peak = _running_peaks(saved, held.peak)
    needed = np.full((pp, num_units + 1, num_units + 1), np.inf)
    in_flight = micro_batches_in_flight(choices)
    for stage, window in enumerate(stage_windows(pp, num_units)):
        received = held.hidden if stage else 0.0
        sent = held.hidden if stage < pp - 1 else 0.0
        own_saved = _spans(saved, window) + (received - sent)
        total = held.fixed + _spans(state, window) + (in_flight[stage] - 1) * own_saved
        needed[stage][window] = (total + received + peak[window]) * (1 - SLACK)
    return needed


def _running_peaks(saved: Floats, peak: Floats) -> Floats:
    """[units + 1, units + 1] at (a, e): the most that one micro-batch needs while it runs through
    units a, a + 1, ... e - 1, of which the first have ``saved`` some; infinite where e <= a."""
    size = len(saved)
    reached = np.full((size, size), -np.inf)
    reached[:, 1:] = saved[:-1] + peak
    is_stage = np.arange(size)[None, :] > np.arange(size)[:, None]
    most = np.maximum.accumulate(np.where(is_stage, reached, -np.inf), axis=1)
    return np.where(is_stage, most - saved[:, None], np.inf)


def cut_memory_bytes(choices: Choices, unit_bytes: UnitBytes, starts: Sequence[int]) -> float:
    """The least peak of one cut's fullest stage, given the first unit of stages 1, 2, ..."""
    bounds = [0, *starts, len(unit_bytes.state)]
    needed = stage_memory_bytes(choices, unit_bytes)
    return max(float(needed[i, bounds[i], bounds[i + 1]]) for i in range(choices.pp))


class StageBounds:
    """Bounds of every stage that a cut may contain: arrays [pp, units + 1, units + 1] over
    (stage i, first unit a, first unit after it e), infinite where no cut has such a stage or it
    does not fit into memory."""

    def __init__(
        self,
        choices: Choices,
        seconds: UnitSeconds,
        unit_bytes: UnitBytes,
        capacity_bytes: float,
    ) -> None:
        self.choices = choices
        self.seconds = seconds
        self.unit_bytes = unit_bytes
        self.num_units = len(seconds.forward_s)
        self._forward, self._backward = _sums(seconds.forward_s), _sums(seconds.backward_s)
        self._reduction, self._optimizer = _sums(seconds.reduction_s), _sums(seconds.optimizer_s)
        self._receives = (_sums(seconds.receive_forward_s), _sums(seconds.receive_backward_s))
        received_s = sum(sums[-1] for sums in self._receives)
        self._total_s = self._forward[-1] + self._backward[-1] + received_s
        self.first_reduction_s = self._reduction + seconds.tied_sum_s
        """[e]: what follows the last backward of stage 0 if it ends before unit e."""
        needed = stage_memory_bytes(choices, unit_bytes)
        self.fits = needed <= capacity_bytes
        self.path_s = np.full(needed.shape, np.inf)
        """Until stage 0 has done its last backward."""
        self.own_path_s = np.full(needed.shape, np.inf)
        """Until the stage itself has reduced its gradients."""
        self.optimizer_s = np.full(needed.shape, np.inf)
        for stage, window in enumerate(stage_windows(choices.pp, self.num_units)):
            self._bound(stage, window)

    def step_s(self, path_s: float, own_path_s: float, optimizer_s: float, first: int) -> float:
        """The bound of a cut from the largest entry of each kind over its stages.

        The global gradient norm waits for every stage's reduction, and the step for every stage's
        update; ``first`` is the first unit that stage 0 does not hold.
        """
        until_norm = max(path_s + float(self.first_reduction_s[first]), own_path_s)
        return (self.seconds.fixed_s + until_norm + optimizer_s) * (1 - SLACK)

    def exclude(self, stage: int, first: int, stop: int) -> None:
        """Take out a stage that does not fit after all, and those that hold all of it and more."""
        for table in (self.path_s, self.own_path_s, self.optimizer_s):
            table[stage, : first + 1, stop:] = np.inf
        self.fits[stage, : first + 1, stop:] = False

    def cut_step_s(self, starts: Sequence[int]) -> float:
        """The bound of one cut, given the first unit of stages 1, 2, ...; infinite: too big."""
        bounds = [0, *starts, self.num_units]
        at = [(i, bounds[i], bounds[i + 1]) for i in range(self.choices.pp)]
        kinds = (self.path_s, self.own_path_s, self.optimizer_s)
        path, own_path, optimizer = (max(float(kind[stage]) for stage in at) for kind in kinds)
        return self.step_s(path, own_path, optimizer, bounds[1])

    def _bound(self, stage: int, window: Window) -> None:
        """Fill in what the tables say of one stage."""
        fits = self.fits[stage][window]
        path_s = self._path_s(stage, window)
        from_start_s = np.maximum(path_s, self.seconds.shared_work_s)
        self.path_s[stage][window] = np.where(fits, from_start_s, np.inf)
        own_path_s = self._own_path_s(stage, window, path_s)
        self.own_path_s[stage][window] = np.where(fits, own_path_s, np.inf)
        optimizer_s = _spans(self._optimizer, window)
        self.optimizer_s[stage][window] = np.where(fits, optimizer_s, np.inf)

    def _path_s(self, stage: int, window: Window) -> Floats:
        """The longest of the paths named at the top of this file."""
        m, pp, total = self.choices.num_microbatches, self.choices.pp, self._total_s
        forward = _spans(self._forward, window) + self.seconds.receive_forward_s[stage]
        backward = _spans(self._backward, window) + self.seconds.receive_backward_s[stage]
        work = forward + backward
        received = self._receives[0][stage] + self._receives[1][stage]
        before = (self._forward + self._backward)[window[0], None] + received
        longest: Floats = before + m * work
        if self.choices.schedule != ScheduleName.ONE_F_ONE_B:
            gpipe: Floats = np.maximum(longest, total + (m - 1) * work)
            return gpipe
        ahead = min(pp - 1 - stage, m)
        later = max(m - 1 - ahead, 0)
        longest = np.maximum(longest, total + (m - 1) * backward + later * forward)
        longest = np.maximum(longest, total + (m - 1) * forward + later * backward)
        if m >= ahead + 2:
            longest = np.maximum(longest, total + (total - before - work) + later * work)
        return longest

    def _own_path_s(self, stage: int, window: Window, path_s: Floats) -> Floats:
        """A path ends on this stage instead of stage 0, and its reductions follow."""
        backward_before = self._backward[window[0], None] + self._receives[1][stage]
        own: Floats = path_s - backward_before + _spans(self._reduction, window)
        return own + self.seconds.tied_sum_s if stage == self.choices.pp - 1 else own


def _sums(values: Floats) -> Floats:
    """[n + 1]: the sum of the first 0, 1, ... n values."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


def _spans(sums: Floats, window: Window) -> Floats:
    """The sum of values a, a + 1, ... e - 1 at each (a, e) of a window, given `_sums` of them."""
    firsts, stops = window
    spans: Floats = sums[None, stops] - sums[firsts, None]
    return spans
