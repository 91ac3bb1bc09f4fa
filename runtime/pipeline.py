"""Executes one rank's actions of a `Schedule`: the schedule that is priced is the one that runs.

Sends and receives that stand next to each other are one *batch*: they are posted at once, and the
rank goes on when the batch's receives are done. Sends are asynchronous, so a rank runs ahead of its
peers as far as its schedule says. A send's buffer is kept until a later message from the same peer
proves that it was received: gloo does not tell whether a send is over, other than by waiting.

Between its forward and its backward a micro-batch keeps its input, what autograd saved, and the
*edge* of its output in the graph instead of the output itself, whose storage goes with the send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from shardwright.runtime.stopwatch import during
from shardwright.specs import Action, ActionKind, Schedule

MicroBatch = tuple[Tensor, Tensor]
"""Tokens and labels, each [B, T] int64."""

Item = tuple[Action, ...]
"""One computation, or a batch of transfers."""

_COMPUTATIONS = (ActionKind.FORWARD, ActionKind.BACKWARD)
_RECEIVE_OF = {
    ActionKind.SEND_FORWARD: (ActionKind.RECV_FORWARD, 1),
    ActionKind.SEND_BACKWARD: (ActionKind.RECV_BACKWARD, -1),
}
"""How a send is met: the kind, and the stage relative to the sender's."""
_SENDER_OFFSET = {ActionKind.RECV_FORWARD: -1, ActionKind.RECV_BACKWARD: 1}
_READER_OF = {
    ActionKind.RECV_FORWARD: ActionKind.FORWARD,
    ActionKind.RECV_BACKWARD: ActionKind.BACKWARD,
}


class PipelineStage(Protocol):
    """What the executor needs of a virtual stage."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Hidden states for the next stage; on the last stage the scalar sum of losses.

        ``inputs`` are tokens on the first stage, else the hidden states of the one before.
        """
        ...

    def new_hidden(self, batch: int, seq_len: int) -> Tensor:
        """An uninitialised tensor like those that this stage is handed or hands on."""
        ...


@dataclass(slots=True)
class _Flight:
    """A micro-batch on a stage between its forward and its backward."""

    hidden: Tensor | None
    """The stage's input as a leaf of the graph; None on the first stage, which reads tokens."""
    output: GradientEdge


@dataclass(slots=True)
class _StepState:
    """What one step has in hand on this rank."""

    micro_batches: Sequence[MicroBatch]
    loss_gradient: Tensor
    loss_sum: Tensor
    flights: dict[tuple[int, int | None], _Flight] = field(default_factory=dict)
    inbox: dict[Action, Tensor] = field(default_factory=dict)
    """What a computation will read."""
    outbox: dict[Action, Tensor] = field(default_factory=dict)
    """What a send will take."""
    on_the_way: dict[Action, tuple[dist.Work, Tensor]] = field(default_factory=dict)
    """Sends that are not known to be over, with their buffers."""


