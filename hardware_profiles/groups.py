"""The node groups of a heterogeneous cluster as clusters of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwright.hardware_profiles.catalogue import parameters_for
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.stacks import OF_SOFTWARE
from shardwright.specs import AcceleratorSpec, ClusterSpec, LinkTier, NodeGroup


def group_profile(profile: HardwareProfile, index: int) -> HardwareProfile:
    """One node group alone, with what the catalogue knows of its devices.

    Of the profile's own parameters those stay that are named for the group (`group_parameter`) and,
    where it was calibrated, those of software: they hold on any device. The others are those of one
    group, and which one it does not say.
    """
    group = profile.devices.groups[index]
    cluster = ClusterSpec(name=group_names(profile.devices)[index], groups=(group,))
    kept = [
        one
        for one in profile.parameters
        if profile.software is not None and one.name.startswith(OF_SOFTWARE)
    ]
    prefix = group_parameter(index, "")
    kept += [
        one.model_copy(update={"name": one.name.removeprefix(prefix)})
        for one in profile.parameters
        if one.name.startswith(prefix)
    ]
    names = {one.name for one in kept}
    own = (*(one for one in parameters_for(group) if one.name not in names), *kept)
    return profile.model_copy(update={"devices": cluster, "parameters": own})


def group_parameter(index: int, name: str) -> str:
    """What a parameter is called that holds for one node group of several."""
    return f"group.{index}.{name}"


def group_names(cluster: ClusterSpec) -> tuple[str, ...]:
    """A name for each group: its node type, numbered where several are of one."""
    kinds = [group.name for group in cluster.groups]
    return tuple(
        f"{kind} ({kinds[:index].count(kind) + 1})" if kinds.count(kind) > 1 else kind
        for index, kind in enumerate(kinds)
    )


def slowest_device(cluster: ClusterSpec) -> AcceleratorSpec:
    """The device with the least arithmetic, given no more memory or bandwidth than any other."""
    devices = [group.accelerator for group in cluster.groups]
    slowest = min(devices, key=lambda one: max(one.peak_flops_per_s.values()))
    return slowest.model_copy(
        update={
            "memory_bytes": min(one.memory_bytes for one in devices),
            "usable_memory_bytes": min(one.usable_memory_bytes for one in devices),
            "memory_bandwidth_bytes_per_s": min(
                one.memory_bandwidth_bytes_per_s for one in devices
            ),
        }
    )


def as_slowest(profile: HardwareProfile) -> HardwareProfile:
    """The cluster with every device as slow as the slowest, on the links that it has."""
    device = slowest_device(profile.devices)
    groups = tuple(
        group.model_copy(update={"accelerator": device}) for group in profile.devices.groups
    )
    devices = profile.devices.model_copy(update={"groups": groups})
    first = parameters_for(groups[0])
    return profile.model_copy(update={"devices": devices, "parameters": first})


def as_one_group(profile: HardwareProfile) -> HardwareProfile:
    """The cluster as identical nodes: each device and each link as slow as the slowest.

    Of the link between groups every device has an equal share of the smaller group's.
    """
    cluster = profile.devices
    groups, device = cluster.groups, slowest_device(cluster)
    per_node = math.gcd(*(group.devices_per_node for group in groups))
    domain = math.gcd(per_node, *(group.scale_up_domain_gpus for group in groups))
    fewest = min(group.num_devices for group in groups)
    tiers = [
        group.inter_node.model_copy(
            update={
                "bandwidth_bytes_per_s": group.node_network_bytes_per_s / group.devices_per_node
            }
        )
        for group in groups
        if group.inter_node is not None
    ]
    if cluster.between_groups is not None:
        total = cluster.between_groups_total_bytes_per_s
        share = cluster.between_groups.bandwidth_bytes_per_s
        share = share if total is None else min(share, total / fewest)
        tiers.append(cluster.between_groups.model_copy(update={"bandwidth_bytes_per_s": share}))
    group = NodeGroup(
        name=f"as {device.name}",
        num_nodes=cluster.num_devices // per_node,
        devices_per_node=per_node,
        accelerator=device,
        intra_node=_slowest_link([group.intra_node for group in groups]),
        inter_node=_slowest_link(tiers) if tiers else None,
        scale_up_domain_gpus=domain,
    )
    devices = ClusterSpec(name=cluster.name, groups=(group,))
    return profile.model_copy(update={"devices": devices, "parameters": parameters_for(group)})


def _slowest_link(tiers: Sequence[LinkTier]) -> LinkTier:
    return min(tiers, key=lambda tier: tier.bandwidth_bytes_per_s)


def network_bytes_per_s(group: NodeGroup, num_devices: int) -> float | None:
    """What so many devices of a group can send to other nodes; None where nothing is known."""
    if group.inter_node is None:
        return None
    nodes = -(-num_devices // group.devices_per_node)
    return min(
        num_devices * group.inter_node.bandwidth_bytes_per_s,
        nodes * group.node_network_bytes_per_s,
    )
