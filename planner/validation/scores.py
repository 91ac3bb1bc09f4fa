"""Statistics of predicted against measured: how far off, in which order, and what to regret.

All errors and ratios are fractions; ``ratio`` is predicted over measured.

* MAPE, median, p90: of ``abs(ratio - 1)``. Bias: ``exp(median(log(ratio))) - 1``.
* Strict figures: of rows with a full configuration, one that was skipped counts as an error of 1.
* Order: of all pairs of one problem whose measurements differ by more than `CLEAR_DIFFERENCE`, how
  many are predicted in the same order; a tie is not.
* Regret of a problem: measured(picked) over the smallest measured, less 1; picked is the smallest
  prediction, ties by id.
* Noise floor: of rows that repeat one configuration, the median of ``abs(log(t / median))``.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from shardwright.planner.validation.results import RowResult

CLEAR_DIFFERENCE = 0.05
"""Two measured steps that differ by more are in an order that a prediction should give."""
NEAR_CAPACITY = 0.8
"""Rows measured at this fraction of a device's memory, or more, test whether a model refuses what
runs."""

NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True)
class Errors:
    """Of some rows' ratios; None where there are none."""

    count: int
    mape: float | None
    median: float | None
    p90: float | None
    bias: float | None

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Errors:
        if not ratios:
            return cls(0, None, None, None, None)
        return cls._of([abs(ratio - 1) for ratio in ratios], ratios)

    @classmethod
    def _of(cls, errors: Sequence[float], ratios: Sequence[float]) -> Errors:
        return cls(
            count=len(errors),
            mape=statistics.fmean(errors),
            median=statistics.median(errors),
            p90=float(np.percentile(errors, 90)),
            bias=math.exp(statistics.median(map(math.log, ratios))) - 1 if ratios else None,
        )

    @classmethod
    def with_skips(cls, ratios: Sequence[float], num_skipped: int) -> Errors:
        """Each skipped row counts as an error of 1; bias is of the others."""
        errors = [*(abs(ratio - 1) for ratio in ratios), *([1.0] * num_skipped)]
        return cls._of(errors, ratios) if errors else cls.of([])


@dataclass(frozen=True, slots=True)
class StepScores:
    """Step times of some rows."""

    num_rows: int
    num_skipped: int
    errors: Errors
    strict: Errors
    num_full: int
    """Rows with a full configuration and a time."""
    num_full_skipped: int
    band_coverage: float | None
    """The share of measured steps inside their 80 % band."""
    noise: float | None


@dataclass(frozen=True, slots=True)
class ProblemScore:
    """The layouts of one problem that were measured."""

    problem: str
    num_layouts: int
    best_id: str
    picked_id: str | None
    """None where no layout could be priced."""
    regret: float | None
    num_pairs: int
    num_right: int
    num_repeats: int
    """Pairs that repeat one configuration: no model can order them."""

    @property
    def pairwise_accuracy(self) -> float | None:
        return self.num_right / self.num_pairs if self.num_pairs else None


@dataclass(frozen=True, slots=True)
class OomScores:
    """Rows that ran out of memory, or did not, against the verdict."""

    oom_refused: int
    oom_accepted: int
    ran_refused: int
    ran_accepted: int
    fragmentation_at_risk: int
    fragmentation_missed: int
    """Rows that ran out of memory by fragmentation are counted here and nowhere else."""
    near_capacity: int
    near_capacity_refused: int

    @property
    def near_capacity_refused_fraction(self) -> float | None:
        return self.near_capacity_refused / self.near_capacity if self.near_capacity else None


@dataclass(frozen=True, slots=True)
class Scores:
    """All that is said of a file."""

    step: StepScores
    by_stack: Mapping[str, StepScores]
    groups: Mapping[tuple[str, str], StepScores]
    """By stack and accelerator."""
    memory: Mapping[str, Errors]
    """By kind of memory."""
    problems: tuple[ProblemScore, ...]
    oom: OomScores
    skips: Mapping[str, int]
    """Rows by the reason for which they were skipped."""

    @property
    def pairwise_accuracy(self) -> float | None:
        pairs = sum(problem.num_pairs for problem in self.problems)
        return sum(problem.num_right for problem in self.problems) / pairs if pairs else None

    @property
    def regrets(self) -> list[float]:
        """Of the problems in which there was a choice."""
        several = (problem for problem in self.problems if problem.num_layouts > 1)
        return [problem.regret for problem in several if problem.regret is not None]


def score(results: Sequence[RowResult]) -> Scores:
    """Every statistic of a file's rows; groups hold only those with something to compare."""
    shown = [result for result in results if result.is_comparable]
    return Scores(
        step=step_scores(results),
        by_stack={stack: step_scores(rows) for stack, rows in _grouped(shown, _stack_of).items()},
        groups={key: step_scores(rows) for key, rows in _grouped(shown, _group_of).items()},
        memory=memory_errors(results),
        problems=problem_scores(results),
        oom=oom_scores(results),
        skips=dict(Counter(r.skipped for r in results if r.skipped is not None).most_common()),
    )


def _stack_of(result: RowResult) -> str:
    return result.stack or NOT_STATED


def _group_of(result: RowResult) -> tuple[str, str]:
    return _stack_of(result), result.accelerator or NOT_STATED


_Key = TypeVar("_Key")


