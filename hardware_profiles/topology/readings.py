"""What was read: frozen records without interpretation, in base units.

``as_json`` of each gives the figures in the units that the tools print (MiB, W, Gbit/s, MB), under
the names that people know them by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MIB = 2**20
GBIT_BYTES = 1e9 / 8
MB_BYTES = 2**20
"""Slurm's and numactl's "MB" are 2**20 bytes."""


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """How each accelerator of a node reaches each other one and each network adapter.

    Links are named as printed (``NV18``, ``PIX``, ``XGMI``, ``HCCS`` ...), ``X`` on the diagonal,
    None where the text was cut off.
    """

    tool: str
    names: tuple[str, ...]
    links: tuple[tuple[str | None, ...], ...]
    nics: tuple[str, ...] = ()
    """Columns of adapters, under the name of the column."""
    nic_links: tuple[tuple[str | None, ...], ...] | None = None
    """One row per accelerator; None without adapters."""
    nic_legend: Mapping[str, str] | None = None
    """Device name of each adapter, such as ``NIC0`` -> ``mlx5_0``."""
    nic_rows: tuple[str, ...] | None = None
    """Adapters that have a row of their own in the text."""
    cpu_affinity: Mapping[str, str] | None = None
    numa: Mapping[str, str] | None = None
    device_numa: Mapping[str, str] | None = None
    """NUMA node of the accelerator's own memory."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The kinds of links between two different accelerators, sorted."""
        found = {
            link
            for i, row in enumerate(self.links)
            for j, link in enumerate(row)
            if i != j and link is not None
        }
        return tuple(sorted(found))

    @property
    def numa_groups(self) -> dict[str, tuple[str, ...]] | None:
        """Accelerators by the NUMA nodes that they are next to."""
        if self.numa is None:
            return None
        places = dict.fromkeys(self.numa.values())
        return {
            place: tuple(name for name, at in self.numa.items() if at == place) for place in places
        }

    def as_json(self) -> dict[str, Any]:
        groups = self.numa_groups
        return {
            "gpus": len(self.names),
            "gpu_names": list(self.names),
            "matrix": _lists(self.links),
            "classes": list(self.classes),
            "nics": len(self.nics),
            "nic_columns": list(self.nics),
            "gpu_nic": None if self.nic_links is None else _lists(self.nic_links),
            "nic_legend": _dict(self.nic_legend),
            "nic_rows_printed": None if self.nic_rows is None else list(self.nic_rows),
            "cpu_affinity": _dict(self.cpu_affinity),
            "numa": _dict(self.numa),
            "numa_groups": groups and {place: list(names) for place, names in groups.items()},
            "gpu_numa_id": _dict(self.device_numa),
        }


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One accelerator as a list of devices has it; None where the list does not say."""

    name: str | None
    memory_bytes: int | None = None
    power_watts: float | None = None
    """The limit, not the draw of the moment."""
    bus_id: str | None = None
    is_sliced: bool = False
    """Whether the device is cut into slices (MIG), so that a process sees a part of it."""
    host_bytes_per_s: float | None = None
    """Of its slot, per direction: generation and width together."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "memory_mib": None if self.memory_bytes is None else self.memory_bytes // MIB,
            "power_w": self.power_watts,
        }


