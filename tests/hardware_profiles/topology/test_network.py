"""The tier between nodes from adapters, from what is stated, and from what is usual."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.topology.network import NodeNetwork, node_network
from shardwright.hardware_profiles.topology.readings import AdapterPort
from shardwright.specs import InputError
from tests.hardware_profiles.topology import samples


def network(
    ports: list[AdapterPort], nodes: int = 2, stated: float | None = None, slug: str = "h100-sxm5"
) -> NodeNetwork:
    entry = catalogue.accelerator_entry(slug)
    return node_network(ports, entry, num_devices=8, num_nodes=nodes, stated_bytes_per_s=stated)


def port(name: str, rate: float, layer: str = "InfiniBand") -> AdapterPort:
    return AdapterPort(name, "Active", rate, layer)


def test_an_adapter_per_device() -> None:
    found = network([port(f"mlx5_{i}", 50e9) for i in range(8)])
    assert found.tier is not None
    assert (found.tier.name, found.tier.bandwidth_bytes_per_s) == ("infiniband", 50e9)
    assert found.shared == ()


def test_fewer_adapters_are_shared_and_more_are_added_up() -> None:
    few = network([port(f"mlx5_{i}", 25e9, "Ethernet") for i in range(4)])
    assert few.tier is not None
    assert (few.tier.name, few.tier.bandwidth_bytes_per_s) == ("roce", 25e9)
    (nic,) = few.shared
    assert (nic.kind, nic.capacity, nic.ranks) == ("nic", 4, 8)
    many = network([port(f"rdmap{i}", 12.5e9) for i in range(32)])
    assert many.tier is not None
    assert (many.tier.name, many.tier.bandwidth_bytes_per_s) == ("efa", 50e9)


def test_what_is_stated_is_per_node() -> None:
    found = network([], stated=400e9)
    assert found.tier is not None
    assert (found.tier.bandwidth_bytes_per_s, found.tier.provenance) == (50e9, "user")


def test_what_is_usual_is_a_guess_and_what_is_unknown_is_refused() -> None:
    assert network([]).doubts
    assert network([], nodes=1).tier is None
    with pytest.raises(InputError, match=r"nothing is known of the network.*--inter 100GB/s"):
        network([], slug="l4")


def test_adapters_far_from_every_device_are_left_out() -> None:
    matrix = samples.reading("nvswitch_8_nics_tabs").matrix
    assert matrix is not None
    ports = [port(f"mlx5_{i}", 50e9) for i in range(8)] + [port("mlx5_bond_0", 50e9)]
    entry = catalogue.accelerator_entry("h100-sxm5")
    found = node_network(ports, entry, num_devices=8, num_nodes=1, matrix=matrix)
    assert found.tier is not None
    assert found.tier.bandwidth_bytes_per_s == 50e9
    assert "1 slower, idle or distant" in found.words
    unnamed = [AdapterPort(None, None, 50e9)] * 9
    every = node_network(unnamed, entry, num_devices=8, num_nodes=1, matrix=matrix)
    assert every.tier is not None
    assert every.tier.bandwidth_bytes_per_s == 50e9 * 9 / 8
