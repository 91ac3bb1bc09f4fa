"""``run --dry-run``: what it refuses, shows and ends with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)


def print_dry_run(
    path: Path, ranks: str | None, other_options: Sequence[str], *, as_json: bool
) -> None:
    """Hold ranks of a plan against it and print what was found.

    ``other_options``: those of a real run that were given too.

    Raises:
        InputError: such options; a plan or ranks that cannot be used.
        RunError: something is not as planned, after all of it was printed.
    """
    from shardwright.cli import _output
    from shardwright.cli.explain import prices_of
    from shardwright.runtime.dry_run import DEFAULT_RANKS, dry_run, ranks_of
    from shardwright.specs import InputError, Plan, RunError

    if other_options:
        raise InputError(
            f"--dry-run trains nothing, so {', '.join(other_options)} can have no effect",
            fix="leave out one of the two",
        )
    plan = Plan.load(path)
    chosen = ranks_of(ranks or DEFAULT_RANKS, plan.layout.world)
    try:
        profile = prices_of(plan, None)
    except InputError as error:
        logger.warning("%s", error.problem)
        profile = None
    with _output.progress(f"building {len(chosen)} of {plan.layout.world} ranks") as say:
        done = {rank: f"rank {rank}" for rank in chosen}
        report = dry_run(
            plan, chosen, profile,
            on_rank=lambda rank: say(done[rank], chosen.index(rank) / len(chosen)),
        )  # fmt: skip
    if as_json:
        _output.print_json(report.model_dump(mode="json"))
    else:
        _output.print_lines(report.as_text())
    if report.differences:
        raise RunError(
            f"{len(report.differences)} differences from the plan, the first: "
            f"{report.differences[0]}",
            fix="report it with the plan file, or plan again if the file was altered",
        )
