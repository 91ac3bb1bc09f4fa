"""Lists of devices for people: the boxes of ``nvidia-smi``, ``npu-smi info`` and their kin.

Each reader returns the devices that it found, or nothing where the text is of another tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from shardwright.hardware_profiles.topology.readings import GBIT_BYTES, MIB, DeviceRow

_BUS = r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])"


def read_device_table(text: str) -> tuple[str, tuple[DeviceRow, ...]] | None:
    """(what printed it, its devices) of a clean text; None where it lists none."""
    readers: tuple[tuple[str, Callable[[str], tuple[DeviceRow, ...]]], ...] = (
        ("nvidia-smi -q", _read_long),
        ("nvidia-smi", _read_nvidia),
        ("nvidia-smi -L", _read_names),
        ("npu-smi info", _read_ascend),
        ("mthreads-gmi", _read_mthreads),
        ("mx-smi", _read_metax),
        ("rocm-smi", _read_rocm),
        ("amd-smi", _read_amd),
    )
    for kind, reader in readers:
        rows = reader(text)
        if rows:
            return kind, rows
    return None


def read_link_rates(text: str) -> tuple[float, ...]:
    """``nvidia-smi nvlink -s``: rates of the first device's active links, per direction."""
    devices = re.split(r"^\s*GPU \d+:", text, flags=re.MULTILINE)[1:]
    rates = [re.findall(r"^\s*Link \d+: ([\d.]+) GB/s", block, re.MULTILINE) for block in devices]
    return tuple(float(rate) * 8 * GBIT_BYTES for rate in next((r for r in rates if r), []))


def _read_nvidia(text: str) -> tuple[DeviceRow, ...]:
    """Two lines a device, of three columns: name and bus, then power and memory."""
    if "NVIDIA-SMI" not in text:
        return ()
    rows: list[DeviceRow] = []
    heading = re.compile(rf"^\s*\|\s*\d+\s+(\S.*?)\s+(?:On|Off|N/A)\s*\|\s*{_BUS}")
    usage = re.compile(r"(?:/\s*([\d.]+)W)?[^|]*\|\s*\d+\s*MiB\s*/\s*(\d+)\s*MiB")
    name = bus = None
    for line in text.split("\n"):
        found = heading.match(line)
        memory = usage.search(line)
        if found:
            name, bus = found[1].rstrip("."), found[2]
        elif name and memory:
            limit = re.search(r"/\s*([\d.]+)\s*W", line)
            rows.append(DeviceRow(name, int(memory[2]) * MIB, _watts(limit), bus))
            name = None
    if rows and re.search(r"MIG devices:", text):
        rows = [DeviceRow(r.name, r.memory_bytes, r.power_watts, r.bus_id, True) for r in rows]
    return tuple(rows)


def _read_names(text: str) -> tuple[DeviceRow, ...]:
    """``GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-...)``, slices indented below.

    Reports of an environment print the same without the identity, or ``GPU 0,1,2: NAME``.
    """
    rows = []
    for block in re.split(r"^\s*(?=GPU [\d,]+: )", text, flags=re.MULTILINE)[1:]:
        found = re.match(r"GPU ([\d,]+): ([A-Za-z].+?)\s*(?:\(UUID.*)?$", block, re.MULTILINE)
        if found:
            is_sliced = bool(re.search(r"^\s+MIG \S+", block, re.MULTILINE))
            row = DeviceRow(found[2], is_sliced=is_sliced)
            rows += [row] * len(found[1].strip(",").split(","))
    return tuple(rows)


def _read_long(text: str) -> tuple[DeviceRow, ...]:
    """``nvidia-smi -q``: a heading per device, then indented sections."""
    rows = []
    for block in re.split(rf"^GPU (?={_BUS})", text, flags=re.MULTILINE)[1:]:
        name = re.search(r"Product Name\s*:\s*(\S.*?)\s*$", block, re.MULTILINE)
        memory = re.search(r"FB Memory Usage\s+Total\s*:\s*(\d+) MiB", block)
        limit = re.search(r"(?:Current|Enforced)? ?Power Limit\s*:\s*([\d.]+) W", block)
        sliced = re.search(r"MIG Mode\s+Current\s*:\s*Enabled", block)
        if name:
            size = int(memory[1]) * MIB if memory else None
            rows.append(DeviceRow(name[1], size, _watts(limit), block.split()[0], bool(sliced)))
    return tuple(rows)


