"""The executor on stages of plain matrices: numbers, order, memory and every schedule."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardwright.cost_models.pipeline.schedules import build_schedule, sequential_schedule
from shardwright.runtime.pipeline import PipelineExecutor, proofs_of_receipt
from shardwright.specs import Action, ActionKind, Schedule
from tests.distributed import run_on_ranks

WIDTH = 3
BATCH, SEQ_LEN = 2, 4


class MatrixStage(nn.Module):
    """tanh(x W); the first stage embeds its tokens, the last returns a weighted sum."""

    def __init__(self, stage: int, num_stages: int) -> None:
        super().__init__()
        self.is_first, self.is_last = stage == 0, stage == num_stages - 1
        generator = torch.Generator().manual_seed(stage)
        weight = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(weight)

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = inputs[..., None].double() * torch.ones(WIDTH) if self.is_first else inputs
        output = torch.tanh(hidden @ self.weight)
        return (output.sum(-1) * labels).sum() if self.is_last else output

    def new_hidden(self, batch: int, seq_len: int) -> Tensor:
        return torch.full((batch, seq_len, WIDTH), torch.nan, dtype=torch.float64)


def _micro_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(count)
    pairs = torch.randint(0, 5, (count, 2, BATCH, SEQ_LEN), generator=generator)
    return [(tokens, labels) for tokens, labels in pairs]


def _expected(num_stages: int, count: int, scale: float) -> tuple[Tensor, list[Tensor]]:
    stages = [MatrixStage(stage, num_stages) for stage in range(num_stages)]
    total = torch.zeros((), dtype=torch.float64)
    for tokens, labels in _micro_batches(count):
        hidden = tokens
        for stage in stages:
            hidden = stage(hidden, labels)
        (hidden * scale).backward()
        total += hidden.detach()
    return total, [stage.weight.grad for stage in stages if stage.weight.grad is not None]


def _run_rank(schedule: Schedule) -> tuple[Tensor, Tensor | None]:
    rank = dist.get_rank()
    stage = MatrixStage(rank, schedule.num_stages)
    executor = PipelineExecutor({rank: stage}, schedule, rank, dist.group.WORLD)
    batches = _micro_batches(schedule.num_micro_batches)
    loss = executor.run(batches, torch.tensor(0.25, dtype=torch.float64))
    return loss, stage.weight.grad


SCHEDULES = [("gpipe", 4), ("1f1b", 4), ("1f1b", 2), ("gpipe", 1), ("1f1b", 7)]


@pytest.mark.multiprocess
def test_every_schedule_gives_the_loss_and_gradients_of_one_process() -> None:
    schedules = [build_schedule(n, pp=3, num_micro_batches=m) for n, m in SCHEDULES]
    results = run_on_ranks(3, [partial(_run_rank, schedule) for schedule in schedules])
    for case, schedule in enumerate(schedules):
        loss, gradients = _expected(3, schedule.num_micro_batches, 0.25)
        assert [results[rank][case][0].item() for rank in range(2)] == [0.0, 0.0]
        torch.testing.assert_close(results[2][case][0], loss, rtol=1e-14, atol=0)
        for rank in range(3):
            torch.testing.assert_close(
                results[rank][case][1], gradients[rank], rtol=1e-13, atol=1e-15
            )


def test_one_rank_runs_its_micro_batches_in_turn() -> None:
    loss, gradients = _expected(1, 3, 0.5)
    stage = MatrixStage(0, 1)
    executor = PipelineExecutor({0: stage}, sequential_schedule(3), 0, None)
    found = executor.run(_micro_batches(3), torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(found, loss, rtol=1e-14, atol=0)
    torch.testing.assert_close(stage.weight.grad, gradients[0], rtol=1e-13, atol=1e-15)


def _both_stages_here(num_stages: int) -> Schedule:
    """Two virtual stages on one rank: hidden states are handed over without communication."""
    row = [f"{s}F{m}" for m in range(2) for s in range(num_stages)]
    row += [f"{s}B{m}" for m in range(2) for s in reversed(range(num_stages))]
    return Schedule(
        name="custom", num_stages=num_stages, num_micro_batches=2,
        ranks=(tuple(map(Action.parse, row)),),
    )  # fmt: skip


def test_neighbouring_stages_of_one_rank_hand_over_directly() -> None:
    loss, gradients = _expected(3, 2, 1.0)
    stages = {stage: MatrixStage(stage, 3) for stage in range(3)}
    executor = PipelineExecutor(stages, _both_stages_here(3), 0, None)
    found = executor.run(_micro_batches(2), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(found, loss, rtol=1e-14, atol=0)
    for stage, gradient in enumerate(gradients):
        torch.testing.assert_close(stages[stage].weight.grad, gradient, rtol=1e-13, atol=1e-15)


class WatchedStage(MatrixStage):
    """Counts how many of its outputs are alive whenever a forward begins."""

    def __init__(self, stage: int, num_stages: int) -> None:
        super().__init__(stage, num_stages)
        self.outputs: list[weakref.ref[Tensor]] = []
        self.alive_at_forward: list[int] = []

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        gc.collect()
        self.alive_at_forward.append(sum(output() is not None for output in self.outputs))
        output = super().forward(inputs, labels)
        self.outputs.append(weakref.ref(output))
        return output


def test_an_output_does_not_outlive_its_forward() -> None:
    stage = WatchedStage(0, 1)
    gpipe = build_schedule("gpipe", pp=1, num_micro_batches=4)
    PipelineExecutor({0: stage}, gpipe, 0, None).run(
        _micro_batches(4), torch.tensor(1.0, dtype=torch.float64)
    )
    assert stage.alive_at_forward == [0, 0, 0, 0]


def test_in_1f1b_a_send_is_proven_by_the_next_message_of_its_receiver() -> None:
    schedule = build_schedule("1f1b", pp=2, num_micro_batches=3)
    assert str(schedule.ranks[0][0]) == "0F0"
    proofs = proofs_of_receipt(schedule, [0, 1], 0)
    readable = {str(receive): list(map(str, sends)) for receive, sends in proofs.items()}
    # 1SEND_B0 is in one batch with 1RECV_F1, so it proves the receipt of F0 alone.
    assert readable == {
        "0RECV_B0": ["0SEND_F0"], "0RECV_B1": ["0SEND_F1"], "0RECV_B2": ["0SEND_F2"],
    }  # fmt: skip


def test_no_send_is_taken_for_received_before_it_can_be() -> None:
    """By replaying rows: when a proof arrives, the peer has gone past the receive's batch."""
    for name in ("gpipe", "1f1b"):
        schedule = build_schedule(name, pp=4, num_micro_batches=6)
        for rank in range(4):
            for receive, sends in proofs_of_receipt(schedule, [0, 1, 2, 3], rank).items():
                for send in sends:
                    step = 1 if send.kind == "SEND_F" else -1
                    peer = schedule.ranks[rank + step]
                    met = Action(send.stage + step, _mirror(send), send.micro_batch)
                    answer = Action(send.stage + step, _mirror(receive), receive.micro_batch)
                    between = peer[peer.index(met) : peer.index(answer)]
                    assert any(action.kind in ("F", "B") for action in between)


def _mirror(action: Action) -> ActionKind:
    return {
        ActionKind.SEND_FORWARD: ActionKind.RECV_FORWARD,
        ActionKind.SEND_BACKWARD: ActionKind.RECV_BACKWARD,
        ActionKind.RECV_FORWARD: ActionKind.SEND_FORWARD,
        ActionKind.RECV_BACKWARD: ActionKind.SEND_BACKWARD,
    }[action.kind]
