"""From what the user writes after ``--cluster`` to a `HardwareProfile`.

| text | meaning |
|---|---|
| ``dgx-h100``, ``dgx-h100:16`` | a node type of the catalogue, and how many |
| ``h100-sxm5-80gb:8x16,inter=400GB/s`` | 8 devices a node, 16 nodes; options ``memory`` (per \
device), ``intra`` (per device and direction), ``inter`` (per node and direction) |
| ``dgx-a100-80gb:1+dgx-1v-32gb:2,between=10Gbit/s`` | several groups of nodes; options at the \
end: ``between`` (all of a group together and per direction), ``latency`` (between groups) |
| ``profile.json``, ``my.toml`` | a measured or calibrated profile, or a cluster (`ClusterSpec`) |
| ``local`` | this machine, if it needs no measuring |
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from shardwright.hardware_profiles import catalogue, discover
from shardwright.hardware_profiles.catalogue import CATALOGUE_DATE, AcceleratorEntry, Fact
from shardwright.hardware_profiles.profile import HardwareProfile, ProfileProvenance
from shardwright.hardware_profiles.stacks import device_key, fitted
from shardwright.specs import AcceleratorSpec, ClusterSpec, InputError, LinkTier, NodeGroup
from shardwright.specs._base import parse_json
from shardwright.specs.plan import read_text
from shardwright.specs.ranges import MOST_DEVICES
from shardwright.specs.units import Dimension, parse

_INLINE = re.compile(r"([\w.-]+):(\d{1,18})x(\d{1,18})((?:,[^,]*)*)")
_COUNTED = re.compile(r"([\w.-]+):(\d{1,18})")
_OPTIONS: dict[str, Dimension] = {
    "memory": "bytes", "intra": "bytes_per_s", "inter": "bytes_per_s",
}  # fmt: skip

_BETWEEN: dict[str, Dimension] = {"between": "bytes_per_s", "latency": "seconds"}


def list_clusters() -> list[str]:
    """Slugs that `resolve_cluster` knows without a file."""
    return catalogue.list_nodes()


def resolve_cluster(
    text: str, *, gpus: int | None = None, nodes: int | None = None
) -> HardwareProfile:
    """The cluster that ``text`` names, with ``gpus`` devices or ``nodes`` nodes where given.

    Raises:
        InputError: nothing fits the text, or the counts do not fit the cluster.
    """
    _check_counts(gpus, nodes)
    text = text.strip()
    if text == "local":
        return _local(gpus, nodes)
    if text.endswith((".json", ".toml")) or os.path.isfile(text):
        return _from_file(Path(text), gpus, nodes)
    if "+" in text:
        cluster = _joined_groups(text)
        _check_fixed(cluster, gpus, nodes, f"{text}, with several groups of nodes,")
        return catalogue_profile(cluster, f"catalogue: {text}")
    return _one_group(text, gpus, nodes)


def _one_group(text: str, gpus: int | None, nodes: int | None) -> HardwareProfile:
    inline = _INLINE.fullmatch(text)
    if inline:
        group = _inline_group(inline[1], int(inline[2]), int(inline[3]), _options(inline[4]))
        return _catalogue_profile(_sized(group, gpus, nodes, stated=True), f"catalogue: {text}")
    counted = _COUNTED.fullmatch(text)
    group = _named_node(counted[1] if counted else text)
    if counted:
        group = _with_nodes(group, _positive(int(counted[2]), "nodes"))
    group = _sized(group, gpus, nodes, stated=counted is not None)
    return _catalogue_profile(group, f"catalogue: {text}")


def _joined_groups(text: str) -> ClusterSpec:
    """``A+B,between=..``: groups that are written as they are alone, and the line between them."""
    parts = [part.strip() for part in text.split("+")]
    items = parts[-1].split(",")
    stated = [item for item in items if item.partition("=")[0].strip() in _BETWEEN]
    parts[-1] = ",".join(item for item in items if item not in stated)
    values = {
        name.strip(): parse(quantity, _BETWEEN[name.strip()])
        for name, _, quantity in (item.partition("=") for item in stated)
    }
    if any(value <= 0 for value in values.values()):
        raise InputError(f"{', '.join(stated)} must be positive", fix="write larger values")
    groups = tuple(_one_group(part, None, None).devices.groups[0] for part in parts)
    _positive(sum(group.num_devices for group in groups), "devices")
    total = values.get("between")
    return ClusterSpec(
        name="+".join(group.name for group in groups),
        groups=groups,
        between_groups=_between(groups, total, values.get("latency")),
        between_groups_total_bytes_per_s=total,
    )


def _between(groups: tuple[NodeGroup, ...], total: float | None, latency: float | None) -> LinkTier:
    """What a device reaches towards other groups: its own network, or the whole line."""
    slowest = min(
        (group.inter_node for group in groups if group.inter_node is not None),
        key=lambda tier: tier.bandwidth_bytes_per_s,
        default=None,
    )
    if total is None and (slowest is None or any(g.inter_node is None for g in groups)):
        raise InputError(
            f"nothing is known of what joins {' and '.join(group.name for group in groups)}",
            fix="add its bandwidth per direction, such as ,between=10Gbit/s",
        )
    if total is not None:
        fact = Fact(value=total, unit="B/s", kind="user", source="option between")
        line = catalogue.link_tier("ethernet", fact)
        rate = min([total, *([] if slowest is None else [slowest.bandwidth_bytes_per_s])])
        slowest = line.model_copy(update={"bandwidth_bytes_per_s": rate})
    assert slowest is not None
    return slowest if latency is None else slowest.model_copy(update={"latency_s": latency})


def catalogue_profile(cluster: ClusterSpec, source: str) -> HardwareProfile:
    """A profile without curves: the catalogue's parameters for these nodes."""
    return HardwareProfile(
        provenance=ProfileProvenance(created_at=CATALOGUE_DATE, host=source, software={}),
        devices=cluster,
        parameters=catalogue.parameters_for(cluster.groups[0]),
    )


