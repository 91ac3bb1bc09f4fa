"""Executes one rank's actions of a `Schedule`: the schedule that is priced is the one that runs.

Any valid schedule, of any number of virtual stages per rank, with whole or split backwards. The
parts of an overlapped pair run in order: there is one stream of computation.

Transfers are posted in the batches of `cost_models.pipeline.messages`, which are free of deadlock
on any transport. Nothing waits for them but the computation that reads a message. A send's buffer
is kept until a later message from the same peer proves that it was received.

Between its forward and its backward a micro-batch keeps its input, what autograd saved, and the
*edge* of its output in the graph instead of the output itself, whose storage goes with the send.
Between the two halves of a split backward it keeps what its weight gradients need
(`parallel.deferred`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from shardwright.cost_models.pipeline.messages import (
    COMPUTATIONS,
    Item,
    is_send,
    posted_items,
    proofs_of_receipt,
    ranks_of_stages,
    receive_of,
    send_of,
)
from shardwright.runtime.parallel.deferred import DeferredGradients, deferring
from shardwright.runtime.stopwatch import during
from shardwright.specs import Action, ActionKind, Schedule

MicroBatch = tuple[Tensor, Tensor]
"""Tokens and labels, each [B, T] int64."""


class PipelineStage(Protocol):
    """What the executor needs of a virtual stage.

    Where a backward is split, functions that know `parallel.deferred` put their weight gradients
    off; any others compute them in the first half, which gives the same gradients.
    """

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
    deferred: dict[tuple[int, int | None], DeferredGradients] = field(default_factory=dict)
    """Between the halves of a split backward."""
    inbox: dict[Action, tuple[dist.Work | None, Tensor]] = field(default_factory=dict)
    """Messages by the receive that posted them; from a stage of this rank there is no work."""
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
        self._rank_of_stage = ranks_of_stages(schedule)
        items = posted_items(schedule)
        self.items: Sequence[Item] = items[pp_rank]
        """What this rank does, in order: one computation, or one batch of transfers."""
        self._proofs = proofs_of_receipt(items, self._rank_of_stage, pp_rank)

    def run(self, micro_batches: Sequence[MicroBatch], loss_gradient: Tensor) -> Tensor:
        """All forwards and backwards; gradients end in the parameters' flat units.

        Args:
            micro_batches: of this rank's dp coordinate, in order.
            loss_gradient: scalar that each micro-batch's loss sum is weighted with.

        Returns:
            The unweighted sum of losses over this rank's tokens; 0 unless it holds the last stage.
        """
        state = _StepState(micro_batches, loss_gradient, torch.zeros_like(loss_gradient))
        for item in self.items:
            if item[0].kind in COMPUTATIONS:
                for action in item[0].parts or item:
                    self._compute(action, state)
            else:
                with during("waiting"):
                    self._post(item, state)
        left = [*state.flights, *state.deferred, *state.inbox, *state.outbox]
        assert not left, f"the schedule leaves {left} over"
        with during("waiting"):
            for work, _ in state.on_the_way.values():
                work.wait()
        return state.loss_sum

    def _compute(self, action: Action, state: _StepState) -> None:
        if action.kind is ActionKind.FORWARD:
            with during("compute_forward"):
                self._forward(action, state)
            return
        with during("compute_backward"):
            if action.kind is ActionKind.BACKWARD_WEIGHT:
                state.deferred.pop((action.stage, action.micro_batch)).run()
            else:
                self._backward(action, state)

    def _forward(self, action: Action, state: _StepState) -> None:
        stage = self._stages[action.stage]
        assert action.micro_batch is not None
        tokens, labels = state.micro_batches[action.micro_batch]
        hidden = None
        if action.stage > 0:
            hidden = self._received(action, ActionKind.RECV_FORWARD, state).requires_grad_()
        output = stage(tokens if hidden is None else hidden, labels)
        state.flights[action.stage, action.micro_batch] = _Flight(hidden, get_gradient_edge(output))
        if action.stage == self._last_stage:
            state.loss_sum += output.detach()
        else:
            self._pass_on(action, ActionKind.SEND_FORWARD, output.detach(), state)

    def _backward(self, action: Action, state: _StepState) -> None:
        """A whole backward, or the first half of a split one."""
        flight = state.flights.pop((action.stage, action.micro_batch))
        gradient = state.loss_gradient
        if action.stage < self._last_stage:
            gradient = self._received(action, ActionKind.RECV_BACKWARD, state)
        if action.kind is ActionKind.BACKWARD:
            torch.autograd.backward([flight.output], [gradient])
        else:
            deferred = state.deferred[action.stage, action.micro_batch] = DeferredGradients()
            with deferring(deferred):
                torch.autograd.backward([flight.output], [gradient])
        if flight.hidden is not None:
            assert flight.hidden.grad is not None
            self._pass_on(action, ActionKind.SEND_BACKWARD, flight.hidden.grad, state)

    def _pass_on(
        self, action: Action, send_kind: ActionKind, message: Tensor, state: _StepState
    ) -> None:
        """To the send that follows, or to the neighbouring stage where this rank holds it too."""
        send = Action(action.stage, send_kind, action.micro_batch)
        receive = receive_of(send)
        if receive.stage in self._stages:
            state.inbox[receive] = (None, message)
        else:
            state.outbox[send] = message.contiguous()

    def _received(self, reader: Action, kind: ActionKind, state: _StepState) -> Tensor:
        """The message that a computation reads; waits until it is there."""
        receive = Action(reader.stage, kind, reader.micro_batch)
        work, message = state.inbox.pop(receive)
        with during("waiting"):
            if work is not None:
                work.wait()
            for send in self._proofs.get(receive, ()):
                proven, _ = state.on_the_way.pop(send)
                proven.wait()
        return message

    def _post(self, batch: Item, state: _StepState) -> None:
        buffers = [self._buffer_of(action, state) for action in batch]
        transfers = [
            self._transfer(action, buffer) for action, buffer in zip(batch, buffers, strict=True)
        ]
        works = dist.batch_isend_irecv(transfers)
        if len(works) < len(transfers):  # backends that coalesce a batch report it as one
            works = works * len(transfers)
        for action, work, buffer in zip(batch, works, buffers, strict=True):
            box = state.on_the_way if is_send(action) else state.inbox
            box[action] = (work, buffer)

    def _buffer_of(self, action: Action, state: _StepState) -> Tensor:
        if is_send(action):
            return state.outbox.pop(action)
        assert action.micro_batch is not None
        batch, seq_len = state.micro_batches[action.micro_batch][0].shape
        return self._stages[action.stage].new_hidden(batch, seq_len)

    def _transfer(self, action: Action, buffer: Tensor) -> dist.P2POp:
        met = receive_of(action) if is_send(action) else send_of(action)
        operation = dist.isend if is_send(action) else dist.irecv
        return dist.P2POp(
            operation, buffer, group=self._group, group_peer=self._rank_of_stage[met.stage]
        )
