"""The executor on stages of plain matrices: numbers, order, memory and every schedule."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardwright.cost_models.pipeline.messages import COMPUTATIONS
from shardwright.cost_models.pipeline.schedules import build_schedule, sequential_schedule
from shardwright.runtime.pipeline import PipelineExecutor
from shardwright.specs import Action, Schedule
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


def _run_rank(schedule: Schedule) -> tuple[Tensor, dict[int, Tensor | None], list[str]]:
    """Loss, gradients by stage, and the computations in the order in which they ran."""
    rank = dist.get_rank()
    own = {part.stage for action in schedule.ranks[rank] for part in action.parts or (action,)}
    stages = {stage: MatrixStage(stage, schedule.num_stages) for stage in sorted(own)}
    executor = PipelineExecutor(stages, schedule, rank, dist.group.WORLD)
    done: list[str] = []
    compute = executor._compute

    def note_and_compute(action: Action, state: Any) -> None:
        done.append(str(action))
        compute(action, state)

    executor._compute = note_and_compute  # type: ignore[method-assign]
    batches = _micro_batches(schedule.num_micro_batches)
    loss = executor.run(batches, torch.tensor(0.25, dtype=torch.float64))
    return loss, {stage: module.weight.grad for stage, module in stages.items()}, done


SCHEDULES = [
    *(("gpipe", 1, 4), ("1f1b", 1, 4), ("1f1b", 1, 2), ("gpipe", 1, 1), ("1f1b", 1, 7)),
    *(("interleaved-1f1b", 2, 6), ("interleaved-1f1b", 3, 7), ("interleaved-1f1b", 2, 1)),
    *(("zb-h1", 1, 7), ("zb-h1", 1, 2), ("zb-h2", 1, 8), ("zb-v", 2, 7), ("zb-v", 2, 2)),
    *(("dualpipev", 2, 8), ("dualpipev", 2, 3)),
]


@pytest.mark.multiprocess
def test_every_schedule_gives_the_loss_and_gradients_of_one_process() -> None:
    schedules = [build_schedule(n, pp=3, vpp=v, num_micro_batches=m) for n, v, m in SCHEDULES]
    results = run_on_ranks(3, [partial(_run_rank, schedule) for schedule in schedules])
    for case, schedule in enumerate(schedules):
        ranks = [rank[case] for rank in results]
        loss, gradients = _expected(schedule.num_stages, schedule.num_micro_batches, 0.25)
        total = torch.stack([found for found, _, _ in ranks]).sum()
        assert sum(bool(found) for found, _, _ in ranks) == 1
        torch.testing.assert_close(total, loss, rtol=1e-14, atol=0)
        for rank, (_, found, done) in enumerate(ranks):
            assert done == [str(p) for a in _computations(schedule.ranks[rank]) for p in a]
            for stage, gradient in found.items():
                torch.testing.assert_close(gradient, gradients[stage], rtol=1e-13, atol=1e-15)


def _computations(row: Sequence[Action]) -> list[tuple[Action, ...]]:
    return [a.parts or (a,) for a in row if a.kind in COMPUTATIONS]


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