def resized(
    profile: HardwareProfile,
    *,
    gpus: int | None = None,
    nodes: int | None = None,
    what: str = "the profile",
) -> HardwareProfile:
    """As many of a profile's nodes as wanted; a cluster whose name says how many says so again.

    ``what``: the profile in words.

    Raises:
        InputError: other devices than it has are wanted, and its curves were measured on them, they
            are of several types, or they fill no whole nodes.
    """
    cluster = profile.devices
    if profile.num_ranks or profile.curves or len(cluster.groups) > 1:
        _check_fixed(cluster, gpus, nodes, what)
        return profile
    group = _sized(cluster.groups[0], gpus, nodes, stated=False)
    if group == cluster.groups[0]:
        return profile
    was_counted = cluster.name == _counted_name(cluster.groups[0])
    name = _counted_name(group) if was_counted else cluster.name
    devices = cluster.model_copy(update={"name": name, "groups": (group,)})
    return profile.model_copy(update={"devices": devices})


def evidence_in_words(profile: HardwareProfile) -> str | None:
    """``mtt-s5000-80gb: datasheet only``, per accelerator; None where steps were measured on all,
    by us or in the published runs that the catalogue was fitted to.

    A measured profile needs no such words, nor one that was calibrated on runs.
    """
    if profile.curves or profile.software is not None:
        return None
    timed = fitted().clocks
    names = dict.fromkeys(
        group.accelerator.name
        for group in profile.devices.groups
        if device_key(group.accelerator) not in timed
    )
    found = [f"{name}: {words}" for name in names if (words := catalogue.evidence_in_words(name))]
    return "; ".join(found) or None


def _named_node(slug: str) -> NodeGroup:
    """One node of the catalogue; says how to write it where an accelerator was named instead."""
    if slug.lower() in catalogue.list_accelerators():
        raise InputError(
            f"{slug} is one accelerator, not a node", fix=f"write {slug}:8x2 for 2 nodes of 8"
        )
    return catalogue.node(slug)


def _check_counts(gpus: int | None, nodes: int | None) -> None:
    if gpus is not None and nodes is not None:
        raise InputError(
            f"both gpus = {gpus} and nodes = {nodes} are given", fix="give only one of the two"
        )
    for what, count in (("gpus", gpus), ("nodes", nodes)):
        if count is not None:
            _positive(count, what)


def _positive(count: int, what: str) -> int:
    if count < 1:
        raise InputError(f"{what} = {count} is not a positive number", fix=f"set {what} >= 1")
    if count > MOST_DEVICES:
        raise InputError(
            f"{what} = {count} is more than any cluster has", fix=f"set {what} <= {MOST_DEVICES}"
        )
    return count


