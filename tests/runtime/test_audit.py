"""The audit finds whatever was built otherwise than planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from shardwright.cost_models.blocks.stage import stage_books
from shardwright.runtime.audit import (
    RankAudit,
    audit,
    group_problems,
    parameter_problems,
    world_problems,
)
from shardwright.runtime.checkpoint import RunFacts
from shardwright.runtime.models import build_rank
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import ParameterShard, shard_of
from shardwright.specs import Plan, RunError, WorldSize
from shardwright.specs.world import Coordinates
from tests.runtime.plans import plan_of, small_model

PLAN = plan_of()
FACTS = RunFacts.of(PLAN, "data")


def _shards(plan: Plan, at: Coordinates) -> dict[ParameterShard, nn.Parameter]:
    groups = ParallelGroups(plan.layout.world_size.rank_of(at), plan.layout.world_size, at)
    rank = build_rank(plan.model, plan.layout, plan.training, groups, device="meta")
    return {shard_of(parameter): parameter for parameter in rank.parameters()}


def _books(plan: Plan, at: Coordinates) -> Any:
    return stage_books(
        plan.model, plan.training, plan.software, plan.layout, at.pp, at.tp
    ).parameters


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("tp", [1, 3, 4])
def test_built_parameters_are_the_planned_ones(tp: int, tied: bool) -> None:
    plan = plan_of(small_model(tied=tied), tp=tp, pp=2)
    for pp in range(2):
        for tp_rank in range(tp):
            at = Coordinates(tp=tp_rank, cp=0, dp=0, pp=pp)
            assert parameter_problems(_books(plan, at), _shards(plan, at)) == []


def test_every_other_parameter_is_named() -> None:
    at = Coordinates(0, 0, 0, 0)
    built = _shards(plan_of(small_model(num_layers=5)), at)
    other_head = {
        replace(shard, weight_decay=not shard.weight_decay) if "head" in shard.name else shard: p
        for shard, p in built.items()
    }
    problems = parameter_problems(_books(PLAN, at), other_head)
    assert "layers.4.mlp.down.weight is not planned on this rank" in problems
    assert any(problem.startswith("head.weight is built as") for problem in problems)
    fewer = dict(list(_shards(PLAN, at).items())[1:])
    assert parameter_problems(_books(PLAN, at), fewer) == ["embedding.weight is missing"]


def test_groups_of_another_grid_are_noticed() -> None:
    assert group_problems(WorldSize(), ParallelGroups.alone()) == []
    assert group_problems(WorldSize(tp=2, pp=2), ParallelGroups.alone()) == [
        "1 ranks run, 4 are planned",
        "its tp group is [0], planned [0, 1]",
        "its pp group is [0], planned [0, 2]",
    ]


def _rank(**changes: Any) -> RankAudit:
    whole = RankAudit(
        at=Coordinates(0, 0, 0, 0),
        layers=(0, 1, 2, 3),
        accountable_elements=PLAN.model.num_parameters,
        parameter_bytes=0,
        facts=FACTS,
        plan_hash="plan",
    )
    return replace(whole, **changes)


def test_whole_model_has_no_problems() -> None:
    half = PLAN.model.num_parameters // 2
    stages = [
        _rank(at=Coordinates(0, 0, 0, 1), layers=(2, 3), accountable_elements=half),
        _rank(layers=(0, 1), accountable_elements=half),
    ]
    assert world_problems(PLAN, [_rank()]) == []
    assert world_problems(PLAN, stages) == []


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        pytest.param([_rank(layers=(0, 1, 3))], "has layers [0, 1, 3] of 4", id="layer-missing"),
        pytest.param(
            [_rank(), _rank(at=Coordinates(0, 0, 0, 1), layers=(3,), accountable_elements=0)],
            "has layers [0, 1, 2, 3, 3] of 4",
            id="layer-twice",
        ),
        pytest.param(
            [_rank(accountable_elements=7)],
            f"7 parameters are built, {PLAN.model.num_parameters} planned",
            id="parameters",
        ),
        pytest.param(
            [_rank(), _rank(at=Coordinates(0, 0, 1, 0), accountable_elements=0, plan_hash="b")],
            "the ranks read different plans",
            id="plans",
        ),
        pytest.param(
            [
                _rank(),
                _rank(
                    at=Coordinates(0, 0, 1, 0),
                    accountable_elements=0,
                    facts=RunFacts.of(PLAN, "other"),
                ),
            ],
            "the ranks read different data, with fingerprints data, other",
            id="data",
        ),
    ],
)
def test_what_only_all_ranks_show(ranks: list[RankAudit], problem: str) -> None:
    (found,) = world_problems(PLAN, ranks)
    assert problem in found


def test_audit_passes_and_fails_as_a_whole() -> None:
    groups = ParallelGroups.alone()
    rank = build_rank(PLAN.model, PLAN.layout, PLAN.training, groups)
    (found,) = audit(PLAN, rank, groups, FACTS)
    assert found.accountable_elements == PLAN.model.num_parameters
    assert found.parameter_bytes == 4 * PLAN.model.num_parameters
    other = plan_of(small_model(num_layers=3))
    with pytest.raises(RunError, match=r"layers.3.attention_norm.weight is not planned") as error:
        audit(other, rank, groups, FACTS)
    assert error.value.on_every_rank
