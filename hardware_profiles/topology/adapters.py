"""Network adapters: ``ibstat``, ``ibstatus``, ``ibv_devinfo``, ``/sys/class/infiniband`` and such.

``hardware_profiles/topology/capture.py`` writes the tree of ``/sys/class/infiniband`` as one line
per file, ``PATH:CONTENT``, as ``grep . PATHS`` does; that text is read here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardwright.hardware_profiles.topology.readings import GBIT_BYTES, AdapterPort
from shardwright.hardware_profiles.topology.text import number

_RATE_UNIT = re.compile(r"([\d.]+)\s*([GM])b(?:/s|/sec|ps)", re.IGNORECASE)


def read_ports(text: str) -> tuple[str, tuple[AdapterPort, ...]] | None:
    """(what printed it, its ports) of a clean text; None where it tells of no adapter."""
    for kind, sign, reader in (
        ("ibstat", r"^\s*CA '", _read_ibstat),
        ("ibstatus", r"^\s*Infiniband device '", _read_ibstatus),
        ("ibv_devinfo", r"^\s*hca_id:", _read_devinfo),
        ("/sys/class/infiniband", r"infiniband/[^/\s]+/ports/\d+/", _read_tree),
        ("ibstatus", r"^\s*rate:\s+\d", _read_ibstatus),
        ("rdma link", r"^\s*link \S+/\d+ .*\bstate ", _read_rdma_link),
        ("ethtool", r"^\s*Settings for \S+:", _read_ethtool),
        ("ibdev2netdev", r"^\S+\s+port\s+\d+\s+==> ", _read_netdev),
        ("/sys/class/infiniband", r"^\s*[\d.]+ Gb/sec", _read_rates),
    ):
        if re.search(sign, text, re.MULTILINE):
            return kind, tuple(reader(text))
    return None


def rate_bytes_per_s(text: str) -> float | None:
    """``400 Gb/sec (4X NDR)``, ``100000Mb/s`` or a bare number of Gbit/s; None where it is none."""
    found = _RATE_UNIT.search(text)
    if found:
        return float(found[1]) * GBIT_BYTES * (1 if found[2].upper() == "G" else 1e-3)
    bare = re.fullmatch(r"\s*([\d.]+)\s*", text)
    return float(bare[1]) * GBIT_BYTES if bare else None


def _read_ibstat(text: str) -> Iterator[AdapterPort]:
    """Blocks ``CA 'mlx5_0'`` with blocks ``Port 1:`` of ``State:``, ``Rate:``, ``Link layer:``."""
    for block in re.split(r"^\s*CA '", text, flags=re.MULTILINE)[1:]:
        name = block.split("'")[0]
        for port in re.split(r"^\s*Port \d+:", block, flags=re.MULTILINE)[1:]:
            yield AdapterPort(
                name=name,
                state=_value(port, "State"),
                rate_bytes_per_s=rate_bytes_per_s(_value(port, "Rate") or ""),
                link_layer=_value(port, "Link layer"),
            )


def _read_ibstatus(text: str) -> Iterator[AdapterPort]:
    """Blocks of one port, which a filter may have thinned out; a repeated key begins the next."""
    port, seen = AdapterPort(name=None), set[str]()
    for line in text.split("\n"):
        device = re.match(r"\s*Infiniband device '([^']+)'", line)
        key, colon, value = (part.strip() for part in line.partition(":"))
        if device or key in seen or set(key) == {"-"}:
            if seen - {"device"} or port.name is not None:
                yield port
            port, seen = AdapterPort(name=device[1] if device else None), set()
        if device or not colon:
            continue
        seen.add(key)
        if key == "state":
            port = replace(port, state=value.split(":")[-1].strip())
        elif key == "rate":
            port = replace(port, rate_bytes_per_s=rate_bytes_per_s(value))
        elif key == "link_layer":
            port = replace(port, link_layer=value or None)
        elif key not in ("default gid", "base lid", "sm lid", "phys state"):
            seen.discard(key)
    if seen or port.name is not None:
        yield port


def _read_devinfo(text: str) -> Iterator[AdapterPort]:
    """``ibv_devinfo``, whose ``-v`` gives the width and the speed of a lane."""
    for block in re.split(r"^\s*hca_id:", text, flags=re.MULTILINE)[1:]:
        name = block.split()[0]
        for port in re.split(r"^\s*port:\s+\d+", block, flags=re.MULTILINE)[1:]:
            width = number(_value(port, "active_width") or "")
            speed = rate_bytes_per_s((_value(port, "active_speed") or "").split("(")[0])
            yield AdapterPort(
                name=name,
                state=(_value(port, "state") or "").split()[0] or None,
                rate_bytes_per_s=width * speed if width and speed else None,
                link_layer=_value(port, "link_layer"),
            )


def _read_tree(text: str) -> Iterator[AdapterPort]:
    """``/sys/class/infiniband/mlx5_0/ports/1/rate:400 Gb/sec (4X NDR)`` and its neighbours."""
    files: dict[tuple[str, int], dict[str, str]] = {}
    pattern = r"infiniband/([^/\s]+)/ports/(\d+)/(\w+):[ \t]*(.*)$"
    for name, port, key, value in re.findall(pattern, text, re.MULTILINE):
        files.setdefault((name, int(port)), {})[key] = value.strip()
    for (name, _), values in files.items():
        yield AdapterPort(
            name=name,
            state=values["state"].split(":")[-1].strip() if "state" in values else None,
            rate_bytes_per_s=rate_bytes_per_s(values.get("rate", "")),
            link_layer=values.get("link_layer"),
        )


def _read_rates(text: str) -> Iterator[AdapterPort]:
    """Contents of ``rate`` files alone."""
    for line in re.findall(r"^\s*([\d.]+ Gb/sec.*)$", text, re.MULTILINE):
        yield AdapterPort(name=None, rate_bytes_per_s=rate_bytes_per_s(line))


def _read_rdma_link(text: str) -> Iterator[AdapterPort]:
    """``link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0``: no rates."""
    for name, state in re.findall(r"^\s*link (\S+)/\d+ .*?\bstate (\S+)", text, re.MULTILINE):
        yield AdapterPort(name=name, state=state)


def _read_netdev(text: str) -> Iterator[AdapterPort]:
    """``mlx5_0 port 1 ==> ib0 (Up)``: no rates."""
    for name, state in re.findall(
        r"^(\S+)\s+port\s+\d+\s+==>\s+\S+\s+\((\w+)\)", text, re.MULTILINE
    ):
        yield AdapterPort(name=name, state=state)


def _read_ethtool(text: str) -> Iterator[AdapterPort]:
    """``Settings for eth0:`` with ``Speed: 100000Mb/s`` and ``Link detected: yes``."""
    for block in re.split(r"^\s*Settings for ", text, flags=re.MULTILINE)[1:]:
        detected = _value(block, "Link detected")
        yield AdapterPort(
            name=block.split(":")[0].strip(),
            state=None if detected is None else "Up" if detected == "yes" else "Down",
            rate_bytes_per_s=rate_bytes_per_s(_value(block, "Speed") or ""),
            link_layer="Ethernet",
        )


def _value(block: str, key: str) -> str | None:
    found = re.search(rf"^\s*{re.escape(key)}:[ \t]*(\S.*?)\s*$", block, re.MULTILINE)
    return found[1] if found else None


def fabric_ports(ports: Iterable[AdapterPort]) -> tuple[AdapterPort, ...]:
    """Those that carry a job's traffic: the fastest that are up, InfiniBand before Ethernet.

    Slower ports beside them are for management and storage.
    """
    usable = [port for port in ports if port.is_up and port.rate_bytes_per_s]
    native = [port for port in usable if (port.link_layer or "").lower() == "infiniband"]
    best = max((port.rate_bytes_per_s or 0 for port in native or usable), default=0)
    if native and best < max(port.rate_bytes_per_s or 0 for port in usable):
        native = []  # a slow InfiniBand port beside faster Ethernet ones is not the fabric
        best = max(port.rate_bytes_per_s or 0 for port in usable)
    return tuple(port for port in native or usable if port.rate_bytes_per_s == best)
