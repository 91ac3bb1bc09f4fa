"""Times of a pipeline step in microseconds of CPU, where every rank computes alone.

What `makespan.simulate` says of the same schedule, under two assumptions: a message takes its
seconds from the end of the computation that made it, whatever its receiver does meanwhile, and
messages do not wait for each other. Then a step is the longest path through its computations.

A step of many micro-batches runs period by period (see `segments`). The next state follows from the
last by maxima and sums alone: that is linear in max-plus algebra. So many short periods are the
power of a matrix; and once a state is an earlier one plus a constant, all that follow are too, and
whole periods are skipped. Both are exact but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.pipeline.makespan import PipelineCosts, Seconds
from shardwright.cost_models.pipeline.orders import computation_order
from shardwright.cost_models.pipeline.program import Program, Work
from shardwright.cost_models.pipeline.segments import FlatOrder, Segment, flat_order, split_of
from shardwright.specs import Action, ActionKind, ScheduleName

_TOLERANCE = 1e-12
"""Relative: ends closer than this are equal."""

_OPERATIONS_PER_CHECK = 1000
"""As many take some 60 us; to look for a repetition takes a fifth of that."""

_MOST_LAG = 64
"""A state that repeats itself does so after as many micro-batches as are in flight, or a divisor
or a small multiple of them."""

_FREES = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)

Floats = NDArray[np.float64]
"""By micro-batch."""


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds of one micro-batch on each of S virtual stages, in model order."""

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    """A backward that the schedule does not split takes both."""
    message_s: tuple[float, ...]
    """Of S - 1 boundaries, from the end of a stage's pass until the next stage can read it; the
    gradients on the way back take as long. Without effect between two stages of one rank."""

    @property
    def backward_s(self) -> tuple[float, ...]:
        """Of a backward that is not split."""
        parts = zip(self.backward_input_s, self.backward_weight_s, strict=True)
        return tuple(input_s + weight_s for input_s, weight_s in parts)


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """One step, from the common start of all ranks."""

    makespan_s: float
    end_s: tuple[float, ...]
    """When each pipeline rank's last computation is over."""
    busy_s: tuple[float, ...]
    """Seconds in which each pipeline rank computes."""
    last_backward_s: tuple[float, ...]
    """When each virtual stage's gradients are complete: the end of its last backward, or of its
    last gradient of weights where that is apart. From then until the step's end the rank can reduce
    them while it computes on other stages, or waits."""


def pipeline_times(
    name: ScheduleName | str | None,
    *,
    pp: int,
    vpp: int,
    num_micro_batches: int,
    seconds: StageSeconds,
    overlap_ratio: float = 1.0,
) -> PipelineTimes:
    """How long a step of a schedule (null: without a pipeline) takes.

    ``overlap_ratio``: an overlapped forward and backward together take so much of the sum of their
    seconds; both hand on their results when both are over.

    Raises:
        InputError: a schedule that is not generated, or a ``vpp`` that it cannot have.
    """
    if name == ScheduleName.GPIPE and vpp == 1:
        return _gpipe_times(pp, num_micro_batches, seconds)
    flat = flat_order(name, pp, vpp, num_micro_batches)
    costs = _costs(flat, seconds, overlap_ratio)
    state = [0.0]
    for segment, count in flat.runs:
        state = _repeat(segment, count, costs, state, flat.memory)
    saved_s = [0.0] * pp
    if overlap_ratio != 1.0:
        _add_saved(saved_s, flat, costs, overlap_ratio)
    work_s = _work_s(flat.rank_of_stage, pp, num_micro_batches, seconds)
    ends_s = state[1 : pp + 1]
    return PipelineTimes(
        makespan_s=max(ends_s),
        end_s=tuple(ends_s),
        busy_s=tuple(work - saved for work, saved in zip(work_s, saved_s, strict=True)),
        last_backward_s=tuple(state[pp + 1 :]),
    )


def _work_s(
    rank_of_stage: Sequence[int], pp: int, num_micro_batches: int, seconds: StageSeconds
) -> list[float]:
    """Of each rank's computations one after the other."""
    totals = [0.0] * pp
    passes = (seconds.forward_s, seconds.backward_input_s, seconds.backward_weight_s)
    for rank, forward_s, input_s, weight_s in zip(rank_of_stage, *passes, strict=True):
        totals[rank] += num_micro_batches * (forward_s + input_s + weight_s)
    return totals


def _add_saved(
    saved_s: list[float], flat: FlatOrder, costs: Sequence[tuple[float, float]], ratio: float
) -> None:
    """What each rank saves by overlapping."""
    forwards = dict(flat.pairs)
    for segment, count in flat.runs:
        for work, num_pairs in segment.num_pairs:
            rank = flat.rank_of_stage[forwards[work]]
            saved_s[rank] += count * num_pairs * costs[work][1] * (1 / ratio - 1)


