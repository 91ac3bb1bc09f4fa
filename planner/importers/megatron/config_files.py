"""DeepSpeed's configuration beside a Megatron-DeepSpeed script."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from shardwright.planner.importers.megatron.arguments import Arguments


def zero_stage_of(arguments: Arguments, read: Callable[[str], str | None]) -> int | None:
    """The ZeRO stage of the configuration that ``--deepspeed_config`` names; None where it cannot
    be read or names none."""
    path = arguments.text("deepspeed-config")
    if path is None:
        return None
    text = read(path)
    path = arguments.unknowns.shown(path)
    if text is None:
        arguments.unread.append(f"--deepspeed_config {path}: not beside the script")
        return None
    try:
        config: Any = json.loads(text)
    except (ValueError, RecursionError):
        arguments.unread.append(f"--deepspeed_config {path}: no JSON")
        return None
    section = config.get("zero_optimization") if isinstance(config, dict) else None
    stage = section.get("stage") if isinstance(section, dict) else None
    return stage if isinstance(stage, int) and 0 <= stage <= 3 else None
