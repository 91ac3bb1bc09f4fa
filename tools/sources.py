"""Which Python files are ours, once each, by their real paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOUSES = ("planner", "runtime", "cost_models", "hardware_profiles")
LIBRARY = (*HOUSES, "shardwright")
EVERYTHING = (*LIBRARY, "tests", "tools", "benchmarks", "examples")


def python_files(*folders: str, root: Path = ROOT) -> Iterator[Path]:
    """Every Python file under the named folders of ``root``, sorted; links are not followed."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path