def _grouped(
    results: Iterable[RowResult], key: Callable[[RowResult], _Key]
) -> dict[_Key, list[RowResult]]:
    found: dict[_Key, list[RowResult]] = defaultdict(list)
    for result in results:
        found[key(result)].append(result)
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def step_scores(results: Sequence[RowResult]) -> StepScores:
    """Step times of these rows."""
    full = [result for result in results if result.is_full and not result.measured_oom]
    full_skipped = sum(result.skipped is not None for result in full)
    inside = [
        result.band_s[0] <= result.measured_step_time_s <= result.band_s[1]
        for result in results
        if result.ratio is not None and result.band_s and result.measured_step_time_s
    ]
    return StepScores(
        num_rows=len(results),
        num_skipped=sum(result.skipped is not None for result in results),
        errors=Errors.of(_ratios(results)),
        strict=Errors.with_skips(_ratios(full), full_skipped),
        num_full=len(full),
        num_full_skipped=full_skipped,
        band_coverage=statistics.fmean(inside) if inside else None,
        noise=noise_floor(results),
    )


def _ratios(results: Iterable[RowResult]) -> list[float]:
    return [result.ratio for result in results if result.ratio is not None]


def noise_floor(results: Iterable[RowResult]) -> float | None:
    """Spread among repeats of one configuration, see above; None without repeats."""
    timed = [r for r in results if r.measured_step_time_s and not r.measured_oom]
    deviations: list[float] = []
    for repeats in _grouped(timed, lambda r: r.configuration or r.id).values():
        times = [r.measured_step_time_s for r in repeats if r.measured_step_time_s]
        if len(times) > 1:
            middle = statistics.median(times)
            deviations += [abs(math.log(time / middle)) for time in times]
    return statistics.median(deviations) if deviations else None


def memory_errors(results: Iterable[RowResult]) -> dict[str, Errors]:
    """Peak memory by the kind that was measured."""
    known = [result for result in results if result.memory_ratio is not None]
    return {
        kind: Errors.of([r.memory_ratio for r in rows if r.memory_ratio is not None])
        for kind, rows in _grouped(known, lambda r: r.memory_kind).items()
    }


def problem_scores(results: Sequence[RowResult]) -> tuple[ProblemScore, ...]:
    """Of every problem with a measured step time, in alphabetic order."""
    measured = [
        result
        for result in results
        if result.problem and result.measured_step_time_s and not result.measured_oom
    ]
    by_problem = _grouped(measured, lambda result: result.problem or "")
    return tuple(_problem_score(problem, rows) for problem, rows in by_problem.items())


def _problem_score(problem: str, rows: Sequence[RowResult]) -> ProblemScore:
    best = min(rows, key=lambda row: (row.measured_step_time_s, row.id))
    priced = [row for row in rows if row.predicted_step_time_s is not None]
    picked = min(priced, key=lambda row: (row.predicted_step_time_s, row.id), default=None)
    pairs = [pair for pair in itertools.combinations(priced, 2) if _differs_clearly(*pair)]
    regret = None
    if picked is not None:
        assert picked.measured_step_time_s is not None
        assert best.measured_step_time_s is not None
        regret = picked.measured_step_time_s / best.measured_step_time_s - 1
    return ProblemScore(
        problem=problem,
        num_layouts=len(rows),
        best_id=best.id,
        picked_id=picked.id if picked else None,
        regret=regret,
        num_pairs=len(pairs),
        num_right=sum(_is_ordered(*pair) for pair in pairs),
        num_repeats=sum(a.configuration == b.configuration for a, b in pairs),
    )


def _differs_clearly(a: RowResult, b: RowResult) -> bool:
    assert a.measured_step_time_s is not None
    assert b.measured_step_time_s is not None
    low, high = sorted((a.measured_step_time_s, b.measured_step_time_s))
    return high / low - 1 > CLEAR_DIFFERENCE


def _is_ordered(a: RowResult, b: RowResult) -> bool:
    times = (a.measured_step_time_s, b.measured_step_time_s)
    predictions = (a.predicted_step_time_s, b.predicted_step_time_s)
    assert times[0] is not None
    assert times[1] is not None
    assert predictions[0] is not None
    assert predictions[1] is not None
    return (times[0] - times[1]) * (predictions[0] - predictions[1]) > 0


def oom_scores(results: Iterable[RowResult]) -> OomScores:
    """Verdicts against what happened. Rows that ran count where they state a time or a peak."""
    counts: Counter[str] = Counter()
    for result in results:
        if result.predicted_oom is None:
            continue
        if result.is_fragmentation:
            counts["risk" if result.is_at_risk else "missed"] += 1
            continue
        happened = "oom" if result.measured_oom else "ran"
        counts[f"{happened} {'refused' if result.predicted_oom else 'accepted'}"] += 1
        if not result.measured_oom and _is_near_capacity(result):
            counts["near"] += 1
            counts["near refused"] += result.predicted_oom
    return OomScores(
        oom_refused=counts["oom refused"],
        oom_accepted=counts["oom accepted"],
        ran_refused=counts["ran refused"],
        ran_accepted=counts["ran accepted"],
        fragmentation_at_risk=counts["risk"],
        fragmentation_missed=counts["missed"],
        near_capacity=counts["near"],
        near_capacity_refused=counts["near refused"],
    )


def _is_near_capacity(result: RowResult) -> bool:
    measured, capacity = result.measured_peak_memory_bytes, result.capacity_bytes
    return measured is not None and capacity is not None and measured >= NEAR_CAPACITY * capacity