@dataclass(frozen=True, slots=True)
class AdapterPort:
    """One port of a network adapter."""

    name: str | None
    state: str | None = None
    rate_bytes_per_s: float | None = None
    """Per direction."""
    link_layer: str | None = None

    @property
    def is_up(self) -> bool:
        """Whether it carries traffic; ports of which nothing but the rate is known count as up."""
        return self.state is None or self.state.lower().removeprefix("port_") in ("active", "up")

    def as_json(self) -> dict[str, Any]:
        rate = self.rate_bytes_per_s
        gbps = None if rate is None else round(rate / GBIT_BYTES, 6)
        return {
            "name": self.name,
            "state": self.state,
            "rate_gbps": int(gbps) if gbps is not None and gbps == int(gbps) else gbps,
            "link_layer": self.link_layer,
        }


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as the scheduler knows it."""

    name: str
    gpu_type: str | None
    num_gpus: int
    num_gpus_allocated: int | None
    num_cpus: int | None
    memory_bytes: int | None
    state: str | None
    features: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "gpu_type": self.gpu_type,
            "gpus": self.num_gpus,
            "gpus_allocated": self.num_gpus_allocated,
            "cpus": self.num_cpus,
            "memory_mb": None if self.memory_bytes is None else self.memory_bytes // MB_BYTES,
            "state": self.state,
        }


@dataclass(frozen=True, slots=True)
class FabricSwitch:
    """A switch, or a block of nodes, of the scheduler's picture of the network."""

    name: str
    level: int | None
    """Index of the layer of switches, from the nodes."""
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    is_block: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "level": self.level,
            "nodes": list(self.nodes),
            "switches": list(self.switches),
            "block": self.is_block,
        }


@dataclass(frozen=True, slots=True)
class HostReading:
    """Processors and memory of a node."""

    model: str | None = None
    num_cpus: int | None = None
    """Logical ones."""
    num_sockets: int | None = None
    num_cores_per_socket: int | None = None
    num_threads_per_core: int | None = None
    numa_cpus: Mapping[str, str] | None = None
    """CPU list of each NUMA node."""
    memory_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "cpus": self.num_cpus,
            "sockets": self.num_sockets,
            "cores_per_socket": self.num_cores_per_socket,
            "threads_per_core": self.num_threads_per_core,
            "numa_cpus": _dict(self.numa_cpus),
            "memory_bytes": self.memory_bytes,
        }


@dataclass(frozen=True, slots=True)
class TopologyReading:
    """Everything that one text says; a text may hold the outputs of several tools."""

    kinds: tuple[str, ...] = ()
    """What was recognised, such as ``matrix:nvidia-smi`` or ``ibstat``, in order of weight."""
    matrix: DeviceMatrix | None = None
    devices: tuple[DeviceRow, ...] = ()
    ports: tuple[AdapterPort, ...] = ()
    nodes: tuple[SlurmNode, ...] = ()
    hostnames: tuple[str, ...] = ()
    switches: tuple[FabricSwitch, ...] = ()
    host: HostReading | None = None
    link_rates_bytes_per_s: tuple[float, ...] = ()
    """Of each active link of one accelerator, per direction, as it reports them."""

    @property
    def kind(self) -> str:
        """The main thing that was recognised."""
        return self.kinds[0] if self.kinds else "nothing"

    def as_json(self) -> dict[str, Any]:
        """What was read under the names and in the units of the tools."""
        found: dict[str, Any] = {} if self.matrix is None else self.matrix.as_json()
        parts: dict[str, Sequence[Any]] = {
            "gpu_rows": self.devices,
            "ports": self.ports,
            "nodes": self.nodes,
            "switches": self.switches,
        }
        found |= {name: [row.as_json() for row in rows] for name, rows in parts.items() if rows}
        if self.hostnames:
            found["hostnames"] = list(self.hostnames)
        if self.host is not None:
            found["host"] = self.host.as_json()
        if self.link_rates_bytes_per_s:
            found["link_rates_bytes_per_s"] = list(self.link_rates_bytes_per_s)
        return found


def merged(readings: Sequence[TopologyReading]) -> TopologyReading:
    """One node's texts as one: of each part the first that has it, kinds of all."""

    def first(name: str) -> Any:
        values = [getattr(reading, name) for reading in readings]
        return next((value for value in values if value), values[0] if values else None)

    if not readings:
        return TopologyReading()
    names = [name for name in TopologyReading.__dataclass_fields__ if name != "kinds"]
    kinds = dict.fromkeys(kind for reading in readings for kind in reading.kinds)
    return replace(readings[0], kinds=tuple(kinds), **{name: first(name) for name in names})


def _lists(rows: tuple[tuple[str | None, ...], ...]) -> list[list[str | None]]:
    return [list(row) for row in rows]


def _dict(mapping: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if mapping is None else dict(mapping)
