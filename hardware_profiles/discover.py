"""What this machine is: processors, memory and accelerators as the system reports them.

Limits that were set on this process count, not what the machine has in all: CPU affinity and
control-group quotas for cores, control-group limits for memory. Nothing is timed here.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.hardware_profiles.catalogue import AcceleratorEntry
from shardwright.hardware_profiles.device import (
    DeviceType,
    current_device_type,
    device_count,
    device_memory_bytes,
)
from shardwright.hardware_profiles.topology.capture import read_links, read_this_node
from shardwright.hardware_profiles.topology.cluster import (
    DescribedCluster,
    Stated,
    cluster_from_readings,
)
from shardwright.hardware_profiles.topology.links import NodeLinks, node_links
from shardwright.hardware_profiles.topology.match import match_accelerator
from shardwright.specs import AcceleratorSpec, ClusterSpec, InputError, LinkTier, NodeGroup
from shardwright.specs.cluster import SharedResource
from shardwright.specs.training import DType
from shardwright.specs.units import format_bytes

FLOPS_PER_CYCLE: dict[DType, float] = {"fp64": 4, "fp32": 8}
"""What one core does at the least in a cycle: one fused multiply-add on a 128-bit vector.

Every 64-bit server core of the last fifteen years does at least this (SSE2, NEON), so that it is a
lower bound. A profile replaces it by what it measures, and no time is predicted from it.
"""

BYTES_PER_CYCLE = 8
"""Likewise for memory: one 64-bit word per cycle and core."""

DEFAULT_CLOCK_HERTZ = 2.0e9
"""Where the system does not tell; used in the two lower bounds above only."""


@dataclass(frozen=True, slots=True)
class Host:
    """The processors and memory that this process may use."""

    cpu_model: str
    cores: float
    """A fraction where a quota allows one."""
    clock_hertz: float
    memory_bytes: int
    available_memory_bytes: int


def read_host(root: Path = Path("/")) -> Host:
    """The host as its ``/proc`` and ``/sys`` below ``root`` describe it."""
    cpu_info = _read(root / "proc/cpuinfo")
    clock_mhz = re.search(r"^cpu MHz\s*: ([\d.]+)", cpu_info, re.MULTILINE)
    model = re.search(r"^(?:model name|Model|cpu model)\s*: (.+)$", cpu_info, re.MULTILINE)
    total_bytes, available_bytes = host_memory_bytes(root)
    return Host(
        cpu_model=model[1].strip() if model else platform.machine() or "unknown",
        cores=usable_cores(root),
        clock_hertz=float(clock_mhz[1]) * 1e6 if clock_mhz else DEFAULT_CLOCK_HERTZ,
        memory_bytes=total_bytes,
        available_memory_bytes=available_bytes,
    )


def usable_cores(root: Path = Path("/")) -> float:
    """Cores that this process may use: its affinity, or a control group's quota if less."""
    if hasattr(os, "sched_getaffinity"):
        allowed = float(len(os.sched_getaffinity(0)))
    else:
        allowed = float(os.cpu_count() or 1)
    return min([allowed, *_core_quotas(root)])


