"""Our executor beside `torch.distributed.pipelining` on every schedule that torch has.

Torch runs its own schedule with its own generator, sends and split backward. Its rows of
computations, which it makes for that run, are then run by our executor as a custom schedule. Both
must do the same computations in the same order and find the same loss and gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from shardwright.cost_models.pipeline.messages import schedule_problems
from shardwright.cost_models.pipeline.orders import computation_order
from shardwright.cost_models.pipeline.schedules import with_communication
from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.layers import column_linear
from shardwright.runtime.pipeline import PipelineExecutor
from shardwright.specs import Action, Schedule
from tests.distributed import run_on_ranks

WIDTH, BATCH, NUM_MICRO_BATCHES = 4, 2, 4

TORCH: dict[str, tuple[type[Any], int, str | None]] = {
    "GPipe": (schedules.ScheduleGPipe, 1, "gpipe"),
    "1F1B": (schedules.Schedule1F1B, 1, "1f1b"),
    "Interleaved1F1B": (schedules.ScheduleInterleaved1F1B, 2, "interleaved-1f1b"),
    "LoopedBFS": (schedules.ScheduleLoopedBFS, 2, None),
    "InterleavedZeroBubble": (schedules.ScheduleInterleavedZeroBubble, 2, None),
    "ZBVZeroBubble": (schedules.ScheduleZBVZeroBubble, 2, "zb-v"),
    "DualPipeV": (schedules.ScheduleDualPipeV, 2, "dualpipev"),
}
"""Torch's class, stages per rank, and our generator of the same order where we have one."""


class Stage(nn.Module):
    """tanh(x W^T) by our layer, which can put its weight gradient off."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(stage)
        self.weight = nn.Parameter(
            torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(column_linear(x, self.weight, None, TensorParallel()))


class OurStage(Stage):
    """The same as our executor calls it: labels choose the row; a loss comes out of the last."""

    def __init__(self, stage: int, num_stages: int, data: Tensor) -> None:
        super().__init__(stage)
        self.is_first, self.is_last, self.data = stage == 0, stage == num_stages - 1, data

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        first = int(labels[0, 0])
        output: Tensor = self.forward(self.data[first : first + BATCH] if self.is_first else inputs)
        return loss_of(output, labels) if self.is_last else output

    def new_hidden(self, batch: int, seq_len: int) -> Tensor:
        return torch.empty(batch, seq_len, WIDTH, dtype=torch.float64)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Different for each micro-batch, whose first row's number is the target."""
    return output.square().sum() * (1 + target[0, 0])


def inputs() -> tuple[Tensor, Tensor]:
    """[rows, 1, width], and of each row the number of its micro-batch's first row."""
    rows = BATCH * NUM_MICRO_BATCHES
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(rows, 1, WIDTH, generator=generator, dtype=torch.float64)
    return data, (torch.arange(rows) // BATCH * BATCH)[:, None]


Found = tuple[dict[int, Tensor], float, list[str]]
"""Gradients by stage, loss, and a rank's computations in order."""


def run_torch(name: str) -> tuple[Found, list[str]]:
    """What torch finds, and its rows of computations, of all ranks."""
    kind, per_rank, _ = TORCH[name]
    rank, world = dist.get_rank(), dist.get_world_size()
    num_stages = world * per_rank
    is_v = kind in (schedules.ScheduleZBVZeroBubble, schedules.ScheduleDualPipeV)
    own = [rank, num_stages - 1 - rank] if is_v else list(range(rank, num_stages, world))
    modules = {stage: Stage(stage) for stage in own}
    stages = [
        PipelineStage(module, stage, num_stages, torch.device("cpu"))
        for stage, module in modules.items()
    ]
    schedule = kind(
        stages if per_rank > 1 else stages[0], NUM_MICRO_BATCHES, loss_fn=loss_of,
        scale_grads=False,
    )  # fmt: skip
    data, target = inputs()
    losses: list[Tensor] = []
    arguments = {"target": target, "losses": losses} if num_stages - 1 in own else {}
    schedule.step(*((data,) if 0 in own else ()), **arguments)
    gradients = {s: m.weight.grad for s, m in modules.items() if m.weight.grad is not None}
    rows = torch_rows(name, schedule, world)
    return (gradients, sum(loss.item() for loss in losses), rows[rank].split()), rows


def torch_rows(name: str, schedule: Any, world: int) -> list[str]:
    """Its computations; gradients are not reduced here.

    Torch's GPipe and 1F1B are loops, without rows that they run (those that 1F1B has for export
    miscount the micro-batches of later ranks): their order is that of our generators.
    """
    _, per_rank, generator = TORCH[name]
    if per_rank == 1:
        rows = computation_order(generator or "", world, 1, NUM_MICRO_BATCHES)
        return [" ".join(map(str, row)) for row in rows]
    order = schedule.pipeline_order
    texts = ([str(action) for action in order[rank] if action] for rank in range(world))
    return [" ".join(t for t in row if "REDUCE_GRAD" not in t) for row in texts]


def run_ours(rows: list[str]) -> Found:
    rank = dist.get_rank()
    parsed = [[Action.parse(token) for token in row.split()] for row in rows]
    home = {p.stage: r for r, row in enumerate(parsed) for a in row for p in a.parts or (a,)}
    places = [home[stage] for stage in sorted(home)]
    schedule = Schedule(
        name="custom", num_stages=len(places), num_micro_batches=NUM_MICRO_BATCHES,
        ranks=tuple(with_communication(row, places) for row in parsed),
    )  # fmt: skip
    problems = schedule_problems(schedule, places, NUM_MICRO_BATCHES)
    assert not problems, (rows, problems)
    data, target = inputs()
    stages = {s: OurStage(s, len(places), data) for s in sorted(home) if home[s] == rank}
    executor = PipelineExecutor(stages, schedule, rank, dist.group.WORLD)
    done: list[str] = []
    compute = executor._compute

    def note_and_compute(action: Action, state: Any) -> None:
        done.append(str(action))
        compute(action, state)

    executor._compute = note_and_compute  # type: ignore[method-assign]
    batches = [(labels, labels) for labels in target.split(BATCH)]
    loss = executor.run(batches, torch.ones((), dtype=torch.float64))
    gradients = {s: m.weight.grad for s, m in stages.items() if m.weight.grad is not None}
    return gradients, float(loss), done


def compare(name: str) -> tuple[Found, Found, list[str]]:
    torch_found, rows = run_torch(name)
    return torch_found, run_ours(rows), rows


@pytest.mark.multiprocess
def test_the_same_order_and_gradients_as_torch() -> None:
    results = run_on_ranks(2, [partial(compare, name) for name in TORCH], timeout_s=180.0)
    for rank, of_rank in enumerate(results):
        for name, (torch_found, ours, rows) in zip(TORCH, of_rank, strict=True):
            _, per_rank, generator = TORCH[name]
            planned = [p for a in map(Action.parse, rows[rank].split()) for p in a.parts or (a,)]
            assert ours[2] == list(map(str, planned)), name
            if generator is not None:
                row = computation_order(generator, 2, per_rank, NUM_MICRO_BATCHES)[rank]
                assert [str(p) for a in row for p in a.parts or (a,)] == ours[2], name
            assert ours[0].keys() == torch_found[0].keys(), name
            assert len(ours[0]) == per_rank
            assert ours[1] == pytest.approx(torch_found[1], rel=1e-14)
            for stage, gradient in torch_found[0].items():
                torch.testing.assert_close(ours[0][stage], gradient, rtol=1e-12, atol=1e-14)
