"""`run --dry-run`: chosen ranks of a plan of any size, held against the plan on one CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch.distributed as dist

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.runtime.dry_audit import audit_rank
from shardwright.runtime.dry_rank import dry_rank
from shardwright.runtime.dry_report import DryRunReport
from shardwright.runtime.preflight import check_plan
from shardwright.runtime.summary import layout_in_words
from shardwright.specs import InputError, Plan
from shardwright.specs.units import format_bytes

DEFAULT_RANKS = "0,last"

_RANGE = re.compile(r"(\d+|last)(?:-(\d+|last))?")


def dry_run(
    plan: Plan,
    ranks: Sequence[int],
    profile: HardwareProfile | None = None,
    *,
    on_rank: Callable[[int], None] | None = None,
) -> DryRunReport:
    """Build each of the ranks, run one step of it without data, and hold it against the plan.

    Args:
        profile: what the plan was priced from; without it the plan's record of its price is not
            checked.
        on_rank: told each rank before it is built.

    Raises:
        InputError: the plan contradicts itself or asks for what the runtime does not do, all of
            which is listed; or this process is a rank of a real launch.
    """
    check_plan(plan)
    if dist.is_available() and dist.is_initialized():
        raise InputError(
            "a dry run needs a process without process groups",
            fix="call it before torch.distributed is initialised, or use shardwright run --dry-run",
        )
    reports = []
    for rank in ranks:
        if on_rank is not None:
            on_rank(rank)
        reports.append(audit_rank(plan, dry_rank(plan, rank), profile))
    return DryRunReport(
        model=plan.model.name,
        num_ranks=plan.layout.world,
        layout=layout_in_words(plan),
        ranks=tuple(reports),
        notes=tuple(_notes(plan, profile)),
    )


def ranks_of(text: str, world: int) -> tuple[int, ...]:
    """The ranks that ``0,last,3-5`` names, ascending, each once.

    Raises:
        InputError: another text, or ranks that the world does not have.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InputError(
                f"--rank is {text}, and {part.strip()!r} in it is no rank",
                fix="write ranks such as 0, last and 3-5, joined by commas",
            )
        first = _rank_of(match[1], world)
        final = first if match[2] is None else _rank_of(match[2], world)
        if first > final or final >= world:
            raise InputError(
                f"--rank is {text}, but the plan's ranks are 0 to {world - 1}",
                fix="name ranks that it has, ranges upwards",
            )
        found.update(range(first, final + 1))
    return tuple(sorted(found))


def _rank_of(text: str, world: int) -> int:
    return world - 1 if text == "last" else int(text)


def _notes(plan: Plan, profile: HardwareProfile | None) -> list[str]:
    fixed = max(parts.fixed for parts in plan.prediction.memory)
    notes = [
        "live bytes are those of tensors at the fullest moment of the step, without the device's"
        " context; communicators and fragmentation are the plan's fixed part, at most"
        f" {format_bytes(fixed)}",
    ]
    if profile is None:
        notes.append("the plan's record of its price was not checked: its prices are not here")
    return notes
