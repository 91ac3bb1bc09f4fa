"""A checkpoint of one layout fills any other, weights and optimizer state, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.runtime.checkpoint import CheckpointStore, RunFacts
from shardwright.runtime.models import build_rank
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.pieces import Piece, pieces_of
from shardwright.runtime.step import TrainStep
from shardwright.specs import Plan, Precision
from tests.distributed import run_on_ranks
from tests.runtime.plans import plan_of, small_model, training_of

V = {"pp": 2, "vpp": 2, "schedule": "zb-v"}
SAVED: dict[str, dict[str, Any]] = {
    "1f1b": {"tp": 2, "pp": 2, "sequence_parallel": True},
    "zb-v": V | {"dp": 2, "zero": 3},
}
LOADED: dict[Precision, list[dict[str, Any]]] = {
    Precision.BF16: [{"dp": 4, "zero": 3}, {"tp": 4}, {"pp": 4, "schedule": "zb-h1"}],
    Precision.FP64: [
        {"dp": 2, "tp": 2, "zero": 1},
        {"pp": 4},
        V | {"tp": 2},
        {"pp": 2, "vpp": 2, "dp": 2, "zero": 2},
    ],
}
"""tp = 4 exceeds the two kv heads: they are replicated. No tp > 1 divides the vocabulary of 307."""
Whole = dict[str, torch.Tensor]


def _plan(precision: Precision, *, tied: bool, **choices: Any) -> Plan:
    model = small_model(num_layers=4, tied=tied)
    return plan_of(model, training_of(precision=precision), **choices)


def _build(plan: Plan, groups: ParallelGroups) -> TrainStep:
    own = build_rank(plan.model, plan.layout, plan.training, groups)
    return TrainStep(own, plan.layout, plan.training, groups, schedule_of(plan.layout))


def _gather(pieces: list[Piece]) -> Whole:
    """Whole tensors from pieces of all ranks; every element must come exactly once."""
    own = [(p.name, p.global_shape, p.offsets, p.tensor.clone()) for p in pieces]
    everyone: list[Any] = [own]
    if dist.is_initialized():
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
    whole: Whole = {}
    times: Whole = {}
    for name, shape, offsets, tensor in (piece for each in everyone for piece in each):
        spans = tuple(
            slice(start, start + size) for start, size in zip(offsets, tensor.shape, strict=True)
        )
        whole.setdefault(name, torch.zeros(shape, dtype=tensor.dtype))[spans] = tensor
        times.setdefault(name, torch.zeros(shape, dtype=torch.int32))[spans] += 1
    for name, count in times.items():
        assert torch.equal(count, torch.ones_like(count)), name
    return whole


def _train_and_save(folder: str, precision: Precision, tied: bool, saved: str) -> Whole:
    plan = _plan(precision, tied=tied, **SAVED[saved])
    step = _build(plan, ParallelGroups.create(plan.layout))
    generator = torch.Generator().manual_seed(1)
    batches = [
        tuple(torch.randint(307, (1, 16), generator=generator) for _ in range(2))
        for _ in range(plan.layout.micro_batches)
    ]
    for _ in range(2):
        step.run(batches, 1e-2)  # type: ignore[arg-type]
    pieces = pieces_of(step.optimizer.state_entries(owned_only=True))
    CheckpointStore(Path(folder)).save(2, pieces, RunFacts.of(plan, "random"), plan)
    return _gather(pieces)


def _load(
    folder: str, precision: Precision, tied: bool, choices: dict[str, Any]
) -> tuple[Whole, float]:
    """State that was loaded, and the loss that the published weights then give."""
    plan = _plan(precision, tied=tied, **choices)
    alone = plan.layout.world == 1
    step = _build(plan, ParallelGroups.alone() if alone else ParallelGroups.create(plan.layout))
    for entry in step.optimizer.state_entries(owned_only=False):
        entry.tensor.fill_(7.0)
    pieces = pieces_of(step.optimizer.state_entries(owned_only=False))
    CheckpointStore(Path(folder)).load(2, pieces)
    step.restored(2)
    tokens = torch.arange(16).view(1, 16)
    batches = [(tokens, tokens)] * plan.layout.micro_batches
    loss = step.accumulate(batches).loss
    return _gather(pieces_of(step.optimizer.state_entries(owned_only=True))), loss


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("precision", "tied", "saved_by"),
    [
        (Precision.BF16, False, "1f1b"),
        (Precision.FP64, True, "1f1b"),
        (Precision.FP64, True, "zb-v"),
    ],
    ids=str,
)
def test_any_layout_loads_what_another_saved(
    tmp_path: Path, precision: Precision, tied: bool, saved_by: str
) -> None:
    folder = str(tmp_path)
    cases: list[Callable[[], Any]] = [
        functools.partial(_train_and_save, folder, precision, tied, saved_by),
        *(
            functools.partial(_load, folder, precision, tied, choices)
            for choices in LOADED[precision]
        ),
    ]
    (saved, *loaded), *_ = run_on_ranks(4, cases, timeout_s=60.0)
    loaded.append(_load(folder, precision, tied, {}))
    kinds = {name.partition("/")[0] for name in saved}
    masters = {"master"} if precision is Precision.BF16 else set()
    assert kinds == {"weight", "exp_avg", "exp_avg_sq"} | masters
    losses = [loss for _, loss in loaded]
    tolerance = 1e-12 if precision is Precision.FP64 else 2e-2
    assert losses == pytest.approx([losses[-1]] * len(losses), rel=tolerance)
    for whole, _ in loaded:
        assert whole.keys() == saved.keys()
        for name, tensor in saved.items():
            assert torch.equal(whole[name], tensor), name
