"""The built model against the plan, on all ranks together, before the first step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn

from shardwright.cost_models.blocks.operations import ParameterBooks
from shardwright.cost_models.blocks.stage import stage_books
from shardwright.runtime.checkpoint import RunFacts
from shardwright.runtime.models import RankModule
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import ParameterShard, shard_of
from shardwright.runtime.ranks import together
from shardwright.specs import Plan, RunError
from shardwright.specs.units import format_bytes
from shardwright.specs.world import Coordinates, WorldSize

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankAudit:
    """What one rank built."""

    at: Coordinates
    layers: tuple[int, ...]
    """Global numbers of the layers it has parameters of, ascending."""
    accountable_elements: int
    """Parameter elements that this rank counts, so that over all ranks each is counted once."""
    parameter_bytes: int
    facts: RunFacts
    plan_hash: str


def audit(
    plan: Plan, model: RankModule, groups: ParallelGroups, facts: RunFacts
) -> list[RankAudit]:
    """Compare what every rank built with the plan; a collective call of all ranks.

    Raises:
        RunError: on every rank alike, with the numbers of each mismatch: world size, groups,
            layers, parameters, bytes, or ranks with different plans or data.
    """
    shards = {shard_of(parameter): parameter for parameter in model.parameters()}
    found = together(lambda: _audit_rank(plan, shards, groups, facts))
    problems = world_problems(plan, found)
    if problems:
        error = RunError(
            f"the built model is not the planned one: {'; '.join(problems)}",
            fix="report it with the plan file",
        )
        error.on_every_rank = True
        raise error
    if groups.rank == 0:
        logger.info(
            "audit: %d layers and %s parameters on %d ranks as planned, at most %s of weights each",
            plan.model.decoder.num_layers,
            f"{plan.model.num_parameters:,}",
            len(found),
            format_bytes(max(each.parameter_bytes for each in found)),
        )
    return found


def _audit_rank(
    plan: Plan,
    shards: dict[ParameterShard, nn.Parameter],
    groups: ParallelGroups,
    facts: RunFacts,
) -> RankAudit:
    """Compare this rank's groups and parameters with the plan; `RunError` names every misfit."""
    at = groups.coordinates
    problems = [
        *group_problems(plan.layout.world_size, groups),
        *parameter_problems(_planned_parameters(plan, at), shards),
    ]
    if problems:
        raise RunError(f"rank {groups.rank}: {'; '.join(problems)}")
    return RankAudit(
        at=at,
        layers=layers_of(shards),
        accountable_elements=_accountable_elements(shards, at, plan.layout.stages[0].rank),
        parameter_bytes=sum(p.numel() * p.element_size() for p in shards.values()),
        facts=facts,
        plan_hash=plan.content_hash(),
    )


def group_problems(sizes: WorldSize, groups: ParallelGroups) -> list[str]:
    """Process groups whose ranks are not those that the grid says."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    problems = [] if world == sizes.world else [f"{world} ranks run, {sizes.world} are planned"]
    for axis in ("tp", "dp", "pp"):
        planned = next(ranks for ranks in sizes.groups(axis) if groups.rank in ranks)
        group = getattr(groups, axis)
        built = [groups.rank] if group is None else dist.get_process_group_ranks(group)
        if sorted(built) != planned:
            problems.append(f"its {axis} group is {built}, planned {planned}")
    return problems


def _planned_parameters(plan: Plan, at: Coordinates) -> list[ParameterBooks]:
    """Those of the stages on this rank; a tied weight of two of them comes twice."""
    own = [stage.stage for stage in plan.layout.stages if stage.rank == at.pp]
    books = (
        stage_books(plan.model, plan.training, plan.software, plan.layout, stage, at.tp)
        for stage in own
    )
    return [parameter for stage in books for parameter in stage.parameters]


def parameter_problems(
    planned: Iterable[ParameterBooks], shards: dict[ParameterShard, nn.Parameter]
) -> list[str]:
    """Parameters that are missing, not planned, or of another shape or treatment."""
    expected = {books.name: books for books in planned}
    built = {shard.name: (shard, parameter) for shard, parameter in shards.items()}
    problems = [f"{name} is missing" for name in expected if name not in built]
    for name, (shard, parameter) in built.items():
        books = expected.get(name)
        if books is None:
            problems.append(f"{name} is not planned on this rank")
            continue
        here = (shard.global_shape, tuple(parameter.shape), shard.tp_replicated, shard.weight_decay)
        there = (
            books.global_shape, books.local_shape, books.tp_replicated, books.weight_decay,
        )  # fmt: skip
        if here != there:
            problems.append(f"{name} is built as {here}, planned as {there}")
    return problems


def layers_of(shards: Iterable[ParameterShard]) -> tuple[int, ...]:
    """Global numbers of the layers that parameters belong to, ascending."""
    parts = (shard.name.split(".") for shard in shards)
    return tuple(sorted({int(part[1]) for part in parts if part[0] == "layers"}))


def _accountable_elements(
    shards: Iterable[ParameterShard], at: Coordinates, first_stage_rank: int
) -> int:
    """A tied weight counts where the first stage is."""
    if at.dp > 0 or at.cp > 0:
        return 0
    ranges = (
        span
        for shard in shards
        if at.pp == first_stage_rank or not shard.tied
        for span in shard.owned_ranges()
    )
    return sum(stop - start for start, stop in ranges)


def world_problems(plan: Plan, found: Sequence[RankAudit]) -> list[str]:
    """What only all ranks together can show."""
    problems = []
    num_layers = plan.model.decoder.num_layers
    for replica in sorted({(each.at.tp, each.at.cp, each.at.dp) for each in found}):
        pipeline = [each for each in found if (each.at.tp, each.at.cp, each.at.dp) == replica]
        layers = sorted(layer for each in pipeline for layer in each.layers)
        if layers != list(range(num_layers)):
            problems.append(
                f"the pipeline of (tp, cp, dp) = {replica} has layers {layers} of {num_layers}"
            )
    elements = sum(each.accountable_elements for each in found)
    if elements != plan.model.num_parameters:
        problems.append(f"{elements} parameters are built, {plan.model.num_parameters} planned")
    if len({each.plan_hash for each in found}) > 1:
        problems.append("the ranks read different plans")
    if len({each.facts for each in found}) > 1:
        prints = sorted({each.facts.data_fingerprint for each in found})
        problems.append(f"the ranks read different data, with fingerprints {', '.join(prints)}")
    return problems
