"""From readings to a `ClusterSpec` in which every number says where it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.topology.links import NodeLinks, node_links
from shardwright.hardware_profiles.topology.match import (
    MEMORY_TOLERANCE,
    AcceleratorMatch,
    match_accelerator,
    nearest_slugs,
)
from shardwright.hardware_profiles.topology.network import NodeNetwork, node_network
from shardwright.hardware_profiles.topology.readings import (
    DeviceRow,
    SlurmNode,
    TopologyReading,
    merged,
)
from shardwright.specs import AcceleratorSpec, ClusterSpec, InputError, LinkTier, NodeGroup
from shardwright.specs.units import format_bytes

RACK_DOMAIN_DEVICES = 72
"""Devices of an NVL72 rack, whose trays of 4 see only one another in a matrix."""


@dataclass(frozen=True, slots=True)
class DescribedCluster:
    """A cluster, where its numbers came from, and what of it is a guess."""

    cluster: ClusterSpec
    origins: Mapping[str, str] = field(default_factory=dict)
    """By path, such as ``groups.0.num_nodes``: what said so."""
    guesses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was seen and is not in the spec, such as NUMA nodes."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What the user adds to what was read."""

    num_nodes: int | None = None
    accelerator: str | None = None
    """A slug of the catalogue."""
    inter_bytes_per_s: float | None = None
    """Per node and direction."""
    name: str | None = None


@dataclass(slots=True)
class _Draft:
    """One group in the making."""

    device_name: str | None
    device_memory_bytes: int | None
    num_devices: int
    num_nodes: int
    origins: dict[str, str] = field(default_factory=dict)
    guesses: list[str] = field(default_factory=list)


def cluster_from_readings(
    readings: Sequence[TopologyReading], stated: Stated | None = None
) -> DescribedCluster:
    """The cluster whose node (or whose scheduler) the readings describe.

    Raises:
        InputError: no reading tells how many accelerators a node has or which they are, the
            catalogue does not know them, or nothing is known of the network between nodes.
    """
    stated = stated or Stated()
    node = merged(readings)
    groups = _scheduled_groups([n for reading in readings for n in reading.nodes])
    drafts = _drafts(node, groups, stated)
    described = [_group(draft, node, stated, index) for index, draft in enumerate(drafts)]
    between = _between([group for group, _ in described])
    name = stated.name or "+".join(f"{g.name}:{g.num_nodes}" for g, _ in described)
    cluster = ClusterSpec(
        name=name, groups=tuple(group for group, _ in described), between_groups=between
    )
    origins = {
        f"groups.{index}.{path}": words
        for index, draft in enumerate(drafts)
        for path, words in draft.origins.items()
    }
    guesses = [guess for draft in drafts for guess in draft.guesses]
    if between is not None:
        guesses.append("between_groups: taken as the slowest network of the groups")
    return DescribedCluster(cluster, origins, tuple(guesses), tuple(_notes(node, groups)))


def _scheduled_groups(nodes: Sequence[SlurmNode]) -> dict[tuple[str | None, int], list[SlurmNode]]:
    """Nodes with accelerators by their type and number."""
    found: dict[tuple[str | None, int], list[SlurmNode]] = {}
    for node in nodes:
        if node.num_gpus:
            found.setdefault((node.gpu_type or _feature_type(node), node.num_gpus), []).append(node)
    return found


def _feature_type(node: SlurmNode) -> str | None:
    """An accelerator among the node's features, where its count has no type."""
    return next((feature for feature in node.features if match_accelerator(feature)), None)


