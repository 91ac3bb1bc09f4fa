"""The cluster of a row: the catalogue's accelerators, joined as the row says.

* accelerator: by its catalogue name, else by what the source calls it.
* memory: ``gpu_mem_gb`` where it differs from the part's own, in the part's ratio of what is
  reported to what is sold.
* nodes: as stated, else those of the vendor's node; fewer devices than a node has are one part of a
  node; devices that do not fill whole nodes are spread over them evenly.
* network: what the row states per node, else that of the vendor's node, else of any node of such
  accelerators or of their generation, else one adapter of `ASSUMED_ADAPTER_BYTES_PER_S` a device.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.catalogue import AcceleratorEntry
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.validation.rows import Row, RowHardware
from shardwright.planner.validation.shapes import Assumptions
from shardwright.specs import ClusterSpec, InputError, NodeGroup

DEFAULT_DEVICES_PER_NODE = 8
ASSUMED_ADAPTER_BYTES_PER_S = 12.5e9
"""100 Gb/s, an adapter of 2016 to 2018: what a node has at least where nothing is known."""

_RATE = r"(\d+(?:\.\d+)?)\s*([GT](?:b|bit|B)(?:/s|ps))"
_COUNTED = re.compile(rf"(\d+)\s*x\s*(?:[A-Za-z-]+\s+)*{_RATE}")
"""Such as ``8x HDR 200Gb/s``, ``8x50GB/s``, ``EFA 16x200Gb/s``."""
_SINGLE = re.compile(_RATE)
_PER_ADAPTER = re.compile(r"per gpu|per device|per rank|links?\b|infiniband|\bib\b|hdr|ndr|edr|xdr")
_PER_NODE = re.compile(r"per node|/node|a node")


@dataclass(frozen=True, slots=True)
class _Variant:
    """A part that no vendor lists, as a change of one that is listed."""

    text: re.Pattern[str]
    part: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float


_VARIANTS = (
    # torchtitan's benchmarks: Grand Teton H100, 96 GB of HBM2e, 95 GiB reported, 2.4 TB/s
    _Variant(re.compile(r"H100 96 ?GB HBM2e", re.I), "h100-sxm5-80gb", 95 * 2**30, 2.4e12),
)


def profile_of(row: Row, assumed: Assumptions) -> HardwareProfile:
    """The cluster of a row, as the catalogue prices it.

    Raises:
        InputError: the number of devices or the accelerator is not known.
    """
    gpus = row.num_gpus
    if gpus is None:
        raise InputError("the number of GPUs is not stated")
    profile, notes = _profile(row.hardware, gpus, row.network or "")
    assumed.notes.extend(notes)
    return profile


def accelerator_of(hardware: RowHardware) -> str | None:
    """The slug of a row's accelerator; what the source calls it where it is in no catalogue."""
    try:
        return _entry(hardware).slug
    except InputError:
        stated = hardware.accelerator or hardware.gpu
        return stated and stated.lower()


@functools.cache
def _profile(
    hardware: RowHardware, gpus: int, network: str
) -> tuple[HardwareProfile, tuple[str, ...]]:
    """The profile, and what was assumed; rows of one cluster share one object."""
    assumed = Assumptions()
    variant = _variant_of(hardware)
    entry = _entry(hardware)
    node = _node_of(entry)
    per_node = min(gpus, _per_node(hardware, node, assumed))
    while gpus % per_node:
        per_node -= 1
    rack = _rack_of(entry)
    if rack is not None and rack.devices_per_node == per_node:
        profile = resolve_cluster(rack.name, gpus=gpus)
    else:
        text = f"{entry.slug}:{per_node}x{gpus // per_node}"
        inter = _inter_bytes_per_s(entry, network, per_node, gpus, assumed)
        profile = resolve_cluster(text if inter is None else f"{text},inter={inter!r}B/s")
    group = profile.devices.groups[0]
    stated = node_bandwidth_bytes_per_s(network, per_node)
    if stated is not None and group.inter_node is not None:
        tier = group.inter_node.model_copy(
            update={"bandwidth_bytes_per_s": stated / per_node, "provenance": "user"}
        )
        group = group.model_copy(update={"inter_node": tier})
    group = _with_memory(group, entry, hardware, variant)
    devices = ClusterSpec(name=profile.devices.name, groups=(group,))
    return profile.model_copy(update={"devices": devices}), tuple(assumed.notes)


def _variant_of(hardware: RowHardware) -> _Variant | None:
    return next((v for v in _VARIANTS if v.text.search(hardware.gpu or "")), None)


def _entry(hardware: RowHardware) -> AcceleratorEntry:
    """The accelerator of the catalogue; raises `InputError` where there is none."""
    variant = _variant_of(hardware)
    if variant is not None:
        return catalogue.accelerator_entry(variant.part)
    names = [hardware.accelerator] if hardware.accelerator else [hardware.gpu or ""]
    names = [name for name in names if name]
    for name in names:
        words = re.split(r"[\s,(]+", name.strip().lower())
        for text in dict.fromkeys((name, "-".join(words), words[0])):
            try:
                return catalogue.accelerator_entry(text)
            except InputError:
                continue
    if not names:
        raise InputError("the accelerator is not stated")
    raise InputError(f"{names[0]} is no accelerator of the catalogue")


