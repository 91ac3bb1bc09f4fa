"""Asking this machine: its tools, each with a time limit, and ``/sys/class/infiniband``.

The only place that starts a vendor's tool. What fails, hangs or is not there is left out.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import subprocess
from pathlib import Path

from shardwright.hardware_profiles.topology import nvml
from shardwright.hardware_profiles.topology.readings import DeviceMatrix, TopologyReading
from shardwright.hardware_profiles.topology.recognise import read_topology
from shardwright.hardware_profiles.topology.slurm import expand_hosts
from shardwright.specs.errors import InputError

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 20.0
"""A driver that wakes its devices up may take several seconds to answer."""

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("nvidia-smi", "topo", "-m"),
    (
        "nvidia-smi",
        "--query-gpu=name,memory.total,power.limit,pcie.link.gen.max,pcie.link.width.max",
        "--format=csv",
    ),
    ("nvidia-smi", "nvlink", "-s"),
    ("amd-smi", "topology"),
    ("rocm-smi", "--showtopo"),
    ("rocm-smi", "--showproductname", "--showmeminfo", "vram"),
    ("mthreads-gmi", "topo", "-m"),
    ("mthreads-gmi",),
    ("npu-smi", "info", "-t", "topo"),
    ("npu-smi", "info"),
    ("mx-smi", "topo", "-m"),
    ("mx-smi",),
    ("ibstat",),
    ("numactl", "--hardware"),
    ("lscpu",),
)
"""What is asked, in the order in which answers count."""


LINKS = tuple(
    command for command in COMMANDS if any("topo" in word for word in command[1:])
)  # fmt: skip
"""Those that print a matrix of links."""


@functools.cache
def read_this_node(root: Path = Path("/")) -> tuple[TopologyReading, ...]:
    """Everything that this machine says of itself; nothing where it has none of the tools."""
    readings = [reading for command in COMMANDS for reading in _read(run(command), command[0])]
    if not any(reading.devices for reading in readings):
        devices = nvml.read_devices()
        readings += [TopologyReading(kinds=("nvml",), devices=devices)] if devices else []
    if not any(reading.ports for reading in readings):
        readings += _read(infiniband_tree(root), "/sys/class/infiniband")
    hosts = tuple(expand_hosts(os.environ.get("SLURM_JOB_NODELIST", "")))
    readings += [TopologyReading(kinds=("SLURM_JOB_NODELIST",), hostnames=hosts)] if hosts else []
    return tuple(readings)


@functools.cache
def read_links() -> DeviceMatrix | None:
    """The matrix of links of this machine; None where no tool prints one."""
    for command in LINKS:
        for reading in _read(run(command), command[0]):
            if reading.matrix is not None:
                return reading.matrix
    return None


def run(command: tuple[str, ...], *, limit_s: float = TIME_LIMIT_S) -> str:
    """What a tool prints; empty where it is not there, fails or takes longer than the limit."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("%s: %s", " ".join(command), error)
        return ""
    return done.stdout if done.returncode == 0 else ""


def infiniband_tree(root: Path = Path("/")) -> str:
    """Rates, states and link layers of the ports, one ``PATH:CONTENT`` a line."""
    lines = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        for name in ("rate", "state", "link_layer"):
            try:
                lines.append(f"{port / name}:{(port / name).read_text().strip()}")
            except OSError:
                continue
    return "\n".join(lines)


def _read(text: str, source: str) -> list[TopologyReading]:
    try:
        return [read_topology(text, source=source)] if text else []
    except InputError as error:
        logger.debug("%s", error)
        return []
