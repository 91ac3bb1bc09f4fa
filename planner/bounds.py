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

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.choices import Choices
from shardwright.specs import Layout, Prediction, ScheduleName

Floats = NDArray[np.float64]

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

    def state_bytes(self, choices: Choices) -> Floats:
        """The ``state`` of `unit_bytes`, which is known before the rest."""

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


def state_bound_bytes(choices: Choices, state: Floats) -> float:
    """The least state that the fullest stage holds, over all cuts."""
    return max(float(state.sum()) / choices.pp, float(state.max())) * (1 - SLACK)


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


def place_of(stage: int, first: int, stop: int) -> tuple[int, int, int]:
    """Where the tables of stages have the stage with units ``first`` to ``stop``.

    Every stage holds one unit at least, so that ``spare`` = units - pp of them are free to go
    anywhere. Tables are [pp, spare + 1, spare + 1] over (stage, spare units taken by the stages
    before, those and its own). The last of one stage is the second of the next.
    """
    return stage, first - stage, stop - stage - 1


def stage_memory_bytes(choices: Choices, unit_bytes: UnitBytes) -> Floats:
    """The least peak of each stage, as `place_of`; infinite where no cut has such a stage.

    A stage holds its state, what earlier micro-batches saved, the input of the current one, and the
    peak of the unit at which this needs most. What a stage sends on goes with the send, and what it
    receives is saved with it.
    """
    held, pp = unit_bytes, choices.pp
    spare = len(held.state) - pp
    saved, state = _sums(held.saved), _sums(held.state)
    peaks = _running_peaks(saved, held.peak)
    needed = np.empty((pp, spare + 1, spare + 1))
    for stage, in_flight in enumerate(micro_batches_in_flight(choices)):
        received = held.hidden if stage else 0.0
        sent = held.hidden if stage < pp - 1 else 0.0
        own_saved = _spans(saved, stage, spare) + (received - sent)
        total = held.fixed + _spans(state, stage, spare) + (in_flight - 1) * own_saved
        peak = peaks[stage : stage + spare + 1, stage + 1 : stage + spare + 2]
        needed[stage] = (total + received + peak) * (1 - SLACK)
    needed[0, 1:] = needed[-1, :, :-1] = np.inf
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
    needed = stage_memory_bytes(choices, unit_bytes)
    return max(float(needed[place]) for place in _places(starts, len(unit_bytes.state)))


def _places(starts: Sequence[int], num_units: int) -> list[tuple[int, int, int]]:
    """Where tables have the stages of a cut."""
    stages = itertools.pairwise([0, *starts, num_units])
    return [place_of(stage, *units) for stage, units in enumerate(stages)]


class StageBounds:
    """Bounds of every stage that a cut may contain, as `place_of`; infinite where no cut has such a
    stage or it does not fit into memory."""

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
        self._spare = self.num_units - choices.pp
        self._forward, self._backward = _sums(seconds.forward_s), _sums(seconds.backward_s)
        self._reduction, self._optimizer = _sums(seconds.reduction_s), _sums(seconds.optimizer_s)
        self._receives = (_sums(seconds.receive_forward_s), _sums(seconds.receive_backward_s))
        received_s = sum(sums[-1] for sums in self._receives)
        self._total_s = self._forward[-1] + self._backward[-1] + received_s
        self.first_reduction_s = self._reduction + seconds.tied_sum_s
        """[e]: what follows the last backward of stage 0 if it ends before unit e."""
        needed = stage_memory_bytes(choices, unit_bytes)
        self.fits = needed <= capacity_bytes
        self.path_s = np.empty(needed.shape)
        """Until stage 0 has done its last backward."""
        self.own_path_s = np.empty(needed.shape)
        """Until the stage itself has reduced its gradients."""
        self.optimizer_s = np.empty(needed.shape)
        for stage in range(choices.pp):
            self._bound(stage)

    def step_s(self, path_s: float, own_path_s: float, optimizer_s: float, first: int) -> float:
        """The bound of a cut from the largest entry of each kind over its stages.

        The global gradient norm waits for every stage's reduction, and the step for every stage's
        update; ``first`` is the first unit that stage 0 does not hold.
        """
        until_norm = max(path_s + float(self.first_reduction_s[first]), own_path_s)
        return (self.seconds.fixed_s + until_norm + optimizer_s) * (1 - SLACK)

    def exclude(self, stage: int, first: int, stop: int) -> None:
        """Take out a stage that does not fit after all, and those that hold all of it and more."""
        _, before, until = place_of(stage, first, stop)
        for table in (self.path_s, self.own_path_s, self.optimizer_s):
            table[stage, : before + 1, until:] = np.inf
        self.fits[stage, : before + 1, until:] = False

    def cut_step_s(self, starts: Sequence[int]) -> float:
        """The bound of one cut, given the first unit of stages 1, 2, ...; infinite: too big."""
        places = _places(starts, self.num_units)
        kinds = (self.path_s, self.own_path_s, self.optimizer_s)
        path, own_path, optimizer = (max(float(kind[at]) for at in places) for kind in kinds)
        return self.step_s(path, own_path, optimizer, starts[0] if starts else self.num_units)

    def _bound(self, stage: int) -> None:
        """Fill in what the tables say of one stage."""
        fits, path_s = self.fits[stage], self._path_s(stage)
        from_start_s = np.maximum(path_s, self.seconds.shared_work_s)
        self.path_s[stage] = np.where(fits, from_start_s, np.inf)
        self.own_path_s[stage] = np.where(fits, self._own_path_s(stage, path_s), np.inf)
        self.optimizer_s[stage] = np.where(fits, self._spans(self._optimizer, stage), np.inf)

    def _spans(self, sums: Floats, stage: int) -> Floats:
        return _spans(sums, stage, self._spare)

    def _before(self, sums: Floats, stage: int) -> Floats:
        """[spare + 1, 1]: the sum over the units of all stages before."""
        before: Floats = sums[stage : stage + self._spare + 1, None]
        return before

    def _path_s(self, stage: int) -> Floats:
        """The longest of the paths named at the top of this file."""
        m, pp, total = self.choices.num_microbatches, self.choices.pp, self._total_s
        forward = self._spans(self._forward, stage) + self.seconds.receive_forward_s[stage]
        backward = self._spans(self._backward, stage) + self.seconds.receive_backward_s[stage]
        work = forward + backward
        received = self._receives[0][stage] + self._receives[1][stage]
        before = self._before(self._forward + self._backward, stage) + received
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

    def _own_path_s(self, stage: int, path_s: Floats) -> Floats:
        """A path ends on this stage instead of stage 0, and its reductions follow."""
        backward_before = self._before(self._backward, stage) + self._receives[1][stage]
        own: Floats = path_s - backward_before + self._spans(self._reduction, stage)
        return own + self.seconds.tied_sum_s if stage == self.choices.pp - 1 else own


def _sums(values: Floats) -> Floats:
    """[n + 1]: the sum of the first 0, 1, ... n values."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


def _spans(sums: Floats, stage: int, spare: int) -> Floats:
    """[spare + 1, spare + 1]: the sum over the units of a stage as `place_of` has them, given
    `_sums` over all units."""
    before, until = sums[stage : stage + spare + 1], sums[stage + 1 : stage + spare + 2]
    spans: Floats = until[None, :] - before[:, None]
    return spans