def _drafts(
    node: TopologyReading,
    groups: Mapping[tuple[str | None, int], list[SlurmNode]],
    stated: Stated,
) -> list[_Draft]:
    seen = len(node.matrix.names) if node.matrix else len(node.devices)
    if seen:
        draft = _Draft(*_common_device(node.devices), seen, 1)
        draft.origins["devices_per_node"] = f"reported: {node.kind} lists {seen}"
        alike = [nodes for (_, gpus), nodes in groups.items() if gpus == seen]
        _count_nodes(draft, sum(map(len, alike)), len(node.hostnames), stated)
        if len({(d.name, d.memory_bytes) for d in node.devices if d.name}) > 1:
            draft.guesses.append("devices of a node differ; all are taken as the smallest")
        return [draft]
    if not groups:
        raise InputError(
            "no text tells how many accelerators a node has",
            why=f"what was read is {', '.join(node.kinds) or 'nothing'}",
            fix="add the output of `nvidia-smi topo -m`, or of its kin, with --from",
        )
    if stated.num_nodes is not None and len(groups) > 1:
        raise InputError(
            f"--nodes {stated.num_nodes} does not say how many of each of {len(groups)} kinds",
            fix="leave out --nodes, or give the nodes of one kind alone",
        )
    drafts = []
    for (kind, count), nodes in groups.items():
        draft = _Draft(kind, None, count, 1)
        draft.origins["devices_per_node"] = f"reported: Slurm's Gres of {nodes[0].name}"
        _count_nodes(draft, len(nodes), 0, stated)
        drafts.append(draft)
    return drafts


def _count_nodes(draft: _Draft, scheduled: int, hostnames: int, stated: Stated) -> None:
    draft.num_nodes = stated.num_nodes or scheduled or hostnames or 1
    if stated.num_nodes:
        origin = "stated: --nodes"
    elif scheduled or hostnames:
        origin = f"reported: Slurm lists {draft.num_nodes}"
    else:
        origin = "the one that was read; state more with --nodes"
    draft.origins["num_nodes"] = origin


def _common_device(devices: Sequence[DeviceRow]) -> tuple[str | None, int | None]:
    """Name and memory of the devices; of unlike ones those of the smallest."""
    if not devices:
        return None, None
    sized = [device for device in devices if device.memory_bytes is not None]
    if not sized:
        return Counter(device.name for device in devices).most_common(1)[0][0], None
    smallest = min(sized, key=lambda device: device.memory_bytes or 0)
    return smallest.name, smallest.memory_bytes


def _group(
    draft: _Draft, node: TopologyReading, stated: Stated, index: int
) -> tuple[NodeGroup, _Draft]:
    match = _matched(draft, stated)
    entry = match.entry
    slots = [device.host_bytes_per_s for device in node.devices if device.host_bytes_per_s]
    links = node_links(
        node.matrix,
        entry,
        draft.num_devices,
        node.link_rates_bytes_per_s,
        min(slots, default=None),
    )
    network = node_network(
        node.ports,
        entry,
        num_devices=draft.num_devices,
        num_nodes=draft.num_nodes,
        stated_bytes_per_s=stated.inter_bytes_per_s,
        matrix=node.matrix,
    )
    inter = _inter(links, network, draft)
    group = NodeGroup(
        name=f"{draft.num_devices}x{entry.slug}",
        num_nodes=draft.num_nodes,
        devices_per_node=draft.num_devices,
        accelerator=_accelerator(draft, match),
        intra_node=links.intra,
        inter_node=inter,
        scale_up_domain_gpus=_domain(draft, links, node, entry.slug),
        shared_resources=network.shared,
        host_memory_bytes=node.host.memory_bytes if node.host else None,
    )
    draft.origins |= {"intra_node": links.words, "inter_node": network.words or links.words}
    draft.guesses += [f"groups.{index}.intra_node: {doubt}" for doubt in links.doubts]
    draft.guesses += [f"groups.{index}.inter_node: {doubt}" for doubt in network.doubts]
    return group, draft


def _matched(draft: _Draft, stated: Stated) -> AcceleratorMatch:
    """The catalogue's entry of a draft's device; raises `InputError` where there is none."""
    if stated.accelerator is not None:
        draft.origins["accelerator"] = "stated: --accelerator"
        return AcceleratorMatch(catalogue.accelerator_entry(stated.accelerator))
    if draft.device_name is None:
        raise InputError(
            f"no text says which accelerators the {draft.num_devices} of a node are",
            why="a matrix of links has no names of devices",
            fix="add `nvidia-smi --query-gpu=name,memory.total --format=csv` or its kin with"
            " --from, or state --accelerator, such as --accelerator h100-sxm5-80gb",
        )
    match = match_accelerator(draft.device_name, draft.device_memory_bytes)
    if match is None:
        near = nearest_slugs(draft.device_name)
        raise InputError(
            f"the catalogue does not know the accelerator {draft.device_name!r}",
            fix="state the nearest with --accelerator"
            + (f", such as {', '.join(near)}" if near else "; see `shardwright clusters`"),
        )
    words = f"reported as {draft.device_name!r}: {match.entry.slug} of the catalogue"
    draft.origins["accelerator"] = words
    draft.guesses += [f"accelerator {match.entry.slug}: {doubt}" for doubt in match.doubts]
    return match


