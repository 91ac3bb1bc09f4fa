"""TOML as Python's own reader takes it."""

from __future__ import annotations

import math
import tomllib
from typing import Any

from shardwright.planner.exporters.torchtitan.text import toml_text, toml_value


def test_tables_come_back() -> None:
    tables: dict[str, dict[str, Any]] = {
        "one": {"text": 'a "b"\n\\ é', "count": 3, "small": 1e-8, "flag": True, "none": None},
        "two.inner": {"list": [f"layers.{n}" for n in range(99)], "nested": [["a"], ["b", "c"]]},
        "empty": {"none": None},
    }
    text = toml_text(tables, heading="a\nheading", notes=["a note"])
    read = tomllib.loads(text)
    assert read["one"] == {"text": 'a "b"\n\\ é', "count": 3, "small": 1e-8, "flag": True}
    assert read["two"]["inner"] == tables["two.inner"]
    assert "empty" not in read
    assert text.startswith("# a\n# heading\n#   a note\n")
    assert max(map(len, text.splitlines())) < 110


def test_numbers_keep_their_kind() -> None:
    assert toml_value(1.0) == "1.0"
    assert tomllib.loads(f"x = {toml_value(math.inf)}")["x"] == math.inf
    assert isinstance(tomllib.loads(f"x = {toml_value(3e10)}")["x"], float)