def _sized(group: NodeGroup, gpus: int | None, nodes: int | None, *, stated: bool) -> NodeGroup:
    """The group with another number of devices; ``stated``: the text fixed it already."""
    wanted = gpus if nodes is None else nodes * group.devices_per_node
    if wanted is None or wanted == group.num_devices:
        return group
    if stated:
        raise InputError(
            f"{group.name} was written with {group.num_nodes} nodes x {group.devices_per_node} ="
            f" {group.num_devices} devices, but {wanted} are asked for",
            fix="drop one of the two counts",
        )
    if wanted < group.devices_per_node:
        return _part_of_node(group, wanted)
    if wanted % group.devices_per_node:
        whole = wanted // group.devices_per_node * group.devices_per_node
        raise InputError(
            f"{wanted} devices do not fill whole nodes of {group.name}, which have"
            f" {group.devices_per_node} each",
            fix=f"use {whole} or {whole + group.devices_per_node} devices",
        )
    return _with_nodes(group, wanted // group.devices_per_node)


def _with_nodes(group: NodeGroup, num_nodes: int) -> NodeGroup:
    """More nodes of the same type; refuses where nothing joins them."""
    reach = max(group.devices_per_node, group.scale_up_domain_gpus)
    islands = group.scale_up_domain_gpus < group.devices_per_node
    alone = group.inter_node is None or (islands and group.inter_node.name == "pcie")
    if alone and num_nodes > group.num_nodes and num_nodes * group.devices_per_node > reach:
        raise InputError(
            f"{group.name} has no network between nodes, but {num_nodes} nodes are asked for",
            fix=f"use at most {reach} devices, or write the cluster inline with inter=...",
        )  # what joins the islands of one node leads to no other
    _positive(num_nodes * group.devices_per_node, "devices")
    return group.model_copy(update={"num_nodes": num_nodes})


def _part_of_node(group: NodeGroup, devices: int) -> NodeGroup:
    """Some devices of one node; what they share with the others is theirs alone."""
    domain = devices if group.scale_up_domain_gpus == group.devices_per_node else None
    shared = tuple(
        resource.model_copy(update={"ranks": min(devices, resource.ranks)})
        for resource in group.shared_resources
    )
    return group.model_copy(
        update={
            "num_nodes": 1,
            "devices_per_node": devices,
            "scale_up_domain_gpus": domain or group.scale_up_domain_gpus,
            "shared_resources": shared,
        }
    )


def _catalogue_profile(group: NodeGroup, host: str) -> HardwareProfile:
    """The nodes of one type under the name that says how many."""
    return catalogue_profile(ClusterSpec(name=_counted_name(group), groups=(group,)), host)


def _counted_name(group: NodeGroup) -> str:
    """``dgx-h100``, ``dgx-h100:16``."""
    return group.name if group.num_nodes == 1 else f"{group.name}:{group.num_nodes}"


def _options(text: str) -> dict[str, float]:
    """``,memory=80GiB,inter=400GB/s`` as base units by option name."""
    options = {}
    for item in text.split(",")[1:]:
        name, equals, quantity = item.partition("=")
        if name.strip() not in _OPTIONS or not equals:
            raise InputError(
                f"{item.strip()!r} is not an option of an inline cluster",
                fix=f"write one such as {', '.join(f'{option}=...' for option in _OPTIONS)}",
            )
        value = parse(quantity, _OPTIONS[name.strip()])
        if value <= 0:
            raise InputError(f"{item.strip()} must be positive", fix="write a larger value")
        options[name.strip()] = value
    return options


def _inline_group(
    slug: str, devices_per_node: int, num_nodes: int, options: dict[str, float]
) -> NodeGroup:
    _positive(devices_per_node, "devices per node")
    _positive(num_nodes, "nodes")
    _positive(devices_per_node * num_nodes, "devices")
    entry = catalogue.accelerator_entry(slug)
    intra, inter = options.get("intra"), options.get("inter")
    return NodeGroup(
        name=f"{devices_per_node}x{entry.slug}",
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        accelerator=_inline_accelerator(entry, options.get("memory")),
        intra_node=_stated_tier("intra", intra, _link_of(entry, devices_per_node, intra)),
        inter_node=_inline_network(entry, devices_per_node, num_nodes, inter),
        scale_up_domain_gpus=devices_per_node,
    )


def _inline_accelerator(entry: AcceleratorEntry, memory_bytes: float | None) -> AcceleratorSpec:
    device = entry.to_spec()
    if memory_bytes is None:
        return device
    usable_bytes = int(memory_bytes) - catalogue.context_bytes()
    if usable_bytes <= 0:
        raise InputError(
            f"memory = {memory_bytes:.0f} bytes is less than a process's context takes",
            fix="write the memory of one device, such as memory=80GiB",
        )
    return device.model_copy(
        update={"memory_bytes": int(memory_bytes), "usable_memory_bytes": usable_bytes}
    )


def _link_of(entry: AcceleratorEntry, devices: int, stated: float | None) -> str | LinkTier:
    """The default tier, or just its name where the user states the bandwidth."""
    if stated is None:
        return catalogue.default_links(entry, devices)
    return (
        "nvlink" if entry.host_bandwidth is None else catalogue.default_links(entry, devices).name
    )


def _stated_tier(option: str, bandwidth: float | None, tier: str | LinkTier) -> LinkTier:
    if isinstance(tier, LinkTier):
        return tier
    assert bandwidth is not None
    fact = Fact(value=bandwidth, unit="B/s", kind="user", source=f"option {option}")
    return catalogue.link_tier(tier, fact)


def _inline_network(
    entry: AcceleratorEntry, devices_per_node: int, num_nodes: int, inter: float | None
) -> LinkTier | None:
    """Each device's share of what the user states per node, else of the vendor's own node."""
    if inter is not None:
        return _stated_tier("inter", inter / devices_per_node, "infiniband")
    if num_nodes == 1:
        return None
    own = catalogue.own_network(entry, devices_per_node)
    if own is not None:
        return own
    raise InputError(
        f"nothing is known of the network between {num_nodes} nodes of {devices_per_node}"
        f" {entry.slug}",
        fix="add its bandwidth per node and direction, such as inter=100GB/s",
    )


def _from_file(path: Path, gpus: int | None, nodes: int | None) -> HardwareProfile:
    value = _parsed(read_text(path, what="cluster or profile"), path)
    if isinstance(value, dict) and "devices" in value:
        profile = HardwareProfile.from_value(value, source=str(path))
        return resized(profile, gpus=gpus, nodes=nodes, what=f"the profile {path}")
    cluster = ClusterSpec.from_value(value, source=str(path))
    if len(cluster.groups) == 1:
        return _catalogue_profile(_sized(cluster.groups[0], gpus, nodes, stated=False), str(path))
    _check_fixed(cluster, gpus, nodes, f"{path}, with nodes of several types,")
    return catalogue_profile(cluster, str(path))


def _parsed(text: str, path: Path) -> Any:
    """JSON, or TOML by the file's suffix; raises `InputError` where it is neither."""
    if path.suffix != ".toml":
        return parse_json(text, source=str(path))
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not valid TOML: {error}", fix="restore or re-create the file"
        ) from None


