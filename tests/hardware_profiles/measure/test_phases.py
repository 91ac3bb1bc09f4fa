"""Phase after phase on one rank, and what it reports meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from shardwright.hardware_profiles.measure import phases
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.phases import PHASES, Phase, run_phases
from shardwright.hardware_profiles.profile import Curve, Parameter, Point
from tests.hardware_profiles.measure.stub_operations import tiny_plan

pytestmark = pytest.mark.usefixtures("world_of_one")

Message = dict[str, Any]


def messages_of(rank: int, world: int) -> list[Message]:
    """What that rank says while it measures; little enough for a pipe to hold."""
    receiving, sending = os.pipe()
    try:
        run_phases(Bench(rank, Party.local(world), torch.device("cpu"), tiny_plan(), sending))
    finally:
        os.close(sending)
        with os.fdopen(receiving) as stream:
            lines = stream.readlines()
    return [json.loads(line) for line in lines]


def curves_in(messages: list[Message]) -> list[Curve]:
    return [Curve.model_validate(m["curve"]) for m in messages if "curve" in m]


def test_the_shares_of_the_time_are_a_whole() -> None:
    assert sum(phase.share for phase in PHASES) == pytest.approx(1.0)
    assert all(phase.share > 0 for phase in PHASES)


def test_a_rank_alone_measures_every_kind_of_computing() -> None:
    found = {curve.op.partition("@")[0] for curve in curves_in(messages_of(0, 1))}
    assert found == {
        "launch", "matmul/forward", "matmul/input_gradient", "matmul/weight_gradient",
        "attention/forward", "attention/backward", "elementwise", "elementwise/negate",
        "elementwise/wide", "shared/matmul", "shared/attention", "shared/elementwise",
    }  # fmt: skip


def test_progress_goes_from_nothing_to_everything() -> None:
    said = [(m["progress"], m["done"]) for m in messages_of(0, 1) if "progress" in m]
    shares = [done for _, done in said]
    assert shares == sorted(shares)
    assert said[0] == (PHASES[0].doing, 0.0)
    assert said[-1] == ("done", 1.0)
    assert list(dict.fromkeys(doing for doing, _ in said)) == [*(p.doing for p in PHASES), "done"]


def test_the_memory_of_an_empty_process_comes_first() -> None:
    first = messages_of(0, 1)[0]
    used = Parameter.model_validate(first["parameter"])
    assert (used.name, used.unit, used.kind) == ("process_memory_bytes", "B", "measured")
    assert 2**20 < used.value < 2**36


def recording(op: str, budgets: dict[str, float]) -> Callable[[Bench, float], Iterator[Curve]]:
    def curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
        budgets[op] = budget_s
        yield Curve(quantity="launches", op=op, dtype="fp32", points=(Point(1.0, 1.0, 0.0, 1),))

    return curves


@pytest.mark.parametrize(
    ("rank", "measured", "said"),
    [(0, ["first", "everyone"], ["first", "everyone"]), (1, ["everyone"], [])],
)
def test_the_first_rank_measures_alone_what_others_do_not_share(
    rank: int, measured: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: dict[str, float] = {}
    two = (
        Phase("alone", 0.25, recording("first", budgets)),
        Phase("together", 0.75, recording("everyone", budgets), all_ranks=True),
    )
    monkeypatch.setattr(phases, "PHASES", two)
    messages = messages_of(rank, 2)
    assert list(budgets) == measured
    assert budgets["everyone"] == pytest.approx(0.75 * tiny_plan().budget_s)
    assert [curve.op for curve in curves_in(messages)] == said


@pytest.mark.parametrize(
    ("claims", "measuring"),
    [
        (("a:0,1", "a:0,1", "b:0,1", "b:0,1"), [0, 2]),  # two machines
        (("a:0", "a:0", "a:1", "a:1"), [0, 2]),  # containers with cores of their own
        (("a:0,1", "a:0,1", "a:0,1", "a:0,1"), [0]),  # containers that share cores
        (("a:0", "a:1", "a:2", "a:3"), [0, 1, 2, 3]),  # a core for each
    ],
)
def test_the_first_of_each_set_that_shares_cores_measures(
    claims: tuple[str, ...], measuring: list[int]
) -> None:
    party = Party.joined(claims, rank=0, ranks_per_node=2, meeting="tcp://here:1")
    benches = [Bench(rank, party, torch.device("cpu"), tiny_plan()) for rank in range(4)]
    assert [bench.rank for bench in benches if bench.measures_alone] == measuring
