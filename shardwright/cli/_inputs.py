"""What the commands read of their arguments, beside the question itself."""

from __future__ import annotations

import importlib

from shardwright.planner.question import HARDWARE as HARDWARE
from shardwright.planner.question import SOFTWARE as SOFTWARE
from shardwright.planner.question import Question as Question
from shardwright.planner.question import Training as Training
from shardwright.planner.question import complete_training as complete_training
from shardwright.planner.question import one_of as one_of
from shardwright.planner.question import question as question
from shardwright.planner.question import sequence_length as sequence_length
from shardwright.planner.question import software_named as software_named
from shardwright.specs import InputError


def names(text: str | None) -> tuple[str, ...]:
    """``cp,offload`` as names."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def require_torch(command: str) -> None:
    """Nothing where torch is installed; raises `InputError` with what to install."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(
            f"`shardwright {command}` needs torch, which is not installed",
            fix="pip install 'shardwright[runtime]'",
        ) from None
