"""Which kinds of rows are predicted worst, and which term of the model goes with their error."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.planner.validation.choose import Pricer
from shardwright.planner.validation.results import Job, RowResult, Skip
from shardwright.planner.validation.scores import Errors
from shardwright.specs import Breakdown, ShardwrightError

LEAST_ROWS = 6
"""Of a kind, so that its figures mean something."""
LEAST_CORRELATED = 10
"""Rows of a stack, so that a correlation means something."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Rows that have one property in common."""

    name: str
    value: str
    errors: Errors


@dataclass(frozen=True, slots=True)
class Suspect:
    """The term of the step whose share goes best with how much longer runs took than predicted."""

    stack: str
    num_rows: int
    term: str
    correlation: float
    """Of the logarithm of measured over predicted with the term's share of the step."""
    mean_share: float


@dataclass(frozen=True, slots=True)
class Priced:
    """A row with its prediction's terms."""

    job: Job
    result: RowResult
    shares: Mapping[str, float]
    """Of the step, by term."""

    @property
    def log_error(self) -> float:
        """Logarithm of measured over predicted."""
        assert self.result.ratio is not None
        return -math.log(self.result.ratio)

    @property
    def largest_term(self) -> str:
        """Beside plain computing."""
        plain = ("compute_forward", "compute_backward")
        return max((n for n in self.shares if n not in plain), key=lambda n: self.shares[n])


def priced(
    items: Iterable[Job | Skip], results: Iterable[RowResult], pricer: Pricer
) -> list[Priced]:
    """Fully stated rows with a prediction; their terms by ``pricer`` in the result's layout."""
    jobs = {item.row.id: item for item in items if isinstance(item, Job)}
    found = []
    for one in results:
        if one.ratio is None or one.layout is None or not one.is_full:
            continue
        case = jobs[one.id].case
        try:
            model = pricer(case.model, case.training, case.profile, case.software)
            prediction = model.predict(one.layout)
        except ShardwrightError:
            continue
        shares = {
            name: getattr(prediction.breakdown, name) / prediction.step_time_s
            for name in Breakdown.model_fields
        }
        found.append(Priced(jobs[one.id], one, shares))
    return found


def patterns(rows: Sequence[Priced]) -> list[Pattern]:
    """Every property that enough rows share, the largest 90th percentile first."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in rows:
        assert one.result.ratio is not None
        for key in _properties(one):
            groups[key].append(one.result.ratio)
    found = [
        Pattern(name, value, Errors.of(ratios))
        for (name, value), ratios in groups.items()
        if len(ratios) >= LEAST_ROWS
    ]
    return sorted(found, key=lambda one: -(one.errors.p90 or 0.0))


def _properties(one: Priced) -> Iterator[tuple[str, str]]:
    row, layout = one.job.row, one.result.layout
    assert layout is not None
    yield "precision", str(one.job.case.training.precision)
    yield "model", "experts" if row.model.experts else "dense"
    yield "accelerator", one.result.accelerator or "?"
    yield "GPUs", _bucket(one.job.case.num_gpus, (8, 64, 512))
    yield "sequence", _bucket(one.job.case.training.seq_len, (2048, 8192, 32768))
    yield "micro-batch", _bucket(layout.micro_batch, (1, 4))
    yield "layout", "stated whole" if one.result.num_open == 1 else "partly open"
    for name in ("tp", "pp", "cp", "ep"):
        if getattr(layout, name) > 1:
            yield name, "> 1"
    yield "zero", str(layout.zero)
    policies = {entry.policy for entry in layout.recompute}
    yield "recompute", "/".join(sorted(policies))
    if row.parallel.other or row.model.other:
        yield "remarks", "some"


def _bucket(value: int, limits: Sequence[int]) -> str:
    """``<= 8``, ``9 to 64``, ``> 64``."""
    low = 0
    for limit in limits:
        if value <= limit:
            return f"{low + 1} to {limit}" if low else f"<= {limit}"
        low = limit
    return f"> {low}"


def suspects(rows: Sequence[Priced]) -> list[Suspect]:
    """For each stack with enough rows, the term that explains most of its residuals."""
    by_stack: dict[str, list[Priced]] = defaultdict(list)
    for one in rows:
        by_stack[one.result.stack or "not stated"].append(one)
    found = []
    for stack, some in sorted(by_stack.items()):
        if len(some) >= LEAST_CORRELATED:
            found.append(_suspect(stack, some))
    return found


def _suspect(stack: str, rows: Sequence[Priced]) -> Suspect:
    errors = np.array([one.log_error for one in rows])
    best = ("none", 0.0, 0.0)
    for name in Breakdown.model_fields:
        shares = np.array([one.shares[name] for one in rows])
        if shares.std() < 0.005 or errors.std() == 0.0:  # too little of it to tell
            continue
        correlation = float(np.corrcoef(errors, shares)[0, 1])
        # Shares add up to 1: of two that mirror each other, the one that grows with the error.
        if _strength(correlation) > _strength(best[1]):
            best = (name, correlation, float(shares.mean()))
    return Suspect(stack, len(rows), *best)


def _strength(correlation: float) -> tuple[float, bool]:
    return round(abs(correlation), 6), correlation > 0.0


def worst(rows: Sequence[Priced], count: int) -> list[Priced]:
    """The rows that are furthest off."""
    return sorted(rows, key=lambda one: -abs(one.log_error))[:count]
