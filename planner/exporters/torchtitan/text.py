"""Text of a TOML file."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.exporters.launch_files import comment

_WIDTH = 100


def toml_text(
    tables: Mapping[str, Mapping[str, Any]], *, heading: str, notes: Sequence[str]
) -> str:
    """Tables in order, each key with its value; None is left out, as TOML has no such thing."""
    lines = list(comment(heading))
    for note in notes:
        lines += comment(f"  {note}")
    for name, table in tables.items():
        given = {key: value for key, value in table.items() if value is not None}
        if given:
            lines += ["", f"[{name}]", *(f"{key} = {toml_value(v)}" for key, v in given.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A string, number, boolean or list, a long list with one item a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value)  # TOML's basic strings have JSON's escapes
    items = [toml_value(item) for item in value]
    line = f"[{', '.join(items)}]"
    if len(line) <= _WIDTH:
        return line
    if any(isinstance(item, list | tuple) for item in value):
        lines = [line for item in items for line in f"{item},".splitlines()]
    else:
        lines = textwrap.wrap(", ".join(items) + ",", _WIDTH, break_long_words=False)
    return "\n".join(["[", *(f"    {line}" for line in lines), "]"])


def _number(value: float) -> str:
    text = repr(value)
    return text if any(letter in text for letter in ".ein") else f"{text}.0"
