"""Shardwright plans how to train a large Transformer on a given cluster, and runs that plan."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "plan": "shardwright.planner.api",
    "estimate": "shardwright.planner.api",
    "what_if": "shardwright.planner.what_if.api",
    "profile": "shardwright.hardware_profiles.measure",
    "run": "shardwright.runtime.api",
}

__all__ = ["__version__", *sorted(_LAZY)]


def __getattr__(name: str) -> Any:
    """Public names, imported on first use (PEP 562), so that ``import shardwright`` is cheap."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'shardwright' has no attribute {name!r}")
