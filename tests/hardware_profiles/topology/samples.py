"""The captured texts that the tests of this folder share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardwright.hardware_profiles.topology import TopologyReading, read_topology

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.txt"))


def text(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text(encoding="utf-8")


def expected(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    return value


def reading(name: str) -> TopologyReading:
    return read_topology(text(name), source=name)


def matrix_text(links: list[list[str]]) -> str:
    """A table of links as ``nvidia-smi topo -m`` prints it."""
    names = [f"GPU{i}" for i in range(len(links))]
    rows = ["\t".join([name, *row]) for name, row in zip(names, links, strict=True)]
    return "\n".join(["\t" + "\t".join(names), *rows]) + "\n"