def _read_ascend(text: str) -> tuple[DeviceRow, ...]:
    """``npu-smi info``: a line with the name, then one per chip with ``used / total`` of HBM."""
    if not re.search(r"npu-smi|\|\s*NPU\s+Name", text):
        return ()
    name = None
    rows = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        heading = re.match(r"\d+\s+([A-Za-z]*\d{3}\w*(?:-\d)?)$", cells[0])
        bus = re.fullmatch(_BUS, cells[1]) if len(cells) > 1 else None
        if heading and not bus:
            name = heading[1]
        elif bus and name:
            totals = [int(total) for total in re.findall(r"/\s*(\d+)", cells[-1])]
            rows.append(DeviceRow(name, max(totals) * MIB if totals else None, None, bus[1]))
    return tuple(rows)


def _read_mthreads(text: str) -> tuple[DeviceRow, ...]:
    """``mthreads-gmi``: ``0  MTT S4000 |00000000:08:00.0 |0%  0MiB(49152MiB)``."""
    found = re.findall(
        rf"^\s*\d+\s+(MTT \S+)\s*\|\s*{_BUS}\s*\|.*?\((\d+)MiB\)", text, re.MULTILINE
    )
    if not found:  # `mthreads-gmi -q`
        names = re.findall(r"Product Name\s*:\s*(MTT \S+)", text)
        sizes = re.findall(r"Total\s*:\s*(\d+)\s*MiB", text) or [""] * len(names)
        found = [(name, "", size) for name, size in zip(names, sizes, strict=False)]
    return tuple(
        DeviceRow(name, int(size) * MIB if size else None, None, bus or None)
        for name, bus, size in found
    )


def _read_metax(text: str) -> tuple[DeviceRow, ...]:
    """``mx-smi``: ``| 0  MetaX C500 | 0000:0e:00.0 |``, below it ``69W / 350W | 858/65536 MiB``."""
    rows: list[DeviceRow] = []
    name = bus = None
    for line in text.split("\n"):
        heading = re.match(rf"^\s*\|\s*\d+\s+(MetaX \S+|MX\S+)\s*\|.*?{_BUS}", line)
        memory = re.search(r"\|\s*\d+\s*/\s*(\d+)\s*MiB", line)
        if heading:
            name, bus = heading[1], heading[2]
        elif name and memory:
            limit = re.search(r"/\s*([\d.]+)W", line)
            rows.append(DeviceRow(name, int(memory[1]) * MIB, _watts(limit), bus))
            name = None
    return tuple(rows)


def _read_rocm(text: str) -> tuple[DeviceRow, ...]:
    """``rocm-smi --showproductname --showmeminfo vram --showmaxpower``: a line per fact."""
    facts: dict[int, dict[str, str]] = {}
    for index, key, value in re.findall(
        r"^\s*(?:GPU|HCU|DCU) ?\[(\d+)\]\s*:\s*([^:\n]+?)\s*:\s*(.*?)\s*$", text, re.MULTILINE
    ):
        facts.setdefault(int(index), {})[key.lower()] = value
    rows = []
    for _, known in sorted(facts.items()):
        name = known.get("card series") or known.get("card model") or known.get("device name")
        if name and re.fullmatch(r"0x[0-9a-f]+|N/A", name):
            name = known.get("card model")
        memory = known.get("vram total memory (b)")
        limit = known.get("max graphics package power (w)")
        if name or memory:
            size = int(memory) if memory and memory.isdigit() else None
            rows.append(DeviceRow(name, size, float(limit) if limit else None))
    return tuple(rows)


def _read_amd(text: str) -> tuple[DeviceRow, ...]:
    """``amd-smi static``: ``GPU: 0``, then indented ``MARKET_NAME:`` and ``VRAM: ... SIZE:``."""
    rows = []
    for block in re.split(r"^GPU: \d+", text, flags=re.MULTILINE)[1:]:
        name = re.search(r"MARKET_NAME:\s*(\S.*?)\s*$", block, re.MULTILINE)
        size = re.search(r"VRAM:.*?SIZE:\s*(\d+) MB", block, re.DOTALL)
        limit = re.search(r"MAX_POWER(?:_LIMIT)?:\s*(\d+) W", block)
        bus = re.search(rf"BDF:\s*{_BUS}", block)
        if name:
            memory = int(size[1]) * MIB if size else None
            rows.append(DeviceRow(name[1], memory, _watts(limit), bus[1] if bus else None))
    return tuple(rows)


def _watts(found: re.Match[str] | None) -> float | None:
    return float(found[1]) if found else None
