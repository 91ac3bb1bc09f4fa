"""What `benchmarks.fidelity` scores: every row priced by a model that did not see it.

One fit of everything is shared (`StackStudy`). Fits without a stack, or without problems, go on
from there (`Refitting`). A single model, a few rows, is taken away to first order, unless ``exact``
is asked for, which takes ten times as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shardwright.cost_models.stacks.fit import fit
from shardwright.hardware_profiles.stacks import Fitted
from shardwright.planner.validation.anchor import choices
from shardwright.planner.validation.choose import Pricer
from shardwright.planner.validation.cross import HeldOut, held_out
from shardwright.planner.validation.pricers import Fitter, default_pricer
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, RowResult, Skip, evaluate, prepare
from shardwright.planner.validation.rows import Row, read_runs
from shardwright.planner.validation.scores import NOT_STATED, Errors
from shardwright.planner.validation.stack_fits import (
    StackPricer,
    StackStudy,
    calibrated,
    run_defaults,
)

Items = Sequence[Job | Skip]

PUBLISHED, SWEEPS = "published_runs.json", "layout_sweeps_a100.json"
MOST_SMALL_GPUS = 8
"""Of the sweeps' problems that are scored among themselves."""
MOST_ANCHORS = 40
"""Choices of the one run that a stack is calibrated on."""
_STEPS = 2
"""Of a fit that starts from one that is nearly the same."""
_BLACKWELL = ("B200", "B300", "GB200", "GB300")


@dataclass(frozen=True, slots=True)
class Anchored:
    """A stack that was forgotten, after calibration on one of its runs."""

    stack: str
    num_rows: int
    """With a full configuration."""
    num_skipped: int
    choices: tuple[tuple[RowResult, ...], ...]
    """The other rows priced, for each choice of the run."""

    @property
    def errors(self) -> list[Errors]:
        """For each choice; a skipped row is an error of 1."""
        return [Errors.with_skips(_ratios(rows), self.num_skipped) for rows in self.choices]


@dataclass(frozen=True, slots=True)
class Sweeps:
    """The A100 sweeps, held out by problem."""

    small: tuple[RowResult, ...]
    """2 to 8 GPUs: five folds of whole problems."""
    large: tuple[RowResult, ...]
    """Each problem from the other and the small ones."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is reported on."""

    items: tuple[Job | Skip, ...]
    """Published runs."""
    catalogue: tuple[RowResult, ...]
    """Priced with the numbers of the catalogue, which saw them: for memory."""
    unseen_stack: HeldOut
    unseen_model: HeldOut
    anchored: tuple[Anchored, ...]
    sweeps: Sweeps
    plain_sweeps: Sweeps
    """Without the ratios of single layer shapes."""


@dataclass(frozen=True, slots=True)
class WithoutLayers:
    """A fitter whose models know stacks, clocks and kernels, but no single layer shapes."""

    base: Fitter

    def fit(self, jobs: Sequence[Job], *, unseen: Sequence[Job] = ()) -> Pricer:
        found = self.base.fit(jobs, unseen=unseen)
        if not isinstance(found, StackPricer) or found.known is None:
            return found
        return StackPricer(found.known.model_copy(update={"layers": {}}), found.fresh)


@dataclass(frozen=True, slots=True)
class Refitting:
    """A fitter that starts where its study ended, without what is left out, and fits on from there.

    To first order alone, a stack that is left out may still weigh in what all share: it can be a
    third of all runs.
    """

    study: StackStudy
    _found: dict[frozenset[str], Fitted] = field(default_factory=dict)
    """By the rows that it was fitted to: several scores leave out the same."""

    def fit(self, jobs: Sequence[Job], *, unseen: Sequence[Job] = ()) -> StackPricer:
        wanted = frozenset(job.row.id for job in jobs)
        if wanted not in self._found:
            self._found[wanted] = self._fit(wanted)
        return StackPricer(self._found[wanted])

    def _fit(self, wanted: frozenset[str]) -> Fitted:
        known, observations, full = self.study.made
        kept = np.array([job.row.id in wanted for job in known])
        found = [one for one, is_kept in zip(observations, kept, strict=True) if is_kept]
        again = fit(found, full.free, start=full.without(kept), iterations=_STEPS)
        return self.study.numbers(again.z, kept)


def read(path: Path) -> tuple[Job | Skip, ...]:
    """Every row of a file as a job, or why it is none."""
    return prepare(read_runs(path).rows, CaseMaker(defaults=run_defaults))


