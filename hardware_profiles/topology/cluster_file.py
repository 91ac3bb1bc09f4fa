"""A cluster as TOML that people read and change: every number with its unit and its origin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.hardware_profiles.topology.cluster import DescribedCluster
from shardwright.specs.units import format_bytes, format_flops, format_rate, format_seconds

HEADER = """\
# A cluster, for `--cluster FILE`. Plain numbers are in the unit that ends their name (bytes, bytes
# per second and direction, seconds, FLOP/s, dense). Change what you know better, and say so:
# provenance = "user". `shardwright cluster show FILE` prints what is in here.
"""


def cluster_toml(described: DescribedCluster) -> str:
    """The text of a cluster file; `resolve_cluster` reads it back as the same `ClusterSpec`."""
    lines = [HEADER.rstrip("\n")]
    for heading, items in (("A guess", described.guesses), ("Seen", described.notes)):
        lines += [f"# {heading}: {_one_line(item)}" for item in items]
    value = described.cluster.model_dump(mode="json", exclude_none=True)
    lines += ["", *_table(value, "", "", described.origins)]
    return "\n".join(lines) + "\n"


def _table(
    table: Mapping[str, Any], name: str, path: str, origins: Mapping[str, str]
) -> Iterator[str]:
    """Plain values first, then tables and arrays of tables, as TOML wants it."""
    if origins.get(path) and name:
        yield f"# {_one_line(origins[path])}"
    nested = {key: value for key, value in table.items() if _is_nested(value)}
    for key, value in table.items():
        if key not in nested and value != []:
            yield f"{_key(key)} = {_value(value)}{_comment(key, value, f'{path}.{key}', origins)}"
    for key, value in nested.items():
        inner_name, inner_path = f"{name}.{key}".lstrip("."), f"{path}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield from ("", f"[{inner_name}]")
            yield from _table(value, inner_name, inner_path, origins)
        else:
            for index, item in enumerate(value):
                yield from ("", f"[[{inner_name}]]")
                yield from _table(item, inner_name, f"{inner_path}.{index}", origins)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value))


def _comment(key: str, value: Any, path: str, origins: Mapping[str, str]) -> str:
    """The value for people, and what said so."""
    parts = [_for_people(key, value), origins.get(path.lstrip("."), "")]
    words = "; ".join(_one_line(part) for part in parts if part)
    return f"  # {words}" if words else ""


def _for_people(key: str, value: Any) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if key.endswith("bytes_per_s"):
        return format_rate(value)
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key.endswith("_s"):
        return format_seconds(value)
    return format_flops(value) if value >= 1e9 else ""


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value == int(value) and abs(value) < 1e18:
        return f"{int(value)}.0"
    return repr(value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _one_line(text: str) -> str:
    return " ".join(text.split())