@functools.cache
def _nodes() -> tuple[NodeGroup, ...]:
    """Every node type of the catalogue, the vendors' own before the clouds'."""
    entries = [catalogue.node_entry(slug) for slug in catalogue.list_nodes()]
    entries.sort(key=lambda entry: entry.kind not in ("server", "rack-scale"))
    return tuple(entry.to_group() for entry in entries)


def _node_of(entry: AcceleratorEntry) -> NodeGroup | None:
    """The vendor's node of these accelerators, else any, else one of their generation."""
    nodes = [node for node in _nodes() if node.inter_node is not None]
    own = (node for node in nodes if node.accelerator.name == entry.slug)
    kin = (
        node
        for node in nodes
        if catalogue.accelerator_entry(node.accelerator.name).family == entry.family
    )
    return next(own, None) or next(kin, None)


def _rack_of(entry: AcceleratorEntry) -> NodeGroup | None:
    """The node whose links reach further than itself, such as a tray of an NVL72."""
    own = (node for node in _nodes() if node.accelerator.name == entry.slug)
    return next((n for n in own if n.scale_up_domain_gpus > n.devices_per_node), None)


def _per_node(hardware: RowHardware, node: NodeGroup | None, assumed: Assumptions) -> int:
    default = node.devices_per_node if node else DEFAULT_DEVICES_PER_NODE
    return assumed.take(hardware.gpus_per_node, default, "gpus_per_node")


def _inter_bytes_per_s(
    entry: AcceleratorEntry, network: str, per_node: int, gpus: int, assumed: Assumptions
) -> float | None:
    """What a node may send; None where `resolve_cluster` knows best or there is one node."""
    stated = node_bandwidth_bytes_per_s(network, per_node)
    if stated is not None or gpus == per_node:
        return stated
    node = _node_of(entry)
    if node is not None and node.inter_node is not None:
        assumed.notes.append(f"network = that of {node.name}")
        shared = next((r for r in node.shared_resources if r.kind == "nic"), None)
        adapters = shared.capacity if shared else node.devices_per_node
        total = node.inter_node.bandwidth_bytes_per_s * adapters
        return total * per_node / node.devices_per_node
    assumed.notes.append("network = 100 Gb/s per device")
    return ASSUMED_ADAPTER_BYTES_PER_S * per_node


def node_bandwidth_bytes_per_s(network: str, per_node: int) -> float | None:
    """What a description of a network says that a node may send; None where it does not.

    ``8x HDR 200Gb/s`` counts adapters of a node; a single rate is per device where it says so, and
    where it is that of one adapter or link (InfiniBand names one adapter's rate), else per node.
    """
    words = network.lower()
    counted = _COUNTED.search(network)
    if counted:
        return int(counted[1]) * _bytes_per_s(counted[2], counted[3])
    single = _SINGLE.search(network)
    if single is None:
        return None
    rate = _bytes_per_s(single[1], single[2])
    if rate == 0:
        return None
    is_adapter = not _PER_NODE.search(words) and bool(_PER_ADAPTER.search(words))
    return rate * per_node if is_adapter else rate


def _bytes_per_s(number: str, unit: str) -> float:
    scale = {"G": 1e9, "T": 1e12}[unit[0]]
    return float(number) * scale / (1 if unit[1] == "B" else 8)


def _with_memory(
    group: NodeGroup, entry: AcceleratorEntry, hardware: RowHardware, variant: _Variant | None
) -> NodeGroup:
    """The group with the memory that the row states, where that is another."""
    device = group.accelerator
    context_bytes = device.memory_bytes - device.usable_memory_bytes
    update: dict[str, float] = {}
    if variant is not None:
        update["memory_bytes"] = variant.memory_bytes
        update["memory_bandwidth_bytes_per_s"] = variant.memory_bandwidth_bytes_per_s
    elif hardware.gpu_mem_gb is not None and not _is_own_memory(entry, hardware.gpu_mem_gb):
        update["memory_bytes"] = round(device.memory_bytes * hardware.gpu_mem_gb / _sold_gb(entry))
    if not update:
        return group
    if "memory_bytes" in update:
        usable_bytes = int(update["memory_bytes"]) - context_bytes
        if usable_bytes <= 0:
            raise InputError(f"gpu_mem_gb = {hardware.gpu_mem_gb:g} is less than a context takes")
        update["usable_memory_bytes"] = usable_bytes
    return group.model_copy(update={"accelerator": device.model_copy(update=update)})


def _sold_gb(entry: AcceleratorEntry) -> float:
    return entry.memory.in_base_units("bytes") / 1e9


def _is_own_memory(entry: AcceleratorEntry, stated_gb: float) -> bool:
    """Whether what a row states is the part's memory by any of its figures: sold or reported, in
    decimal or binary units."""
    sizes = (entry.memory, entry.device_reported_memory)
    own = [size.in_base_units("bytes") for size in sizes]
    return any(abs(stated_gb * unit / size - 1) < 0.01 for size in own for unit in (1e9, 2**30))