def _costs(
    flat: FlatOrder, seconds: StageSeconds, overlap_ratio: float
) -> list[tuple[float, float]]:
    """Of each work: seconds of the message that it awaits, and its own."""
    forward_s = seconds.forward_s
    by_part = (seconds.backward_input_s, seconds.backward_weight_s)
    tables = (forward_s, seconds.backward_s, *by_part, (0.0,) * len(forward_s))
    message_s = (*seconds.message_s, 0.0)  # boundary -1
    costs = [(message_s[boundary], tables[table][stage]) for boundary, table, stage in flat.works]
    for work, stage in flat.pairs:
        wait_s, own_s = costs[work]
        costs[work] = wait_s, (forward_s[stage] + own_s) * overlap_ratio
    return costs


def _repeat(
    segment: Segment,
    count: int,
    costs: Sequence[tuple[float, float]],
    state: list[float],
    memory: Sequence[Sequence[int]],
) -> list[float]:
    """The state after a segment has run so many times."""
    if count == 1:
        return _run(segment, costs, state)
    if _is_power_cheaper(segment, count, len(memory)):
        return _by_power(segment, count, costs, state, memory)
    states = [state]
    check_every = -(-_OPERATIONS_PER_CHECK // len(segment.operations))
    left = count
    while left:
        states.append(_run(segment, costs, states[-1]))
        left -= 1
        lag = 0 if left % check_every else _lag(states)
        if lag:
            growth_s = (left // lag) * (states[-1][1] - states[-1 - lag][1])
            states = [[0.0, *(end_s + growth_s for end_s in states[-1][1:])]]
            left %= lag
    return states[-1]


def _lag(states: Sequence[Sequence[float]]) -> int:
    """How many periods ago the state was the same but for a constant; 0 if never."""
    new = states[-1]
    near_s = _TOLERANCE * new[1]
    for lag in range(1, min(len(states), _MOST_LAG + 1)):
        old = states[-1 - lag]
        growth_s = new[1] - old[1]
        if all(abs(a - b - growth_s) <= near_s for a, b in zip(new[2:], old[2:], strict=True)):
            return lag
    return 0


def _is_power_cheaper(segment: Segment, count: int, size: int) -> bool:
    """Whether ``count`` runs cost more than a matrix of that size, its powers and their products.

    Measured: a sum in a product of matrices takes 1/40 of an operation's time, to multiply the
    state with a matrix as long as 80 operations.
    """
    length = len(segment.operations)
    num_squares = (2 * count // size).bit_length()
    return size * length + num_squares * size**3 / 40 + size * 40 < count * length


def _by_power(
    segment: Segment,
    count: int,
    costs: Sequence[tuple[float, float]],
    state: list[float],
    memory: Sequence[Sequence[int]],
) -> list[float]:
    """A period is linear in max-plus algebra: sums for products and maxima for sums.

    So ``count`` of them are a power of one matrix. The first and the last period run as they are:
    the one makes equal what is always equal, the other computes what no later period reads.
    """
    state = _run(segment, costs, state)
    columns = []
    for places in memory:
        unit = [-np.inf] * len(state)
        for place in places:
            unit[place] = 0.0
        after = _run(segment, costs, unit)
        columns.append([after[places[0]] for places in memory])
    period_s = np.array(columns).T
    ends_s = np.array([state[places[0]] for places in memory])
    left = count - 2
    while left > len(memory) // 2:  # to square costs as much as so many products with the state
        if left % 2:
            ends_s = (period_s + ends_s).max(1)
        left //= 2
        period_s = (period_s[:, :, None] + period_s).max(1)
    for _ in range(left):
        ends_s = (period_s + ends_s).max(1)
    for places, end_s in zip(memory, ends_s.tolist(), strict=True):
        for place in places:
            state[place] = end_s
    return _run(segment, costs, state)


def _run(
    segment: Segment, costs: Sequence[tuple[float, float]], state: Sequence[float]
) -> list[float]:
    """The state after a segment. Called for every price: nothing here but the longest path."""
    ends_s = list(state)
    append = ends_s.append
    for previous, given, work in segment.operations:
        wait_s, own_s = costs[work]
        start_s = ends_s[previous]
        ready_s = ends_s[given] + wait_s
        append((start_s if start_s > ready_s else ready_s) + own_s)
    return [ends_s[place] for place in segment.passed_on]


def _gpipe_times(pp: int, num_micro_batches: int, seconds: StageSeconds) -> PipelineTimes:
    """All forwards, then all backwards: on each rank a chain that is fed by one neighbour's."""
    own_s = seconds.backward_s
    ready_s = np.zeros(num_micro_batches)
    forwards_end_s = []
    for forward_s, message_s in zip(seconds.forward_s, (*seconds.message_s, 0.0), strict=True):
        ends_s = _chain(ready_s, forward_s, 0.0)
        forwards_end_s.append(float(ends_s[-1]))
        ready_s = ends_s + message_s
    ready_s = np.zeros(num_micro_batches)
    end_s = [0.0] * pp
    for stage in reversed(range(pp)):
        ends_s = _chain(ready_s, own_s[stage], forwards_end_s[stage])
        end_s[stage] = float(ends_s[-1])
        ready_s = ends_s + (seconds.message_s[stage - 1] if stage else 0.0)
    busy_s = _work_s(range(pp), pp, num_micro_batches, seconds)
    return PipelineTimes(max(end_s), tuple(end_s), tuple(busy_s), tuple(end_s))


def _chain(ready_s: Floats, own_s: float, free_s: float) -> Floats:
    """Ends of equal computations one after the other, each of which waits for its own input.

    The k-th ends at the latest of all j <= k: when j was ready, and then k - j + 1 in a row.
    """
    rows_s = own_s * np.arange(len(ready_s))
    ends_s: Floats = np.maximum.accumulate(np.maximum(ready_s, free_s) - rows_s) + rows_s + own_s
    return ends_s


def simulation_costs(
    program: Program, seconds: StageSeconds, overlap_ratio: float = 1.0
) -> PipelineCosts:
    """The same seconds for `makespan.simulate`."""
    by_kind = {
        ActionKind.FORWARD: seconds.forward_s,
        ActionKind.BACKWARD: seconds.backward_s,
        ActionKind.BACKWARD_INPUT: seconds.backward_input_s,
        ActionKind.BACKWARD_WEIGHT: seconds.backward_weight_s,
    }
    work_s: dict[Work, Seconds] = {}
    for item in (item for row in program.items for item in row if item.work >= 0):
        action = item.actions[0]
        total_s = sum(by_kind[part.kind][part.stage] for part in action.parts or (action,))
        ratio = overlap_ratio if action.parts else 1.0
        work_s[program.works[item.work]] = (total_s * ratio,)
    transfer_s = {
        (stage, kind): seconds.message_s[stage - (kind is ActionKind.SEND_BACKWARD)]
        for stage, kind in program.sends
    }
    return PipelineCosts(work_s, transfer_s)


_MOST_HELD: dict[str, Callable[[int, int], float]] = {
    ScheduleName.GPIPE: lambda pp, rank: math.inf,
    ScheduleName.ONE_F_ONE_B: lambda pp, rank: pp - rank,
    ScheduleName.ZB_H1: lambda pp, rank: pp,
    ScheduleName.ZB_H2: lambda pp, rank: 2 * pp - 1,
}
"""Where every rank has one stage: see the table of `orders`."""


@lru_cache(maxsize=1024)
def in_flight(
    name: ScheduleName | str | None, *, pp: int, vpp: int, num_micro_batches: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each rank, by chunk, the most micro-batches that it holds activations of at once.

    One tuple of counts by chunk for each moment that no other moment exceeds in every chunk. A
    micro-batch is held from the start of its forward to the end of its backward, or of its gradient
    of weights where that is apart. In a long step every period holds what the first one does.

    Raises:
        InputError: a schedule that is not generated, or a ``vpp`` that it cannot have.
    """
    if name is None:
        return (((1,) * vpp,),)
    most = _MOST_HELD.get(name)
    if most is not None and vpp == 1:
        held = (int(min(num_micro_batches, most(pp, rank))) for rank in range(pp))
        return tuple(((count,),) for count in held)
    split = split_of(name, pp, vpp, num_micro_batches)
    if split is not None:
        num_micro_batches = split.num_micro_batches + split.period
    order = computation_order(name, pp, vpp, num_micro_batches)
    return tuple(_most_held(row, pp, vpp) for row in order)


def _most_held(row: Sequence[Action], pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Of one rank, from the counts before each time that they shrink."""
    held = [0] * vpp
    found: dict[tuple[int, ...], None] = {}
    has_grown = False
    for action in row:
        parts = action.parts or (action,)
        for part in parts:
            if part.kind is ActionKind.FORWARD:
                held[part.stage // pp] += 1
                has_grown = True
        for part in parts:
            if part.kind in _FREES:
                if has_grown:
                    found[tuple(held)] = None
                    has_grown = False
                held[part.stage // pp] -= 1
    return tuple(counts for counts in found if not _is_exceeded(counts, found))


def _is_exceeded(counts: tuple[int, ...], others: Iterable[tuple[int, ...]]) -> bool:
    """Whether one of the others holds no less of any chunk, and more of some."""
    total = sum(counts)
    return any(
        sum(other) > total and all(a >= b for a, b in zip(other, counts, strict=True))
        for other in others
    )