def _check_fixed(cluster: ClusterSpec, gpus: int | None, nodes: int | None, what: str) -> None:
    """What was measured, or mixes node types, holds for its own number of ranks and no other."""
    num_nodes = sum(group.num_nodes for group in cluster.groups)
    if gpus in (None, cluster.num_devices) and nodes in (None, num_nodes):
        return
    asked = f"{nodes} nodes" if gpus is None else f"{gpus} devices"
    raise InputError(
        f"{what} holds for {cluster.num_devices} devices on {num_nodes} nodes, but {asked} are"
        " asked for",
        why="devices share cores, memory and links, so that times depend on how many there are",
        fix=f"profile again with {asked}, or ask for {cluster.num_devices} devices",
    )


def _local(gpus: int | None, nodes: int | None) -> HardwareProfile:
    """This machine from the catalogue; a CPU is in no catalogue and must be measured."""
    if nodes not in (None, 1):
        raise InputError(
            f"local is one node, but {nodes} are asked for", fix="name a cluster, or use nodes = 1"
        )
    cluster = discover.local_cluster(gpus)
    group = cluster.groups[0]
    if group.accelerator.vendor == "cpu":
        raise InputError(
            f"this machine ({cluster.name}) has not been measured",
            why="no catalogue knows how fast its processor runs a model",
            fix="run `shardwright profile -o profile.json`, then use --cluster profile.json",
        )
    return _catalogue_profile(group, "catalogue: local")
