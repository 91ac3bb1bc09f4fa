"""Fits the numbers that the replay of BigScience's sweep starts from.

    python -m benchmarks.replay_fit ../shared/data/published_runs.json \
        ../shared/data/layout_sweeps_a100.json [--write]

The catalogue's own numbers saw the sweep. These are made the same way (`benchmarks.fit_stacks`,
bands and all) from other runs alone, twice: without any run of Megatron-DeepSpeed, the sweep's or
anybody else's; and without BigScience's, so that the software is known from elsewhere. With
``--write`` they become ``benchmarks/replay_unseen.json`` and ``benchmarks/replay_elsewhere.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.fit_stacks import fit_catalogue, read_jobs
from benchmarks.replay_facts import ELSEWHERE, STACK, UNSEEN
from shardwright.hardware_profiles.stacks import Fitted
from shardwright.planner.validation.results import Job, Skip
from shardwright.planner.validation.rows import Row

Items = Sequence[Job | Skip]

_BIG_SCIENCE = "bloom-"
"""How ids of the sweep and of the runs before it begin."""


def without_software(items: Items) -> list[Job | Skip]:
    """Runs of any other software."""
    return [item for item in items if isinstance(item.row, Row) and item.row.stack != STACK]


def without_sweep(items: Items) -> list[Job | Skip]:
    """Runs of anybody else."""
    return [
        item for item in items
        if isinstance(item.row, Row) and not item.row.id.startswith(_BIG_SCIENCE)
    ]  # fmt: skip


WAYS: Mapping[Path, tuple[str, Callable[[Items], list[Job | Skip]]]] = {
    UNSEEN: (f"none of {STACK}", without_software),
    ELSEWHERE: ("none of BigScience's sweep", without_sweep),
}
"""By the file that is written: what is left out, in words, and how."""


def fit_rest(
    published: Items, sweeps: Items, left_out: str, rest: Callable[[Items], list[Job | Skip]]
) -> Fitted:
    """The catalogue's numbers as if what is left out had never been run."""
    kept, others = rest(published), rest(sweeps)
    found = fit_catalogue([*kept, *others], kept)
    timed = [one for one in (*kept, *others) if isinstance(one, Job) and one.row.step_time_s]
    source = f"benchmarks/replay_fit.py: {len(timed)} runs, {left_out}"
    return found.model_copy(update={"fitted_from": source})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Numbers of stacks without BigScience's sweep.")
    parser.add_argument("published", type=Path)
    parser.add_argument("sweeps", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="write both files")
    asked = parser.parse_args(arguments)
    published, sweeps = read_jobs([asked.published]), read_jobs(asked.sweeps)
    for path, (left_out, rest) in WAYS.items():
        found = fit_rest(published, sweeps, left_out, rest)
        text = json.dumps(found.model_dump(mode="json"), indent=1) + "\n"
        sys.stdout.write(text)
        if asked.write:
            path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