class PipelineExecutor:
    """Runs the virtual stages of one pipeline rank."""

    def __init__(
        self,
        stages: Mapping[int, PipelineStage],
        schedule: Schedule,
        pp_rank: int,
        pp_group: dist.ProcessGroup | None,
    ) -> None:
        """``stages``: this rank's, by virtual stage; ``pp_group`` is None for one rank."""
        self._stages = dict(stages)
        self._last_stage = schedule.num_stages - 1
        self._group = pp_group
        self._rank_of_stage = _ranks_of_stages(schedule)
        self._items = _items(schedule.ranks[pp_rank])
        self._proofs = proofs_of_receipt(schedule, self._rank_of_stage, pp_rank)

    def run(self, micro_batches: Sequence[MicroBatch], loss_gradient: Tensor) -> Tensor:
        """All forwards and backwards; gradients end in the parameters' flat units.

        Args:
            micro_batches: of this rank's dp coordinate, in order.
            loss_gradient: scalar that each micro-batch's loss sum is weighted with.

        Returns:
            The unweighted sum of losses over this rank's tokens; 0 unless it holds the last stage.
        """
        state = _StepState(micro_batches, loss_gradient, torch.zeros_like(loss_gradient))
        for item in self._items:
            action = item[0]
            if action.kind is ActionKind.FORWARD:
                with during("compute_forward"):
                    self._forward(action, state)
            elif action.kind is ActionKind.BACKWARD:
                with during("compute_backward"):
                    self._backward(action, state)
            else:
                with during("waiting"):
                    self._exchange(item, state)
        left = [*state.flights, *state.inbox, *state.outbox]
        assert not left, f"the schedule leaves {left} over"
        with during("waiting"):
            for work, _ in state.on_the_way.values():
                work.wait()
        return state.loss_sum

    def _forward(self, action: Action, state: _StepState) -> None:
        stage = self._stages[action.stage]
        assert action.micro_batch is not None
        tokens, labels = state.micro_batches[action.micro_batch]
        hidden = None
        if action.stage > 0:
            hidden = state.inbox.pop(action).requires_grad_()
        output = stage(tokens if hidden is None else hidden, labels)
        state.flights[action.stage, action.micro_batch] = _Flight(hidden, get_gradient_edge(output))
        if action.stage == self._last_stage:
            state.loss_sum += output.detach()
        else:
            self._pass_on(action, ActionKind.SEND_FORWARD, output.detach(), state)

    def _backward(self, action: Action, state: _StepState) -> None:
        flight = state.flights.pop((action.stage, action.micro_batch))
        gradient = state.loss_gradient
        if action.stage < self._last_stage:
            gradient = state.inbox.pop(action)
        torch.autograd.backward([flight.output], [gradient])
        if flight.hidden is not None:
            assert flight.hidden.grad is not None
            self._pass_on(action, ActionKind.SEND_BACKWARD, flight.hidden.grad, state)

    def _pass_on(
        self, action: Action, send_kind: ActionKind, message: Tensor, state: _StepState
    ) -> None:
        """To the send that follows, or to the neighbouring stage where this rank holds it too."""
        send = Action(action.stage, send_kind, action.micro_batch)
        receive = _receive_of(send)
        if receive.stage in self._stages:
            reader = Action(receive.stage, _READER_OF[receive.kind], action.micro_batch)
            state.inbox[reader] = message
        else:
            state.outbox[send] = message.contiguous()

    def _exchange(self, batch: Item, state: _StepState) -> None:
        buffers = [self._buffer_of(action, state) for action in batch]
        transfers = [
            self._transfer(action, buffer) for action, buffer in zip(batch, buffers, strict=True)
        ]
        works = dist.batch_isend_irecv(transfers)
        if len(works) < len(transfers):  # backends that coalesce a batch report it as one
            works = works * len(transfers)
        for action, work, buffer in zip(batch, works, buffers, strict=True):
            if action.kind in _RECEIVE_OF:
                state.on_the_way[action] = (work, buffer)
        for action, work, buffer in zip(batch, works, buffers, strict=True):
            if action.kind in _READER_OF:
                work.wait()
                reader = Action(action.stage, _READER_OF[action.kind], action.micro_batch)
                state.inbox[reader] = buffer
                self._forget_received(action, state)

    def _buffer_of(self, action: Action, state: _StepState) -> Tensor:
        if action.kind in _RECEIVE_OF:
            return state.outbox.pop(action)
        assert action.micro_batch is not None
        batch, seq_len = state.micro_batches[action.micro_batch][0].shape
        return self._stages[action.stage].new_hidden(batch, seq_len)

    def _transfer(self, action: Action, buffer: Tensor) -> dist.P2POp:
        sends = action.kind in _RECEIVE_OF
        peer = _receive_of(action).stage if sends else action.stage + _SENDER_OFFSET[action.kind]
        operation = dist.isend if sends else dist.irecv
        return dist.P2POp(
            operation, buffer, group=self._group, group_peer=self._rank_of_stage[peer]
        )

    def _forget_received(self, receive: Action, state: _StepState) -> None:
        for send in self._proofs.get(receive, ()):
            work, _ = state.on_the_way.pop(send)
            work.wait()


def _items(row: Sequence[Action]) -> list[Item]:
    """A row with transfers that stand next to each other put together."""
    items: list[Item] = []
    for computes, group in groupby(row, lambda action: action.kind in _COMPUTATIONS):
        actions = tuple(group)
        items += [(action,) for action in actions] if computes else [actions]
    return items


def _receive_of(send: Action) -> Action:
    kind, offset = _RECEIVE_OF[send.kind]
    return Action(send.stage + offset, kind, send.micro_batch)


def _ranks_of_stages(schedule: Schedule) -> list[int]:
    found = {action.stage: rank for rank, row in enumerate(schedule.ranks) for action in row}
    return [found[stage] for stage in range(schedule.num_stages)]


def proofs_of_receipt(
    schedule: Schedule, rank_of_stage: Sequence[int], rank: int
) -> dict[Action, list[Action]]:
    """For each receive of a rank, the own sends which that message proves to have arrived.

    A peer that received a message in one batch sends whatever it sends in later batches after that;
    the first of those that comes to this rank is the proof.
    """
    rows = [_items(row) for row in schedule.ranks]
    place = {
        (peer, action): index
        for peer, row in enumerate(rows)
        for index, item in enumerate(row)
        for action in item
    }
    proofs: dict[Action, list[Action]] = {}
    for send in (action for item in rows[rank] for action in item if action.kind in _RECEIVE_OF):
        receive = _receive_of(send)
        peer = rank_of_stage[receive.stage]
        later = rows[peer][place[peer, receive] + 1 :]
        answers = (_receive_of(a) for item in later for a in item if a.kind in _RECEIVE_OF)
        proof = next((a for a in answers if rank_of_stage[a.stage] == rank), None)
        if proof is not None:
            proofs.setdefault(proof, []).append(send)
    return proofs
