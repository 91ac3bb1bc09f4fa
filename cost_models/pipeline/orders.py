"""In which order each pipeline rank computes: one generator per schedule, nothing communicated.

m micro-batches, p ranks, v virtual stages per rank. F is the forward of one stage, B its backward,
which the zero-bubble schedules split into the gradient of its input (I) and of its weights (W).

Idle seconds of each rank within a step of equal stages, with free messages and m >= p (2p - 1 for
ZB-H2 and ZB-V, 2p for DualPipeV), and micro-batches that rank r holds at most. F, I and W are those
of one virtual stage, which with v of them is 1/v of a rank's layers; FB is an overlapped pair.

| schedule         | idle                       | held, each on one virtual stage |
|------------------|----------------------------|---------------------------------|
| gpipe            | (p-1) (F+I+W)              | m                               |
| 1f1b             | (p-1) (F+I+W)              | p - r                           |
| interleaved-1f1b | (p-1) (F+I+W)              | (v-1) p + 2 (p-r-1) + 1         |
| zb-h1            | (p-1) (F+I-W)              | p                               |
| zb-h2            | (p-1) F where F = I = W    | 2p - 1                          |
| zb-v             | (p-1) F where F = I = W    | 2p                              |
| dualpipev        | (p-1) (FB-W) if F = I = W  | 2p + 1                          |

Under ZB-H2 and ZB-V that idle time is the wait before a rank's first forward or after its last
gradient: each rank starts, and ends, one forward after the one before.

Sources: GPipe, Huang et al. 2019; 1F1B and interleaving, Narayanan et al. 2021 (2104.04473) and
Megatron-LM's ``schedules.py``; ZB-H1, ZB-H2, ZB-V, Qi et al. (2401.10241, 2405.15362); DualPipeV,
DeepSeek's DualPipe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from shardwright.cost_models.pipeline.v_orders import dualpipe_v, zb_v
from shardwright.specs import Action, ActionKind, InputError, ScheduleName
from shardwright.specs.layout import place_stages, vpp_problems
from shardwright.specs.world import split_evenly

Order = list[list[Action]]
"""Computations of each rank, in order."""

_F, _B = ActionKind.FORWARD, ActionKind.BACKWARD
_I, _W = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def computation_order(name: ScheduleName | str, pp: int, vpp: int, num_micro_batches: int) -> Order:
    """What each of ``pp`` ranks computes, in order.

    Raises:
        InputError: a schedule that is not generated, or a ``vpp`` that it cannot have.
    """
    generator = _GENERATORS.get(str(name))
    if generator is None:
        raise InputError(
            f"there is no generator for the schedule {name}",
            fix=f"choose one of {', '.join(_GENERATORS)}",
        )
    for problem, nearest in vpp_problems(ScheduleName(name), vpp):
        raise InputError(problem, fix=f"set {nearest}")
    return generator(pp, vpp, num_micro_batches)


@lru_cache(maxsize=512)
def ranks_of_stages(name: ScheduleName | str, pp: int, vpp: int) -> tuple[int, ...]:
    """The pipeline rank of each virtual stage, in model order."""
    placed = place_stages([0] * (pp * vpp), 0, pp, ScheduleName(name))
    return tuple(stage.rank for stage in placed)


def groups_of_micro_batches(pp: int, num_micro_batches: int) -> list[int]:
    """How many micro-batches in turn pass a chunk before the rank goes on to its next chunk.

    Megatron's group has pp of them, or any number >= pp of which the last group too has pp. Here m
    is split as evenly as whole groups of at least pp allow, as torch's flexible rounds; where m is
    a multiple of pp that is the same. Fewer than pp are one group.
    """
    groups = split_evenly(num_micro_batches, max(1, num_micro_batches // pp))
    return [len(group) for group in groups]


def _actions(stage: int, kind: ActionKind, num_micro_batches: int) -> tuple[Action, ...]:
    """Of micro-batch 0, 1, ...: so many at the least."""
    return _made_actions(stage, kind, 1 << max(0, num_micro_batches - 1).bit_length())


@lru_cache(maxsize=4096)
def _made_actions(stage: int, kind: ActionKind, count: int) -> tuple[Action, ...]:
    """To make them is most of the work of writing an order, and orders share them."""
    return tuple(Action(stage, kind, m) for m in range(count))


def _gpipe(pp: int, vpp: int, num_micro_batches: int) -> Order:
    """All forwards, then all backwards."""
    return [
        [
            a
            for kind in (_F, _B)
            for a in _actions(rank, kind, num_micro_batches)[:num_micro_batches]
        ]
        for rank in range(pp)
    ]


def _one_f_one_b(pp: int, vpp: int, num_micro_batches: int) -> Order:
    """PipeDream-Flush: rank r runs p - r - 1 forwards ahead, then a forward and a backward in turn.

    So it holds at most min(p - r, m) micro-batches.
    """
    order: Order = []
    for rank in range(pp):
        forwards, backwards = (
            list(_actions(rank, kind, num_micro_batches)[:num_micro_batches]) for kind in (_F, _B)
        )
        order.append(_one_ahead(forwards, backwards, pp - rank - 1))
    return order


def _interleaved(pp: int, vpp: int, num_micro_batches: int) -> Order:
    """Megatron's interleaved 1F1B: 1F1B over (micro-batch, chunk) pairs, group by group.

    Forwards run 2 (p - r - 1) + (v - 1) x the group ahead.
    """
    groups = groups_of_micro_batches(pp, num_micro_batches)
    forwards = _by_chunks(groups, list(range(vpp)))
    backwards = _by_chunks(groups, list(range(vpp))[::-1])
    order: Order = []
    for rank in range(pp):
        of_chunk = [
            [_actions(chunk * pp + rank, kind, num_micro_batches) for chunk in range(vpp)]
            for kind in (_F, _B)
        ]
        order.append(
            _one_ahead(
                [of_chunk[0][chunk][m] for chunk, m in forwards],
                [of_chunk[1][chunk][m] for chunk, m in backwards],
                2 * (pp - rank - 1) + (vpp - 1) * groups[0],
            )
        )
    return order


def _by_chunks(groups: list[int], chunks: list[int]) -> list[tuple[int, int]]:
    """(chunk, micro-batch) in order: each group passes every chunk before the next one starts."""
    found: list[tuple[int, int]] = []
    start = 0
    for size in groups:
        found += [(chunk, m) for chunk in chunks for m in range(start, start + size)]
        start += size
    return found


def _one_ahead(forwards: list[Action], backwards: list[Action], ahead: int) -> list[Action]:
    """``ahead`` forwards, then a forward and a backward in turn, then the backwards left over."""
    ahead = min(ahead, len(forwards))
    row = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        row += (forward, backward)
    return row + backwards[len(forwards) - ahead :]


def _zb_h1(pp: int, vpp: int, num_micro_batches: int) -> Order:
    """1F1B with its weight gradients put off as far as every rank can in rank 0's p micro-batches.

    Rank r's W of a micro-batch comes r micro-batches after its I.
    """
    return [
        _zero_bubble(rank, num_micro_batches, ahead=pp - rank, most_held=pp) for rank in range(pp)
    ]


def _zb_h2(pp: int, vpp: int, num_micro_batches: int) -> Order:
    """ZB-H1 with twice as many forwards ahead, so that the first gradient finds no rank waiting.

    Each rank starts one forward later than the one before, and ends as much later: only a step
    without a barrier, such as a global gradient norm, has no bubble.
    """
    return [
        _zero_bubble(rank, num_micro_batches, ahead=2 * (pp - rank) - 1, most_held=2 * pp - 1)
        for rank in range(pp)
    ]


def _zero_bubble(stage: int, num_micro_batches: int, *, ahead: int, most_held: int) -> list[Action]:
    """Forwards ahead, then I and F in turn, with a W before an F wherever memory is full.

    After the last F, an I and a W in turn, then the weight gradients left over.
    """
    forwards, inputs, weights = (_actions(stage, kind, num_micro_batches) for kind in (_F, _I, _W))
    num_forwards = min(ahead, num_micro_batches)
    num_weights = 0
    row = list(forwards[:num_forwards])
    for m in range(num_micro_batches):
        row.append(inputs[m])
        is_over = num_forwards == num_micro_batches
        if is_over or num_forwards - num_weights == most_held:
            row.append(weights[num_weights])
            num_weights += 1
        if not is_over:
            row.append(forwards[num_forwards])
            num_forwards += 1
    return row + list(weights[num_weights:num_micro_batches])


_GENERATORS: dict[str, Callable[[int, int, int], Order]] = {
    ScheduleName.GPIPE: _gpipe,
    ScheduleName.ONE_F_ONE_B: _one_f_one_b,
    ScheduleName.INTERLEAVED: _interleaved,
    ScheduleName.ZB_H1: _zb_h1,
    ScheduleName.ZB_H2: _zb_h2,
    ScheduleName.ZB_V: lambda pp, vpp, m: zb_v(pp, m),
    ScheduleName.DUALPIPE_V: lambda pp, vpp, m: dualpipe_v(pp, m),
}
