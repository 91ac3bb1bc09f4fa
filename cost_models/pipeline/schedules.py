"""Generators of `Schedule`: what each pipeline rank computes, sends and receives, in order.

A generator writes only the computations of each rank; `with_communication` then puts every receive
directly before the computation that reads it and every send directly after the one that made it.
Between two computations a rank therefore has one *batch* of communication. The order is free of
deadlock where sends are asynchronous and receives block, and also where a batch is posted at once
and waits for all its peers (NCCL's grouped point-to-point): in the steady state of 1F1B the batches
of two neighbours are each other's mirror, {SEND_F, RECV_B} against {SEND_B, RECV_F}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from shardwright.specs import Action, ActionKind, InputError, Layout, Schedule, ScheduleName

Order = list[list[Action]]
"""Computations of each rank, in order."""

_F, _B = ActionKind.FORWARD, ActionKind.BACKWARD
_FORWARD_TRANSFERS = (ActionKind.RECV_FORWARD, ActionKind.SEND_FORWARD)
_BACKWARD_TRANSFERS = (ActionKind.RECV_BACKWARD, ActionKind.SEND_BACKWARD)
_TRANSFERS = {
    ActionKind.FORWARD: _FORWARD_TRANSFERS,
    ActionKind.BACKWARD: _BACKWARD_TRANSFERS,
    ActionKind.BACKWARD_INPUT: _BACKWARD_TRANSFERS,
}
"""The receive before and the send after each kind of computation."""
_NEIGHBOUR = {
    ActionKind.FORWARD: (-1, 1),
    ActionKind.BACKWARD: (1, -1),
    ActionKind.BACKWARD_INPUT: (1, -1),
}
"""Where, relative to the own stage, the input comes from and the output goes to."""


def sequential_actions(num_micro_batches: int) -> tuple[Action, ...]:
    """Without a pipeline: forward and backward of each micro-batch in turn, on stage 0."""
    return tuple(Action(0, kind, m) for m in range(num_micro_batches) for kind in (_F, _B))


@lru_cache(maxsize=128)
def sequential_schedule(num_micro_batches: int) -> Schedule:
    """`sequential_actions` as the schedule of the one pipeline rank."""
    return Schedule(
        name="sequential",
        num_stages=1,
        num_micro_batches=num_micro_batches,
        ranks=(sequential_actions(num_micro_batches),),
    )


def schedule_of(layout: Layout) -> Schedule:
    """The schedule that a layout runs; `sequential_schedule` where it has no pipeline."""
    if layout.schedule is None:
        return sequential_schedule(layout.micro_batches)
    return build_schedule(
        layout.schedule, pp=layout.pp, vpp=layout.vpp, num_micro_batches=layout.micro_batches
    )


@lru_cache(maxsize=128)
def build_schedule(
    name: ScheduleName | str, *, pp: int, vpp: int = 1, num_micro_batches: int
) -> Schedule:
    """The complete schedule of ``pp`` ranks with ``vpp`` virtual stages each.

    Raises:
        InputError: a schedule that is not generated here, or more stages than it allows.
    """
    generator = _GENERATORS.get(str(name))
    if generator is None:
        raise InputError(
            f"there is no generator for the schedule {name}",
            fix=f"choose one of {', '.join(_GENERATORS)}",
        )
    if vpp != 1:
        raise InputError(f"{name} has one stage per rank, but vpp = {vpp}", fix="set vpp to 1")
    order = generator(pp, num_micro_batches)
    rank_of_stage = list(range(pp))
    return Schedule(
        name=str(name),
        num_stages=pp,
        num_micro_batches=num_micro_batches,
        ranks=tuple(with_communication(row, rank_of_stage) for row in order),
    )


def with_communication(row: Sequence[Action], rank_of_stage: Sequence[int]) -> tuple[Action, ...]:
    """One rank's computations with the receive before and the send after each that needs them.

    Neighbouring stages on the same rank hand tensors over without communication. ``stage`` of a
    send or receive is the stage that performs it: ``0SEND_F3`` is met by ``1RECV_F3``.
    """
    actions = []
    for action in row:
        before, after = _NEIGHBOUR.get(action.kind, (0, 0))
        kinds = _TRANSFERS.get(action.kind)
        if kinds and _is_remote(action.stage, before, rank_of_stage):
            actions.append(Action(action.stage, kinds[0], action.micro_batch))
        actions.append(action)
        if kinds and _is_remote(action.stage, after, rank_of_stage):
            actions.append(Action(action.stage, kinds[1], action.micro_batch))
    return tuple(actions)


def _is_remote(stage: int, offset: int, rank_of_stage: Sequence[int]) -> bool:
    peer = stage + offset
    return 0 <= peer < len(rank_of_stage) and rank_of_stage[peer] != rank_of_stage[stage]


def _gpipe(pp: int, num_micro_batches: int) -> Order:
    """All forwards, then all backwards (Huang et al. 2019)."""
    return [
        [Action(rank, kind, m) for kind in (_F, _B) for m in range(num_micro_batches)]
        for rank in range(pp)
    ]


def _one_f_one_b(pp: int, num_micro_batches: int) -> Order:
    """PipeDream-Flush (Narayanan et al. 2021): rank r holds at most min(pp - r, m) micro-batches.

    Rank r runs pp - r - 1 forwards ahead, then one forward and one backward in turn.
    """
    order: Order = []
    for rank in range(pp):
        ahead = min(pp - rank - 1, num_micro_batches)
        forwards = [Action(rank, _F, m) for m in range(num_micro_batches)]
        backwards = [Action(rank, _B, m) for m in range(num_micro_batches)]
        row = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards, strict=False):
            row += (forward, backward)
        order.append(row + backwards[num_micro_batches - ahead :])
    return order


_GENERATORS: dict[str, Callable[[int, int], Order]] = {
    ScheduleName.GPIPE: _gpipe,
    ScheduleName.ONE_F_ONE_B: _one_f_one_b,
}
