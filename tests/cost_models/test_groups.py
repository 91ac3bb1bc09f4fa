"""Groups against `WorldSize.groups`, and the slowest of unequal groups."""

from __future__ import annotations

import itertools

import pytest

from shardwright.cost_models.blocks.operations import Collective
from shardwright.cost_models.communication import CommunicationModel
from shardwright.cost_models.groups import GroupName, GroupPrices
from shardwright.specs import ClusterSpec, WorldSize
from tests.cost_models.profiles import cluster, profile

SUM = Collective("sum", "all_reduce", "tp", 1 << 20, "bf16")


def prices(
    world: WorldSize, *, degree: int = 1, num_nodes: int = 1, ranks_per_node: int = 8
) -> GroupPrices:
    devices = cluster(num_nodes=num_nodes, ranks_per_node=ranks_per_node)
    return GroupPrices(CommunicationModel(profile(devices)), devices, world, degree)


def groups_of(found: GroupPrices, name: GroupName, pp_rank: int) -> set[tuple[int, ...]]:
    return {tuple(ranks) for ranks in found.groups(name, pp_rank)}


@pytest.mark.parametrize("world", [WorldSize(tp=2, dp=3, pp=2), WorldSize(tp=3, dp=2, pp=4)])
def test_tp_and_dp_groups_are_those_of_the_world(world: WorldSize) -> None:
    found = prices(world, num_nodes=4)
    for axis in ("tp", "dp"):
        every = {tuple(ranks) for ranks in world.groups(axis)}
        name: GroupName = "tp" if axis == "tp" else "dp"
        assert set().union(*(groups_of(found, name, rank) for rank in range(world.pp))) == every
        assert found.size(name) == getattr(world, axis)


def test_shard_groups_are_neighbours_and_replicas_are_equal_places() -> None:
    found = prices(WorldSize(tp=2, dp=4, pp=2), degree=2, num_nodes=2)
    assert groups_of(found, "shard", 1) == {(8, 10), (9, 11), (12, 14), (13, 15)}
    assert groups_of(found, "replica", 1) == {(8, 12), (9, 13), (10, 14), (11, 15)}
    assert (found.size("shard"), found.size("replica")) == (2, 2)


def test_groups_along_the_pipeline() -> None:
    found = prices(WorldSize(tp=2, pp=3))
    assert groups_of(found, "next", 1) == {(2, 4), (3, 5)}
    assert groups_of(found, "embedding", 0) == {(0, 4), (1, 5)}
    assert groups_of(found, "world", 2) == {(0, 1, 2, 3, 4, 5)}


def test_a_group_of_one_costs_nothing() -> None:
    found = prices(WorldSize(dp=4))
    assert found.seconds(SUM, "tp", 0) == 0.0
    assert found.seconds(SUM, "dp", 0) > 0.0


def test_the_group_that_straddles_nodes_sets_the_price() -> None:
    """tp = 3 on nodes of 8: ranks 6, 7 and 8 meet over the slow link."""
    world = WorldSize(tp=3, pp=5)
    found = prices(world, num_nodes=2)
    inside, across = (found.seconds(SUM, "tp", rank) for rank in (1, 2))
    assert across > 2 * inside
    assert found.key(0) == found.key(1) != found.key(2)


@pytest.mark.parametrize("name", ["tp", "dp", "shard", "replica", "next"])
def test_one_group_of_each_kind_is_enough(name: GroupName) -> None:
    """The paths that are priced are those of all groups, on each pipeline rank."""
    for tp, dp, per_node in itertools.product((1, 2, 3), (2, 4), (3, 4, 8)):
        world = WorldSize(tp=tp, dp=dp, pp=5)
        devices = cluster(num_nodes=-(-world.world // per_node) + 1, ranks_per_node=per_node)
        assert_all_paths_are_priced(devices, world, name)


@pytest.mark.parametrize("name", ["tp", "dp", "shard", "next"])
def test_pipeline_ranks_on_other_nodes_have_paths_of_their_own(name: GroupName) -> None:
    """Six ranks on nodes of three with a slow link, then eight on one node with a fast one."""
    slow, fast = cluster(num_nodes=2, ranks_per_node=3), cluster(num_nodes=1)
    (group,) = fast.groups
    intra = group.intra_node.model_copy(update={"bandwidth_bytes_per_s": 5e12})
    groups = (*slow.groups, group.model_copy(update={"name": "fast", "intra_node": intra}))
    mixed = slow.model_copy(update={"groups": groups, "between_groups": slow.groups[0].inter_node})
    for tp, dp in ((1, 2), (2, 1)):
        assert_all_paths_are_priced(mixed, WorldSize(tp=tp, dp=dp, pp=7), name)


def assert_all_paths_are_priced(devices: ClusterSpec, world: WorldSize, name: GroupName) -> None:
    communication = CommunicationModel(profile(devices))
    found = GroupPrices(communication, devices, world, 2 if world.dp > 1 else 1)
    for pp_rank in range(world.pp - (name == "next")):
        every = {communication.path(tuple(ranks)) for ranks in found.groups(name, pp_rank)}
        assert set(found.paths(name, pp_rank)) == every, (world, pp_rank)


def test_fewer_busy_ranks_mean_fewer_groups_at_once() -> None:
    found = prices(WorldSize(tp=2, dp=4), num_nodes=1)
    assert found.ranks_per_node == 8
    assert found.seconds(SUM, "tp", 0, 2) <= found.seconds(SUM, "tp", 0)


def test_ranks_of_other_nodes_do_not_crowd_a_node() -> None:
    """Where containers of one machine share cores, more ranks are busy at once than a node has."""
    found = prices(WorldSize(tp=2, dp=4), num_nodes=1)
    assert found.seconds(SUM, "tp", 0, 16) == found.seconds(SUM, "tp", 0, 8)
