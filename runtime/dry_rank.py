"""`BuiltRank`: one rank of a plan, built and stepped once in a world that is not there.

This process makes the rank's groups, its part of the model, its shards and optimizer, and runs one
whole training step, every micro-batch of the plan's schedule, by the code that trains. A `Ledger`
watches, and no tensor has data (`runtime.fake_world`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.cost_models.rank_books import Call, KeptUnit
from shardwright.runtime.fake_world import WithoutData, fake_rank
from shardwright.runtime.ledger import Ledger
from shardwright.runtime.models import build_rank
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import ParameterShard, shard_of
from shardwright.runtime.pipeline import MicroBatch
from shardwright.runtime.step import TrainStep
from shardwright.specs import Plan
from shardwright.specs.world import Coordinates


@dataclass(frozen=True, slots=True)
class BuiltRank:
    """What one rank built, and did in its first step."""

    rank: int
    at: Coordinates
    parameters: dict[ParameterShard, nn.Parameter]
    parameter_bytes: int
    """As they are built, before ZeRO cuts them."""
    groups: dict[str, tuple[int, ...]]
    """Global ranks, ascending, of each group that it made, by name as in `RankBooks`; it alone
    where it has no peers."""
    calls: Counter[Call]
    flops: int
    kept: list[KeptUnit]
    building_peak_bytes: int
    """Most bytes of tensors alive at once before the first step."""
    peak_bytes: int
    """The same in the step."""


def dry_rank(plan: Plan, rank: int) -> BuiltRank:
    """Build one rank of the plan and run one step of it, without a device, peers or data."""
    with fake_rank(rank, plan.layout.world):
        groups = ParallelGroups.create(plan.layout)
        with WithoutData():
            return watch_step(plan, groups, draws_weights=False)


def watch_step(plan: Plan, groups: ParallelGroups, *, draws_weights: bool) -> BuiltRank:
    """Build this process's rank of the plan and run its first step, on tokens that are all 0."""
    with Ledger() as ledger:
        step, parameters = _build(plan, groups, draws_weights)
        micro_batches = _micro_batches(plan)
        building_peak_bytes = ledger.peak_bytes
        ledger.reset_peak()
        step.run(micro_batches, plan.training.optimizer.learning_rate)
    return BuiltRank(
        rank=groups.rank,
        at=groups.coordinates,
        parameters={shard_of(parameter): parameter for parameter in parameters},
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        groups=_groups(groups, step),
        calls=Counter((c.kind, c.input_bytes, c.ranks) for c in ledger.collectives),
        flops=ledger.flops,
        kept=_kept(step),
        building_peak_bytes=building_peak_bytes,
        peak_bytes=ledger.peak_bytes,
    )


def _build(
    plan: Plan, groups: ParallelGroups, draws_weights: bool
) -> tuple[TrainStep, list[nn.Parameter]]:
    model = build_rank(plan.model, plan.layout, plan.training, groups, draws_weights=draws_weights)
    schedule = plan.schedule or schedule_of(plan.layout)
    step = TrainStep(model, plan.layout, plan.training, groups, schedule)
    return step, list(model.parameters())


def _micro_batches(plan: Plan) -> list[MicroBatch]:
    shape = (plan.layout.micro_batch, plan.training.seq_len)
    return [
        (torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64))
        for _ in range(plan.layout.micro_batches)
    ]


def _groups(groups: ParallelGroups, step: TrainStep) -> dict[str, tuple[int, ...]]:
    made = {
        "tp": groups.tp,
        "dp": groups.dp,
        "pp": groups.pp,
        "embedding": groups.embedding,
        "world": groups.world,
    }
    if step.units:
        plan = step.units[0].plan
        made |= {"shard": plan.shard_group, "replica": plan.replica_group}
    return {
        name: (groups.rank,)
        if group is None
        else tuple(sorted(dist.get_process_group_ranks(group)))
        for name, group in made.items()
    }


def _kept(step: TrainStep) -> list[KeptUnit]:
    return [
        KeptUnit(
            name=state.unit.name,
            weight_bytes=state.unit.weight_bytes,
            gradient_bytes=state.unit.gradient_bytes,
            optimizer_bytes=sum(
                buffer.nbytes for kind, buffer in state.buffers().items() if kind != "weight"
            ),
        )
        for state in step.optimizer.states
    ]
