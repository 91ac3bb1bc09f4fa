"""What the commands read of their arguments, beside the question itself."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from shardwright.planner.goals import Goal


def names(text: str | None) -> tuple[str, ...]:
    """``cp,offload`` as names."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def goal(
    objective: str,
    *,
    deadline: str | None,
    budget: str | None,
    slack: str,
    usd_per_gpu_hour: float | None,
) -> Goal:
    """What ``--objective`` and the limits beside it say; raises `InputError`."""
    from shardwright.cost_models.money import Terms
    from shardwright.planner.goals import OBJECTIVES, Goal
    from shardwright.specs.units import parse

    return Goal(
        one_of(objective, list(OBJECTIVES), "--objective"),
        deadline_s=None if deadline is None else parse(deadline, "seconds"),
        budget_usd=None if budget is None else dollars(budget, "--budget"),
        slack=share(slack, "--slack"),
        terms=Terms(usd_per_gpu_hour=usd_per_gpu_hour),
    )


_THOUSANDS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}


def dollars(text: str, option: str) -> float:
    """``250000``, ``250k`` or ``$1.5M`` in dollars; raises `InputError`."""
    match = re.fullmatch(r"\$?([0-9,]*\.?[0-9]+) ?([kKMB]?)", text.strip())
    if match is None:
        raise InputError(f"{option} is {text}, not an amount", fix="write 250000, 250k or 1.5M")
    return float(match[1].replace(",", "")) * _THOUSANDS[match[2]]


def share(text: str, option: str) -> float:
    """``5%`` or ``0.05`` as a fraction; raises `InputError`."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+) ?(%?)", text.strip())
    if match is None:
        raise InputError(f"{option} is {text}, not a share", fix="write 5% or 0.05")
    return float(match[1]) / (100 if match[2] else 1)


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
