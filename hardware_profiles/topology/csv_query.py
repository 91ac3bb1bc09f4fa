"""``nvidia-smi --query-gpu=... --format=csv`` with or without header and units.

Without a header the columns are told apart by what their cells look like.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence

from shardwright.hardware_profiles.topology.readings import MIB, DeviceRow
from shardwright.hardware_profiles.topology.text import number

_TITLES = {
    "name": ("name", "gpu_name"),
    "memory": ("memory.total", "fb_memory_usage.total"),
    "power": (
        "power.limit", "enforced.power.limit", "power.default_limit", "power.max_limit",
    ),
    "bus": ("pci.bus_id", "gpu_bus_id"),
    "sliced": ("mig.mode.current",),
    "generation": ("pcie.link.gen.max", "pcie.link.gen.gpumax"),
    "lanes": ("pcie.link.width.max", "pcie.link.width.current"),
}  # fmt: skip
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""A PCIe lane by generation, per direction: transfers per second less the line code (8b/10b, from
generation 3 on 128b/130b, in generation 6 242 of 256 bytes of a flit)."""
_MAKERS = re.compile(
    r"NVIDIA|Tesla|Quadro|GeForce|TITAN|GRID|AMD|Radeon|Instinct|MTT|MetaX|MXC|Ascend|Intel"
    r"|\b(?:[ABHVLTP]|GB|GH|RTX ?|MI)\d{1,4}[A-Z]?\b",
    re.IGNORECASE,
)
_NOT_A_NAME = re.compile(
    r"GPU-[0-9a-f\-]+|MIG-.*|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d|\[?N/A\]?|P\d{1,2}|Default"
    r"|Enabled|Disabled|\[.*\]|[\d.:/ ]+(?:%|W|MHz|MiB|C)?",
    re.IGNORECASE,
)
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", re.IGNORECASE)
_LEAST_MEMORY_MIB = 4000
"""A bare number below this may be a clock in MHz; devices that train have more memory."""


def read_csv(text: str) -> tuple[DeviceRow, ...]:
    """A row for each device of a clean text; empty where the text is no such table."""
    rows = [_split(line) for line in text.split("\n") if "|" not in line]
    rows = [row for row in rows if row]
    for position, row in enumerate(rows):
        titles = [re.sub(r"\s*\[.*\]", "", cell).strip().lower() for cell in row]
        if _is_header(titles):
            width = len(row)
            body = [other for other in rows[position + 1 :] if len(other) == width]
            return tuple(_titled(titles, other) for other in body)
    bodies = [row for row in rows if _is_body(row)]
    widths = Counter(len(row) for row in bodies)
    width = max(widths, key=lambda size: widths[size], default=0)
    return tuple(_untitled(row) for row in bodies if len(row) == width)


def _split(line: str) -> list[str]:
    if not line.strip() or re.search(r"\S(?:  |\t)", line):  # columns apart by spaces: no csv
        return []
    return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]


def _is_header(titles: Sequence[str]) -> bool:
    known = {title for group in _TITLES.values() for title in group}
    alone = len(titles) == 1 and titles[0] in known - {"power.limit"}
    return alone or (len(titles) > 1 and any(t in known for t in titles) and not _MAKERS.search(
        " ".join(title for title in titles if title not in known)
    ))  # fmt: skip


def _is_body(row: Sequence[str]) -> bool:
    """Several cells, one of them with a unit or two that look like a device's; or just a name."""
    if len(row) == 1:
        return bool(re.fullmatch(r"(?:NVIDIA|Tesla|Quadro|AMD Instinct|MTT) [\w \-.]+", row[0]))
    if any(re.fullmatch(r"[\d.]+ (?:MiB|W)", cell) for cell in row):
        return True
    named = any(_is_name(cell) for cell in row)
    plain = [cell for cell in row if re.fullmatch(r"[\d.]+", cell)]
    numbers_only = len(plain) == len(row) >= 4 and _total_memory(row) is not None
    return (named and bool(plain)) or numbers_only


def _is_name(cell: str) -> bool:
    return bool(_MAKERS.search(cell)) and not _NOT_A_NAME.fullmatch(cell)


def _titled(titles: Sequence[str], row: Sequence[str]) -> DeviceRow:
    def value(group: str) -> str | None:
        for title in _TITLES[group]:
            if title in titles:
                cell = row[titles.index(title)]
                if not re.fullmatch(r"\[?(?:N/A|Not Supported|Unknown Error).*", cell):
                    return cell
        return None

    memory, power = number(value("memory") or ""), number(value("power") or "")
    return DeviceRow(
        name=value("name"),
        memory_bytes=None if memory is None else int(memory) * MIB,
        power_watts=power,
        bus_id=value("bus"),
        is_sliced=value("sliced") == "Enabled",
        host_bytes_per_s=_slot(value("generation"), value("lanes")),
    )


def _slot(generation: str | None, lanes: str | None) -> float | None:
    """Bytes per second and direction of a PCIe slot."""
    rate = LANE_BYTES_PER_S.get(int(number(generation or "") or 0))
    width = number(lanes or "")
    return rate * width if rate and width else None


def _untitled(row: Sequence[str]) -> DeviceRow:
    return DeviceRow(
        name=next((cell for cell in row if _is_name(cell)), None),
        memory_bytes=_total_memory(row),
        power_watts=_power_limit(row),
        bus_id=next((cell for cell in row if _BUS.fullmatch(cell)), None),
    )


def _total_memory(row: Sequence[str]) -> int | None:
    """The largest memory of a row: what is used or free is no more than the total."""
    sizes = [int(cell.split()[0]) for cell in row if re.fullmatch(r"\d+ MiB", cell)]
    if not sizes:
        bare = [int(cell) for cell in row if re.fullmatch(r"\d{4,7}", cell)]
        sizes = [size for size in bare if size >= _LEAST_MEMORY_MIB]
    return max(sizes) * MIB if sizes else None


def _power_limit(row: Sequence[str]) -> float | None:
    """The limit among draw and limits, which are round numbers of watts; the draw seldom is."""
    watts = [float(cell.split()[0]) for cell in row if re.fullmatch(r"[\d.]+ W", cell)]
    if not watts:
        watts = [float(cell) for cell in row if re.fullmatch(r"\d+\.\d\d", cell)]
    if len(watts) == 1:
        return watts[0] if watts[0] % 5 == 0 else None
    counted = Counter(watts).most_common(1)
    if counted and counted[0][1] > 1:
        return counted[0][0]
    return max(watts[:2]) if watts else None
