"""Real excerpts of logs beside what a reader must get from them, where a checkout has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.planner.calibration.logs.reading import LogReading
from shardwright.planner.calibration.logs.recognise import read_log

FOLDER = Path(__file__).resolve().parents[4].parent / "shared/data/samples/logs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json")) or [""]


def sample(name: str) -> tuple[LogReading, dict[str, Any]]:
    """A sample as it is read, and what is known of it; skips where there is none."""
    if not name:
        pytest.skip("no samples of logs in ../shared")
    known: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return read_log(FOLDER / known["files"][0]), known


FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name: str) -> LogReading:
    """A small log of our own, in a form that some release or fork prints."""
    return read_log(FIXTURES / name)
