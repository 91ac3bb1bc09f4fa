"""Fits the numbers that the replay of BigScience's sweep starts from: without that software.

    python -m benchmarks.replay_fit ../shared/data/published_runs.json \
        ../shared/data/layout_sweeps_a100.json [--write]

The catalogue's own numbers saw the sweep. These are made the same way (`benchmarks.fit_stacks`,
bands and all) from every other run: no run of Megatron-DeepSpeed is among them, neither the sweep
nor anybody else's. With ``--write`` they become ``benchmarks/replay_numbers.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fit_stacks import fit_catalogue, read_jobs
from benchmarks.replay_facts import STACK
from shardwright.hardware_profiles.stacks import Fitted
from shardwright.planner.validation.results import Job, Skip
from shardwright.planner.validation.rows import Row

TARGET = Path("benchmarks/replay_numbers.json")


def others(items: Sequence[Job | Skip]) -> list[Job | Skip]:
    """Runs of any other software."""
    return [item for item in items if isinstance(item.row, Row) and item.row.stack != STACK]


def fit_others(published: Sequence[Job | Skip], sweeps: Sequence[Job | Skip]) -> Fitted:
    """The catalogue's numbers as if Megatron-DeepSpeed had never been run."""
    kept = others(published)
    found = fit_catalogue([*kept, *others(sweeps)], kept)
    runs = sum(isinstance(item, Job) and item.row.step_time_s is not None for item in kept)
    source = f"benchmarks/replay_fit.py: {runs} published runs, none of {STACK}"
    return found.model_copy(update={"fitted_from": source})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Numbers of stacks without Megatron-DeepSpeed.")
    parser.add_argument("published", type=Path)
    parser.add_argument("sweeps", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET}")
    asked = parser.parse_args(arguments)
    found = fit_others(read_jobs([asked.published]), read_jobs(asked.sweeps))
    text = json.dumps(found.model_dump(mode="json"), indent=1) + "\n"
    sys.stdout.write(text)
    if asked.write:
        TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