def _accelerator(draft: _Draft, match: AcceleratorMatch) -> AcceleratorSpec:
    """The catalogue's device with the memory of this one.

    A tool counts memory that the driver keeps for itself, so that what a process was measured to
    see is taken where the model is certain.
    """
    device = match.entry.to_spec()
    reported = draft.device_memory_bytes
    if reported is None:
        draft.origins["accelerator.memory_bytes"] = "as the catalogue has it"
        return device
    seen = match.entry.device_reported_memory
    if seen.kind == "measured" and abs(reported / device.memory_bytes - 1) <= MEMORY_TOLERANCE:
        draft.origins["accelerator.memory_bytes"] = (
            f"measured: what a process sees of the {format_bytes(reported)} that the tool reports"
        )
        return device
    draft.origins["accelerator.memory_bytes"] = "reported by the tool"
    usable = max(1, reported - catalogue.context_bytes())
    return device.model_copy(update={"memory_bytes": reported, "usable_memory_bytes": usable})


def _inter(links: NodeLinks, network: NodeNetwork, draft: _Draft) -> LinkTier | None:
    """The tier between domains: the network, or what joins the islands of one node if slower."""
    between = links.between_islands
    if between is None:
        return network.tier
    if network.tier is None:
        return between
    slower = min(between, network.tier, key=lambda tier: tier.bandwidth_bytes_per_s)
    draft.guesses.append(
        f"inter_node: islands within a node and nodes are joined by different links"
        f" ({between.name}, {network.tier.name}); all are priced as {slower.name}"
    )
    return slower


def _domain(draft: _Draft, links: NodeLinks, node: TopologyReading, slug: str) -> int:
    """Devices that the node's own links join, across nodes in racks that do so."""
    is_tray = slug.startswith(("gb200", "gb300")) and draft.num_devices == 4
    if not is_tray or links.domain_devices < draft.num_devices:
        draft.origins["scale_up_domain_gpus"] = links.words
        return links.domain_devices
    blocks = [len(switch.nodes) for switch in node.switches if switch.is_block and switch.nodes]
    if blocks:
        draft.origins["scale_up_domain_gpus"] = "reported: blocks of Slurm's topology"
        return max(blocks) * draft.num_devices
    draft.guesses.append(
        f"scale_up_domain_gpus: a tray shows its own {draft.num_devices} devices only; taken as"
        f" a rack of {RACK_DOMAIN_DEVICES}"
    )
    return RACK_DOMAIN_DEVICES


def _between(groups: Sequence[NodeGroup]) -> LinkTier | None:
    """Between groups: the slowest of their networks."""
    if len(groups) == 1:
        return None
    tiers = [group.inter_node for group in groups if group.inter_node is not None]
    if len(tiers) < len(groups):
        raise InputError(
            f"nothing is known of the network that joins {len(groups)} kinds of nodes",
            fix="add the output of ibstat with --from, or state --inter 25GB/s",
        )
    return min(tiers, key=lambda tier: tier.bandwidth_bytes_per_s)


def _notes(
    node: TopologyReading, groups: Mapping[tuple[str | None, int], list[SlurmNode]]
) -> list[str]:
    notes = []
    if node.matrix and node.matrix.numa_groups and len(node.matrix.numa_groups) > 1:
        places = "; ".join(
            f"{place}: {', '.join(names)}" for place, names in node.matrix.numa_groups.items()
        )
        notes.append(f"NUMA nodes next to the devices: {places}")
    if any(device.is_sliced for device in node.devices):
        notes.append("MIG is on: a process sees a slice, and less memory than is stated here")
    idle = [
        n.name for nodes in groups.values() for n in nodes
        if n.state and any(word in n.state.upper() for word in ("DOWN", "DRAIN", "FAIL"))
    ]  # fmt: skip
    if idle:
        notes.append(f"{len(idle)} nodes are down or drained, and counted: {', '.join(idle[:8])}")
    return notes
