"""How far off a stack is once the cost model has seen a few of its runs.

For each stack, the model is calibrated on N of its rows and scored on the others; figures are means
over choices of the N rows: all choices of one row, else `NUM_DRAWS` seeded draws (or all, if there
are fewer). Where that would mean more than `MOST_PRICES` priced rows, it is a seeded sample of the
choices.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardwright.planner.validation.pricers import Fitter
from shardwright.planner.validation.results import Job, RowResult, Skip, evaluate
from shardwright.planner.validation.scores import NOT_STATED, StepScores, step_scores

NUM_DRAWS = 20
MOST_PRICES = 100_000
_SEED = 0


@dataclass(frozen=True, slots=True)
class AnchorScore:
    """A stack after calibration on a few of its rows: means over the choices of those rows."""

    stack: str
    num_rows: int
    """That could be chosen or scored."""
    num_choices: int
    """0 where the stack has no row left to score."""
    mape: float | None = None
    median: float | None = None
    p90: float | None = None
    bias: float | None = None
    band_coverage: float | None = None


def anchor_scores(
    items: Sequence[Job | Skip],
    results: Sequence[RowResult],
    num_anchors: int,
    fitter: Fitter,
    progress: Callable[[str, float], None] = lambda doing, fraction: None,
) -> tuple[AnchorScore, ...]:
    """Every stack of a file; ``results`` are of the items before any calibration."""
    by_stack: dict[str, list[Job]] = defaultdict(list)
    for item, result in zip(items, results, strict=True):
        if isinstance(item, Job) and result.ratio is not None:
            by_stack[result.stack or NOT_STATED].append(item)
    scores = []
    for number, (stack, jobs) in enumerate(sorted(by_stack.items())):
        progress(stack, number / len(by_stack))
        scores.append(_stack_score(stack, jobs, num_anchors, fitter))
    return tuple(scores)


def over_stacks(scores: Sequence[AnchorScore]) -> AnchorScore | None:
    """The stacks' figures in the mean, each weighing as many as its rows; None without any."""
    known = [score for score in scores if score.num_choices]
    if not known:
        return None

    def mean(values: Iterator[float | None]) -> float | None:
        pairs = [(v, s.num_rows) for v, s in zip(values, known, strict=True) if v is not None]
        total = sum(weight for _, weight in pairs)
        return sum(value * weight for value, weight in pairs) / total if total else None

    return AnchorScore(
        stack="all",
        num_rows=sum(score.num_rows for score in known),
        num_choices=sum(score.num_choices for score in known),
        mape=mean(score.mape for score in known),
        median=mean(score.median for score in known),
        p90=mean(score.p90 for score in known),
        bias=mean(score.bias for score in known),
        band_coverage=mean(score.band_coverage for score in known),
    )


def _stack_score(stack: str, jobs: Sequence[Job], num_anchors: int, fitter: Fitter) -> AnchorScore:
    if len(jobs) <= num_anchors:
        return AnchorScore(stack, len(jobs), 0)
    found = [_one_choice(jobs, choice, fitter) for choice in choices(len(jobs), num_anchors)]
    return AnchorScore(
        stack=stack,
        num_rows=len(jobs),
        num_choices=len(found),
        mape=_mean(scores.errors.mape for scores in found),
        median=_mean(scores.errors.median for scores in found),
        p90=_mean(scores.errors.p90 for scores in found),
        bias=_mean(scores.errors.bias for scores in found),
        band_coverage=_mean(scores.band_coverage for scores in found),
    )


def _one_choice(jobs: Sequence[Job], choice: Sequence[int], fitter: Fitter) -> StepScores:
    chosen = set(choice)
    pricer = fitter.fit([jobs[index] for index in choice])
    others = [job for index, job in enumerate(jobs) if index not in chosen]
    return step_scores(evaluate(others, pricer))


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def choices(num_rows: int, num_anchors: int) -> list[tuple[int, ...]]:
    """Which rows to calibrate on, in ascending order: see the top of this file."""
    most = max(1, MOST_PRICES // num_rows)
    if num_anchors > 1:
        most = min(most, NUM_DRAWS)
    if math.comb(num_rows, num_anchors) <= most:
        return list(itertools.combinations(range(num_rows), num_anchors))
    draw = random.Random(_SEED)
    found: set[tuple[int, ...]] = set()
    while len(found) < most:
        found.add(tuple(sorted(draw.sample(range(num_rows), num_anchors))))
    return sorted(found)
