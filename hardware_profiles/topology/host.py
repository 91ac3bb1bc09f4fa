"""Processors and NUMA nodes: ``lscpu`` and ``numactl --hardware``."""

from __future__ import annotations

import re

from shardwright.hardware_profiles.topology.readings import MB_BYTES, HostReading


def read_lscpu(text: str) -> HostReading | None:
    """``lscpu`` for people; None where the text is something else."""
    if not re.search(r"^\s*CPU\(s\):\s+\d", text, re.MULTILINE):
        return None
    numa = re.findall(r"^\s*NUMA node(\d+) CPU\(s\):[ \t]*(\S*)", text, re.MULTILINE)
    model = re.search(r"^\s*Model name:\s+(\S.*?)\s*$", text, re.MULTILINE)
    return HostReading(
        model=model[1] if model else None,
        num_cpus=_count(text, r"CPU\(s\)"),
        num_sockets=_count(text, r"Socket\(s\)"),
        num_cores_per_socket=_count(text, r"Core\(s\) per (?:socket|cluster)"),
        num_threads_per_core=_count(text, r"Thread\(s\) per core"),
        numa_cpus={node: cpus for node, cpus in numa if cpus} or None,
    )


def read_numactl(text: str) -> HostReading | None:
    """``numactl --hardware``; None where the text is something else."""
    cpus = re.findall(r"^\s*node (\d+) cpus:[ \t]*([\d ]*)$", text, re.MULTILINE)
    if not cpus:
        return None
    sizes = re.findall(r"^\s*node \d+ size: (\d+) MB", text, re.MULTILINE)
    lists = {node: [int(cpu) for cpu in listed.split()] for node, listed in cpus}
    return HostReading(
        num_cpus=sum(len(listed) for listed in lists.values()),
        numa_cpus={node: _ranges(listed) for node, listed in lists.items() if listed},
        memory_bytes=sum(map(int, sizes)) * MB_BYTES or None,
    )


def _count(text: str, key: str) -> int | None:
    found = re.search(rf"^\s*{key}:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _ranges(cpus: list[int]) -> str:
    """``0-3,8`` of a sorted list."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)