def host_memory_bytes(root: Path = Path("/")) -> tuple[int, int]:
    """(total, available) memory: the machine's, or what the control group leaves if less."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    sizes = {name: int(kibibytes) * 1024 for name, kibibytes in lines}
    if "MemTotal" in sizes:
        total = sizes["MemTotal"]
        available = sizes.get("MemAvailable", total)
    else:
        total = available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit, used in _memory_limits(root):
        total, available = min(total, limit), min(available, limit - used)
    return total, max(0, available)


def local_cluster(num_ranks: int | None = None) -> ClusterSpec:
    """This machine as a cluster of one node with ``num_ranks`` ranks.

    Default: one rank per accelerator, or two on a CPU. Peaks and bandwidth of a CPU are stated
    lower bounds (`FLOPS_PER_CYCLE`) until a profile has measured them.

    Raises:
        InputError: more ranks than accelerators, or an accelerator that cannot be used.
    """
    device_type = _device_type()
    if device_type == "cpu":
        return cpu_cluster(read_host(), num_ranks or 2)
    return _accelerator_cluster(device_type, num_ranks)


def cpu_cluster(host: Host, num_ranks: int) -> ClusterSpec:
    """Ranks that share the host's cores, and its memory in equal parts."""
    cores = f"{host.cores:g}c"
    name = f"cpu-{slug_of(host.cpu_model)}-{cores}"
    speed = host.cores * host.clock_hertz / num_ranks
    device = AcceleratorSpec(
        name=name,
        vendor="cpu",
        memory_bytes=host.memory_bytes // num_ranks,
        usable_memory_bytes=max(1, host.available_memory_bytes // num_ranks),
        memory_bandwidth_bytes_per_s=BYTES_PER_CYCLE * speed,
        peak_flops_per_s={d: per_cycle * speed for d, per_cycle in FLOPS_PER_CYCLE.items()},
        provenance="derived",
        source=f"{host.cpu_model}: lower bounds from cores x clock; memory as the system reports",
    )
    shared_memory = LinkTier(
        name="shared-memory",
        bandwidth_bytes_per_s=BYTES_PER_CYCLE * speed,
        latency_s=0.0,
        provenance="derived",
        source="lower bound of the memory bandwidth; latency unknown until profiled",
    )
    group = NodeGroup(
        name=name,
        num_nodes=1,
        devices_per_node=num_ranks,
        accelerator=device,
        intra_node=shared_memory,
        inter_node=None,
        scale_up_domain_gpus=num_ranks,
        shared_resources=(SharedResource(kind="cores", capacity=host.cores, ranks=num_ranks),),
        host_memory_bytes=host.memory_bytes,
    )
    return ClusterSpec(name=name, groups=(group,))


def describe_this_node(stated: Stated | None = None) -> DescribedCluster:
    """This machine as its tools describe it, for a cluster file; a CPU where it has no accelerator.

    Raises:
        InputError: its accelerators are not known.
    """
    readings = read_this_node()
    if any(reading.matrix or reading.devices for reading in readings):
        return cluster_from_readings(readings, stated)
    return DescribedCluster(
        local_cluster(),
        guesses=("no tool here tells of accelerators: peaks and bandwidths of the processor are"
                 " lower bounds; `shardwright profile` measures them",),
    )  # fmt: skip


def _device_type() -> DeviceType:
    """As `current_device_type`; the CPU where torch is not installed."""
    try:
        return current_device_type()
    except ModuleNotFoundError:
        return "cpu"


def _accelerator_cluster(device_type: DeviceType, num_ranks: int | None) -> ClusterSpec:
    count = device_count(device_type)
    ranks = num_ranks or count
    if ranks > count:
        raise InputError(
            f"{ranks} ranks need {ranks} devices, but this machine shows {count}",
            fix=f"ask for at most {count}",
        )
    entry, device = _describe_accelerator(device_type)
    links = _node_links(entry, ranks)
    group = NodeGroup(
        name=f"local-{device.name}",
        num_nodes=1,
        devices_per_node=ranks,
        accelerator=device,
        intra_node=links.intra,
        inter_node=links.between_islands,
        scale_up_domain_gpus=links.domain_devices,
        host_memory_bytes=host_memory_bytes()[0],
    )
    return ClusterSpec(name=f"local-{ranks}x{device.name}", groups=(group,))


def _node_links(entry: AcceleratorEntry, ranks: int) -> NodeLinks:
    """As this node's tools report them, of its first ``ranks`` devices."""
    matrix = read_links()
    if matrix is not None and len(matrix.names) < ranks:
        matrix = None
    return node_links(matrix, entry, ranks)


def _describe_accelerator(device_type: DeviceType) -> tuple[AcceleratorEntry, AcceleratorSpec]:
    """Device 0: memory as it reports, rates as the catalogue has them."""
    import torch

    device = torch.device(device_type, 0)
    module: Any = torch.get_device_module(device)
    name = module.get_device_name(device)
    free_bytes, total_bytes = device_memory_bytes(device)
    match = match_accelerator(name, total_bytes)
    if match is None or match.is_guess:
        raise InputError(
            f"the catalogue does not know this machine's {name} with"
            f" {format_bytes(total_bytes)} of memory",
            fix="write a cluster file for it, or name the accelerator: --cluster ACCELERATOR:GxN",
        )
    memory = {"memory_bytes": total_bytes, "usable_memory_bytes": free_bytes}
    return match.entry, match.entry.to_spec().model_copy(update=memory)


def slug_of(text: str) -> str:
    """Lower-case words joined by dashes, without trademark signs and filler words.

    >>> slug_of("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")
    'intel-xeon-platinum-8481c'
    """
    plain = re.sub(r"\((?:r|tm|c)\)|\bcpu\b|\bprocessor\b|@.*", " ", text.lower())
    return "-".join(re.findall(r"[a-z0-9.]+", plain)) or "unknown"


def _core_quotas(root: Path) -> list[float]:
    """Quotas of this process's control groups, version 2 and 1, in cores."""
    quotas = []
    for group in _control_groups(root):
        quota, _, period = _read(group / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():  # "max" where there is none
            quotas.append(int(quota) / int(period))
    old_quota = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
    old_period = _read(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if old_quota.isdigit() and old_period.isdigit():  # "-1" where there is none
        quotas.append(int(old_quota) / int(old_period))
    return quotas


def _memory_limits(root: Path) -> list[tuple[int, int]]:
    """(limit, used) bytes of this process's control groups, version 2 and 1.

    File cache that can be dropped does not count as used.
    """
    old = root / "sys/fs/cgroup/memory"
    files = [(group / "memory.max", group / "memory.current") for group in _control_groups(root)]
    files.append((old / "memory.limit_in_bytes", old / "memory.usage_in_bytes"))
    found = []
    for limit_file, used_file in files:
        limit, used = _read(limit_file).strip(), _read(used_file).strip()
        if limit.isdigit():  # "max" where there is none
            statistics = _read(limit_file.with_name("memory.stat"))
            cache = re.search(r"^(?:total_)?inactive_file (\d+)$", statistics, re.MULTILINE)
            droppable = int(cache[1]) if cache else 0
            found.append((int(limit), max(0, int(used or 0) - droppable)))
    return found


def _control_groups(root: Path) -> list[Path]:
    """Folders of this process's version 2 control group and of those around it."""
    top = root / "sys/fs/cgroup"
    own = re.search(r"^0::(/.*)$", _read(root / "proc/self/cgroup"), re.MULTILINE)
    group = top / own[1].lstrip("/") if own else top
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(top)]


def _read(path: Path) -> str:
    """The text of a system file; empty where the system does not have it."""
    try:
        return path.read_text()
    except OSError:
        return ""
