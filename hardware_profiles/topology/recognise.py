"""From a text of any origin to what it says."""

from __future__ import annotations

import re

from shardwright.hardware_profiles.topology.adapters import read_ports
from shardwright.hardware_profiles.topology.csv_query import read_csv
from shardwright.hardware_profiles.topology.device_tables import read_device_table, read_link_rates
from shardwright.hardware_profiles.topology.host import read_lscpu, read_numactl
from shardwright.hardware_profiles.topology.matrix import read_matrix
from shardwright.hardware_profiles.topology.readings import DeviceRow, TopologyReading
from shardwright.hardware_profiles.topology.slurm import read_hostnames, read_nodes, read_switches
from shardwright.hardware_profiles.topology.text import clean, lines_of
from shardwright.specs.errors import InputError

KNOWN = (
    "nvidia-smi, its topo -m, nvlink -s, -L, -q and --query-gpu csv; rocm-smi --showtopo; amd-smi"
    " topology; mx-smi; mthreads-gmi; npu-smi info; ibstat, ibstatus, ibv_devinfo,"
    " /sys/class/infiniband; scontrol show node, topology and hostnames; lscpu, numactl --hardware"
)


def read_topology(text: str, *, source: str = "the text") -> TopologyReading:
    """What the output of one or several tools says; formats are recognised, not named.

    Raises:
        InputError: nothing in it is known; lists what is.
    """
    plain = "\n".join(lines_of(clean(text)))
    kinds: list[str] = []
    matrix = read_matrix(plain)
    if matrix is not None:
        kinds.append(f"matrix:{matrix.tool}")
    nodes, switches = read_nodes(plain), read_switches(plain)
    kinds += ["scontrol show node"] if nodes else []
    kinds += ["scontrol show topology"] if switches else []
    ports = None if nodes else read_ports(plain)
    kinds += [ports[0]] if ports else []
    host = read_lscpu(plain) or read_numactl(plain)
    kinds += ["lscpu" if "CPU(s):" in plain else "numactl"] if host else []
    rates = read_link_rates(plain)
    kinds += ["nvidia-smi nvlink"] if rates else []
    kind, devices = ("", ()) if nodes or switches else _devices(plain)
    kinds += [kind] if kind else []
    hostnames = () if kinds else read_hostnames(plain)
    kinds += ["scontrol show hostnames"] if hostnames else []
    if not kinds:
        raise InputError(
            f"{source} is not the output of a tool that is known here", why=_why(plain),
            fix=f"give the whole output of one of: {KNOWN}",
        )  # fmt: skip
    return TopologyReading(
        kinds=tuple(kinds),
        matrix=matrix,
        devices=devices,
        ports=ports[1] if ports else (),
        nodes=nodes,
        hostnames=hostnames,
        switches=switches,
        host=host,
        link_rates_bytes_per_s=rates,
    )


def _devices(text: str) -> tuple[str, tuple[DeviceRow, ...]]:
    """Devices of a table for people, else of comma-separated values."""
    found = read_device_table(text)
    rows = read_csv(text)
    if found and not (rows and all(row.memory_bytes for row in rows)):
        return found
    return ("nvidia-smi --query-gpu", rows) if rows else ("", ())


def _why(text: str) -> str:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        return "it is empty"
    first = re.sub(r"\s+", " ", lines[0])
    return f"it begins with {first[:60]!r}"
