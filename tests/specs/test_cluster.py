"""Clusters: who sits where, and which link joins two ranks."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shardwright.specs import AcceleratorSpec, ClusterSpec
from shardwright.specs.cluster import SharedResource
from tests.specs.small import cluster, group, tier


def test_devices_are_counted_over_groups() -> None:
    mixed = ClusterSpec(
        name="mixed", groups=(group(2, 4), group(1, 2)), between_groups=tier("ethernet", 1e9)
    )
    assert mixed.num_devices == 10
    assert mixed.group_of(7) is mixed.groups[0]
    assert mixed.group_of(8) is mixed.groups[1]
    assert mixed.tier_between(0, 9).name == "ethernet"
    with pytest.raises(IndexError, match="rank 10 of 10"):
        mixed.group_of(10)


@pytest.mark.parametrize(
    ("domain", "ranks", "name"),
    [
        (4, (0, 3), "nvlink"),
        (4, (3, 4), "infiniband"),
        (8, (3, 4), "nvlink"),
    ],
)
def test_ranks_are_joined_by_the_slowest_link_between_them(
    domain: int, ranks: tuple[int, int], name: str
) -> None:
    spec = ClusterSpec(name="toy", groups=(group(2, 4, domain),))
    assert spec.tier_between(*ranks).name == name


def test_domains_of_a_later_group_are_counted_from_its_own_first_rank() -> None:
    mixed = ClusterSpec(
        name="mixed",
        groups=(group(1, 3), group(2, 4), group(2, 4)),
        between_groups=tier("ethernet", 1e9),
    )
    assert mixed.tier_between(3, 6).name == "nvlink"
    assert mixed.tier_between(6, 7).name == "infiniband"
    assert mixed.tier_between(11, 14).name == "nvlink"
    assert mixed.tier_between(2, 3).name == "ethernet"


def test_few_adapters_limit_what_leaves_a_node() -> None:
    nic = SharedResource(kind="nic", capacity=2, ranks=4)
    few = group().model_copy(update={"shared_resources": (nic,)})
    graph = ClusterSpec(name="few", groups=(few,)).link_graph()
    assert graph.edges["0/0", "0/fabric"]["bandwidth_bytes_per_s"] == 2 * 1e10
    assert group().model_copy(update={"inter_node": None}).node_network_bytes_per_s == 0


def test_the_link_graph_joins_every_node_to_the_fabric() -> None:
    graph = cluster().link_graph()
    assert set(graph.neighbors("0/fabric")) == {"0/0", "0/1"}
    assert graph.edges["0/0", "0/fabric"]["bandwidth_bytes_per_s"] == 4 * 1e10
    assert graph.edges["0/0", "0/0/devices"]["tier"] == "nvlink"


def test_in_words() -> None:
    assert cluster().in_words() == "2 nodes x 4 = 8 x TOY-1GB (858.3 MiB usable)"
    alone = ClusterSpec(name="one", groups=(group(1, 4),))
    assert alone.in_words().startswith("1 node x 4 = 4 x")


def test_groups_need_links_between_them() -> None:
    with pytest.raises(ValidationError, match="2 groups need between_groups"):
        ClusterSpec(name="islands", groups=(group(), group()))


def test_there_are_no_more_devices_than_exist() -> None:
    with pytest.raises(ValidationError, match="2097152 devices are more than 1048576"):
        ClusterSpec(name="huge", groups=(group(num_nodes=2**19),))


def test_usable_memory_is_part_of_memory() -> None:
    device = group().accelerator.model_dump() | {"memory_bytes": 10}
    with pytest.raises(ValidationError, match=r"usable_memory_bytes \(900000000\) exceeds"):
        AcceleratorSpec.model_validate(device)
