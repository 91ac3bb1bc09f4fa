"""Rows priced by a model that was fitted without them.

| hold out | left out together |
|---|---|
| ``stack`` | every row of one stack: software that was never seen |
| ``model`` | every row of one stack and one model: software that was seen, a model that was \
not |
| ``problem`` | a fifth of all problems, each whole |
| ``each-problem`` | every row of one problem |

A row without a problem is a problem of its own.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from shardwright.planner.validation.pricers import Fitter
from shardwright.planner.validation.results import Job, RowResult, Skip, evaluate, skipped
from shardwright.planner.validation.scores import NOT_STATED, Errors
from shardwright.specs.blocks import LayerBlock

HoldOut = Literal["stack", "model", "problem", "each-problem"]
HOLD_OUTS: tuple[str, ...] = get_args(HoldOut)
NUM_FOLDS = 5
_SEED = 0


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows that are left out together."""

    name: str
    rows: frozenset[str]
    """Their ids."""


@dataclass(frozen=True, slots=True)
class FoldScore:
    """Step times of a fold's rows, priced by a model fitted to all the others."""

    name: str
    num_fitted: int
    errors: Errors


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Every row of a file, none of them priced by a model that saw it."""

    results: tuple[RowResult, ...]
    folds: tuple[FoldScore, ...]


def folds(jobs: Sequence[Job], hold_out: HoldOut) -> tuple[Fold, ...]:
    """Which rows are left out together; each job is in exactly one fold."""
    keys: dict[Hashable, list[Job]] = defaultdict(list)
    for job in jobs:
        keys[_key(job, hold_out)].append(job)
    if hold_out != "problem":
        return tuple(
            Fold(_name(group[0], hold_out), frozenset(job.row.id for job in group))
            for group in keys.values()
        )
    problems = sorted(keys, key=str)
    random.Random(_SEED).shuffle(problems)
    dealt = [problems[start::NUM_FOLDS] for start in range(min(NUM_FOLDS, len(problems)))]
    return tuple(
        Fold(
            f"fold {number} ({len(share)} problems)",
            frozenset(job.row.id for problem in share for job in keys[problem]),
        )
        for number, share in enumerate(dealt, start=1)
    )


def _key(job: Job, hold_out: HoldOut) -> Hashable:
    if hold_out == "stack":
        return job.row.stack
    if hold_out == "model":
        blocks = (block for tower in job.case.model.towers for block in tower.blocks)
        return job.row.stack, tuple(block for block in blocks if isinstance(block, LayerBlock))
    return job.row.problem or f"row {job.row.id}"


def _name(job: Job, hold_out: HoldOut) -> str:
    stack = job.row.stack or NOT_STATED
    if hold_out == "stack":
        return stack
    if hold_out == "model":
        return f"{stack}, {job.row.model.name or job.case.model.name}"
    return job.row.problem or job.row.id


def held_out(
    items: Sequence[Job | Skip],
    hold_out: HoldOut,
    fitter: Fitter,
    progress: Callable[[str, float], None] = lambda doing, fraction: None,
) -> HeldOut:
    """Fit once per fold to all other rows, and price the fold."""
    jobs = [item for item in items if isinstance(item, Job)]
    found: dict[str, RowResult] = {}
    scores = []
    parts = folds(jobs, hold_out)
    for number, fold in enumerate(parts):
        progress(fold.name, number / len(parts))
        rest = [job for job in jobs if job.row.id not in fold.rows]
        held = [job for job in jobs if job.row.id in fold.rows]
        results = evaluate(held, fitter.fit(rest, unseen=held))
        found |= {result.id: result for result in results}
        ratios = [result.ratio for result in results if result.ratio is not None]
        scores.append(FoldScore(fold.name, len(rest), Errors.of(ratios)))
    rows = (
        skipped(item.row, item.reason) if isinstance(item, Skip) else found[item.row.id]
        for item in items
    )
    return HeldOut(tuple(rows), tuple(scores))
