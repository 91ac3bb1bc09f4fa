"""Collectives on two ranks: which curves, of which sizes, and whose time counts."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from shardwright.hardware_profiles.measure import collectives
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.collectives import (
    KINDS,
    Case,
    Group,
    Kind,
    collective_curves,
    concurrencies,
    group_shapes,
    groups_of,
)
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.profile import Curve
from shardwright.runtime.ledger import Ledger
from tests.distributed import run_on_ranks
from tests.hardware_profiles.measure.stub_operations import tiny_plan

CPU = torch.device("cpu")
SIZES = (2**10, 2**12, 2**14)
SLOW_S = 0.02


@pytest.mark.parametrize(
    ("ranks_per_node", "num_nodes", "shapes"),
    [
        (1, 1, []),
        (6, 1, [(2, 1), (3, 1), (6, 1)]),
        (2, 2, [(2, 1), (1, 2), (2, 2)]),
        (1, 4, [(1, 2), (1, 4)]),
    ],
)
def test_groups_are_those_that_divide_nodes_and_their_number(
    ranks_per_node: int, num_nodes: int, shapes: list[tuple[int, int]]
) -> None:
    assert group_shapes(ranks_per_node, num_nodes) == shapes


def test_groups_take_equal_places_of_their_nodes() -> None:
    assert list(groups_of((2, 1), 4, 2)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert list(groups_of((1, 2), 2, 4)) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert list(groups_of((2, 2), 4, 2)) == [(0, 1, 4, 5), (2, 3, 6, 7)]


@pytest.mark.parametrize(
    ("shape", "concurrency", "ranks"),
    [
        ((2, 1), 1, [0, 1]),  # one group of one node
        ((2, 1), 2, [0, 1, 2, 3, 4, 5, 6, 7]),  # all groups of all nodes
        ((1, 2), 1, [0, 4]),
        ((1, 2), 4, [0, 1, 2, 3, 4, 5, 6, 7]),
        ((4, 1), 1, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_who_takes_part(shape: tuple[int, int], concurrency: int, ranks: list[int]) -> None:
    case = Case("all_reduce", "fp32", shape, concurrency)
    party = Party.local(8).model_copy(update={"ranks_per_node": 4})
    found = [r for r in range(8) if case.includes(Bench(r, party, CPU, tiny_plan()))]
    assert found == ranks


def test_one_group_is_measured_alone_and_with_all_others() -> None:
    assert concurrencies(8, 2) == [1, 4]
    assert concurrencies(8, 8) == [1]


@pytest.mark.usefixtures("world_of_one")
def test_a_rank_alone_has_no_collectives() -> None:
    assert list(collective_curves(Bench(0, Party.local(1), CPU, tiny_plan()), budget_s=1.0)) == []


def measure() -> list[Curve]:
    plan = tiny_plan(dtypes=("fp32", "bf16"), collective_bytes=SIZES)
    return list(collective_curves(Bench(dist.get_rank(), Party.local(2), CPU, plan), budget_s=0.01))


def measure_with_a_slow_rank() -> list[Curve]:
    """A collective for which the second rank alone takes its time."""
    rank = dist.get_rank()

    def call(tensor: torch.Tensor, group: Group) -> None:
        time.sleep(SLOW_S * rank)

    kinds = {"all_reduce": Kind(call, reduces=True), "send_recv": Kind(call, messages=2)}
    plan = tiny_plan(collective_bytes=SIZES[:1])
    with mock.patch.object(collectives, "KINDS", kinds):
        return list(collective_curves(Bench(rank, Party.local(2), CPU, plan), budget_s=0.01))


def calls() -> dict[str, list[tuple[str, int]]]:
    """What each kind that the runtime uses calls for 64 bytes, as (kind, bytes handed in)."""
    found = {}
    assert dist.group.WORLD is not None
    for name in KINDS.keys() - {"all_to_all"}:
        with Ledger() as ledger:
            KINDS[name].call(torch.zeros(16), Group(dist.group.WORLD, (0, 1)))
        found[name] = [(call.kind, call.input_bytes) for call in ledger.collectives]
    return found


@pytest.fixture(scope="module")
def on_two_ranks() -> list[list[Any]]:
    return run_on_ranks(2, [measure, measure_with_a_slow_rank, calls])


@pytest.mark.multiprocess
class TestOnTwoRanks:
    def test_every_rank_learns_the_same(self, on_two_ranks: list[list[Any]]) -> None:
        (first, *_), (second, *_) = on_two_ranks
        assert first == second
        for curve in first:
            assert (curve.group_shape, curve.concurrency) == ((2, 1), 1)
            assert all(point.median_s > 0 and point.n >= 3 for point in curve.points)

    def test_only_what_adds_up_is_measured_in_every_dtype(
        self, on_two_ranks: list[list[Any]]
    ) -> None:
        found = [(curve.op, curve.dtype) for curve in on_two_ranks[0][0]]
        assert sorted(found) == sorted(
            [*((name, "fp32") for name in KINDS),
             ("all_reduce", "bf16"), ("reduce_scatter", "bf16")]
        )  # fmt: skip

    def test_points_are_input_bytes_and_what_is_gathered_grows_no_larger(
        self, on_two_ranks: list[list[Any]]
    ) -> None:
        for curve in on_two_ranks[0][0]:
            expected = SIZES[:-1] if curve.op == "all_gather" else SIZES
            assert tuple(point.x for point in curve.points) == expected, curve.op

    def test_a_call_lasts_as_long_as_its_slowest_rank(self, on_two_ranks: list[list[Any]]) -> None:
        """And what sends two messages, one after the other, counts half for each."""
        for _, curves, _ in on_two_ranks:
            seconds = {curve.op: curve.points[0].median_s for curve in curves}
            assert seconds["all_reduce"] >= SLOW_S
            assert SLOW_S / 2 <= seconds["send_recv"] < SLOW_S

    def test_a_kind_calls_what_it_is_named_with_the_bytes_it_is_given(
        self, on_two_ranks: list[list[Any]]
    ) -> None:
        for _, _, called in on_two_ranks:
            assert len(called) == 5
            for name, found in called.items():
                assert found == [(name, 64)], name