def gather(
    published: Items,
    sweeps: Items,
    *,
    exact: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> Evidence:
    """Fit once, and price every row without itself in each of the ways that are asked for."""
    progress("fitting")
    study = StackStudy(_jobs([*published, *sweeps]))
    _ = study.made
    fitter = Refitting(study)
    progress("unseen stacks")
    unseen_stack = held_out(published, "stack", fitter)
    progress("unseen models")
    unseen_model = held_out(published, "model", fitter if exact else study)
    progress("anchors")
    anchored = tuple(anchor_all(published, fitter))
    progress("sweeps")
    return Evidence(
        items=tuple(published),
        catalogue=tuple(evaluate(published, default_pricer())),
        unseen_stack=unseen_stack,
        unseen_model=unseen_model,
        anchored=anchored,
        sweeps=price_sweeps(sweeps, fitter),
        plain_sweeps=price_sweeps(sweeps, WithoutLayers(fitter)),
    )


def _jobs(items: Iterable[Job | Skip]) -> list[Job]:
    return [item for item in items if isinstance(item, Job)]


def price_sweeps(items: Items, fitter: Fitter) -> Sweeps:
    """Small problems in five folds; each large one by itself."""
    small = [item for item in items if not is_large(item)]
    large = [item for item in items if is_large(item)]
    found: list[RowResult] = []
    for problem in sorted({item.row.problem or "" for item in large if isinstance(item.row, Row)}):
        own = [i for i in large if isinstance(i.row, Row) and (i.row.problem or "") == problem]
        ids = {item.row.id for item in own}
        pricer = fitter.fit([job for job in _jobs(items) if job.row.id not in ids])
        found += evaluate(own, pricer)
    return Sweeps(held_out(small, "problem", fitter).results, tuple(found))


def is_large(item: Job | Skip) -> bool:
    """Whether a row ran on more GPUs than the small problems."""
    gpus = item.row.num_gpus if isinstance(item.row, Row) else None
    return gpus is not None and gpus > MOST_SMALL_GPUS


def anchor_all(items: Items, fitter: Refitting) -> Iterable[Anchored]:
    """Each stack forgotten and then calibrated on one of its fully stated runs."""
    full: dict[str, list[Job | Skip]] = defaultdict(list)
    for item in items:
        if isinstance(item.row, Row) and item.row.is_full_configuration and not item.row.is_oom:
            full[item.row.stack or NOT_STATED].append(item)
    for stack, rows in sorted(full.items()):
        others = [job for job in _jobs(items) if (job.row.stack or NOT_STATED) != stack]
        yield _anchored(stack, rows, others, fitter)


def _anchored(
    stack: str, rows: Sequence[Job | Skip], others: Sequence[Job], fitter: Refitting
) -> Anchored:
    """``others``: every run of all other stacks, from which all else is known."""
    jobs = _jobs(rows)
    chosen = choices(len(jobs), 1) if len(jobs) > 1 else []
    chosen = chosen[:: max(1, -(-len(chosen) // MOST_ANCHORS))]
    known = fitter.fit(others).known if chosen and others else None
    found = []
    for (index,) in chosen:
        pricer = calibrated([jobs[index]], known)
        found.append(tuple(evaluate([job for job in jobs if job is not jobs[index]], pricer)))
    return Anchored(stack, len(rows), len(rows) - len(jobs), tuple(found))


def pooled(parts: Iterable[Anchored]) -> list[tuple[float, float]]:
    """(error, weight) of all rows of all stacks together; each row weighs one."""
    found: list[tuple[float, float]] = []
    for part in parts:
        if not part.choices:
            continue
        found += [(1.0, 1.0)] * part.num_skipped
        scored = sum(len(_ratios(rows)) for rows in part.choices)
        weight = (part.num_rows - part.num_skipped) / scored if scored else 0.0
        found += [(abs(r - 1.0), weight) for rows in part.choices for r in _ratios(rows)]
    return found


def weighted_quantile(pairs: Sequence[tuple[float, float]], fraction: float) -> float | None:
    """The smallest value up to which this fraction of the weight lies."""
    total, seen = sum(weight for _, weight in pairs), 0.0
    for value, weight in sorted(pairs):
        seen += weight
        if seen >= fraction * total * (1 - 1e-12):
            return value
    return None


def _ratios(rows: Iterable[RowResult]) -> list[float]:
    return [row.ratio for row in rows if row.ratio is not None]


def is_blackwell(result: RowResult) -> bool:
    return (result.accelerator or "").upper().startswith(_BLACKWELL)


def is_ampere_or_hopper(result: RowResult) -> bool:
    return (result.accelerator or "").upper().startswith(("A100", "H100"))


def full(results: Iterable[RowResult]) -> list[RowResult]:
    """Those that state all that a step time depends on."""
    return [one for one in results if one.is_full and not one.measured_oom]
