"""From adapters to the tier between nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.catalogue import AcceleratorEntry, Fact
from shardwright.hardware_profiles.topology.adapters import fabric_ports
from shardwright.hardware_profiles.topology.links import SWITCHED_PCIE
from shardwright.hardware_profiles.topology.readings import AdapterPort, DeviceMatrix
from shardwright.specs import InputError, LinkTier, SharedResource
from shardwright.specs.units import format_rate


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """How a node reaches others."""

    tier: LinkTier | None
    shared: tuple[SharedResource, ...] = ()
    words: str = ""
    doubts: tuple[str, ...] = ()


def node_network(
    ports: Sequence[AdapterPort],
    entry: AcceleratorEntry,
    *,
    num_devices: int,
    num_nodes: int,
    stated_bytes_per_s: float | None = None,
    matrix: DeviceMatrix | None = None,
) -> NodeNetwork:
    """What was stated (per node and direction), else the adapters', else the vendor's usual one.

    A matrix tells which adapters are next to accelerators; others serve storage and management.

    Raises:
        InputError: several nodes, and nothing is known of what joins them.
    """
    if stated_bytes_per_s is not None:
        fact = Fact(
            value=stated_bytes_per_s / num_devices, unit="B/s", kind="user", source="option --inter"
        )
        return NodeNetwork(catalogue.link_tier("infiniband", fact), words="stated")
    fabric = _near_ports(fabric_ports(ports), matrix)
    if fabric:
        return _from_ports(fabric, ports, num_devices)
    if num_nodes == 1:
        return NodeNetwork(None)
    tier = catalogue.own_network(entry, num_devices)
    if tier is None:
        raise InputError(
            f"nothing is known of the network between {num_nodes} nodes of {num_devices}"
            f" {entry.slug}",
            fix="add the output of ibstat or ibstatus with --from, or state --inter 100GB/s",
        )
    doubt = "the network between nodes: no adapter's rate was given"
    return NodeNetwork(tier, words="usual for such a node", doubts=(doubt,))


def _near_ports(ports: Sequence[AdapterPort], matrix: DeviceMatrix | None) -> list[AdapterPort]:
    """Those below one PCIe switch with an accelerator, where any is."""
    if matrix is None or matrix.nic_links is None:
        return list(ports)
    legend = matrix.nic_legend or {}
    near = {
        legend.get(nic, nic)
        for index, nic in enumerate(matrix.nics)
        if any((row[index] or "").upper() in SWITCHED_PCIE for row in matrix.nic_links)
    }
    return [port for port in ports if port.name in near] or list(ports)


def _from_ports(
    fabric: Sequence[AdapterPort], ports: Sequence[AdapterPort], num_devices: int
) -> NodeNetwork:
    """The share of each device; where adapters are fewer, devices share them."""
    rate = fabric[0].rate_bytes_per_s
    assert rate is not None
    count = len(fabric)
    words = f"{count} adapters of {format_rate(rate)} as they report"
    if len(fabric) < len(ports):
        words += f", {len(ports) - count} slower, idle or distant ones left out"
    is_scarce = count < num_devices
    fact = Fact(
        value=rate if is_scarce else rate * count / num_devices,
        unit="B/s",
        kind="measured",
        source=words,
    )
    shared = (SharedResource(kind="nic", capacity=count, ranks=num_devices),) if is_scarce else ()
    return NodeNetwork(catalogue.link_tier(_fabric_name(fabric[0]), fact), shared, words)


def _fabric_name(port: AdapterPort) -> str:
    """The tier's name, by which the catalogue knows its latency."""
    name = (port.name or "").lower()
    if re.match(r"efa|rdmap", name):
        return "efa"
    if re.match(r"cxi|hsn", name):
        return "slingshot"
    if (port.link_layer or "").lower() != "ethernet":
        return "infiniband"
    return "ethernet" if re.match(r"e(?:th|n|no|ns|np)|bond", name) else "roce"
