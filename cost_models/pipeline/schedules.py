"""Builds a `Schedule`: what each pipeline rank computes, sends and receives, in order.

`orders` writes only the computations of each rank; `with_communication` then puts every receive
directly before the computation that reads it and every send directly after the one that made it.
Between two computations a rank therefore has one *batch* of communication. The order is free of
deadlock where sends are asynchronous and receives block. GPipe and 1F1B are so also where a batch
is posted at once and waits for all its peers (NCCL's grouped point-to-point): in the steady state
of 1F1B the batches of two neighbours are each other's mirror, {SEND_F, RECV_B} against
{SEND_B, RECV_F}.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from shardwright.cost_models.pipeline.orders import computation_order, ranks_of_stages
from shardwright.specs import Action, ActionKind, Layout, Schedule, ScheduleName

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
        InputError: a schedule that is not generated, or a ``vpp`` that it cannot have.
    """
    order = computation_order(name, pp, vpp, num_micro_batches)
    rank_of_stage = ranks_of_stages(name, pp, vpp)
    return Schedule(
        name=str(name),
        num_stages=pp * vpp,
        num_micro_batches=num_micro_batches,
        ranks=tuple(with_communication(row, rank_of_stage) for row in order),
    )


def with_communication(row: Sequence[Action], rank_of_stage: Sequence[int]) -> tuple[Action, ...]:
    """One rank's computations with the receive before and the send after each that needs them.

    Neighbouring stages on the same rank hand tensors over without communication. ``stage`` of a
    send or receive is the stage that performs it: ``0SEND_F3`` is met by ``1RECV_F3``.
    """
    actions: list[Action] = []
    for action in row:
        parts = action.parts or (action,)
        before = (_transfer(part, 0, rank_of_stage) for part in parts)
        after = (_transfer(part, 1, rank_of_stage) for part in parts)
        actions += (*filter(None, before), action, *filter(None, after))
    return tuple(actions)


def _transfer(action: Action, side: int, rank_of_stage: Sequence[int]) -> Action | None:
    """The receive before (``side`` 0) or the send after (1) a computation; None if on one rank."""
    if action.kind not in _TRANSFERS:
        return None
    peer = action.stage + _NEIGHBOUR[action.kind][side]
    is_there = 0 <= peer < len(rank_of_stage)
    if not is_there or rank_of_stage[peer] == rank_of_stage[action.stage]:
        return None
    return Action(action.stage, _TRANSFERS[action.kind][side], action.micro_batch)
