"""How a replayed sweep is scored: order, picks and their regret, ranks, what the trials took.

* Order: of pairs whose measurements differ by more than `CLEAR_DIFFERENCE`, how many are predicted
  in the same order. Within a shape: seconds a step of layouts of one job. Within a section: seconds
  a sequence of all trials on as many GPUs, whatever their shape and batch.
* Regret of a pick: measured(picked) over the smallest measured, less 1.
* "tp8 first": tensor parallelism over the node, then the fewest stages that fit, the rest data
  parallelism, the largest micro-batch (a power of two) that fits.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.replay_facts import GPUS_PER_NODE, NUM_TIMED_STEPS, Trial
from shardwright.planner.validation.results import RowResult
from shardwright.planner.validation.rows import RowParallel
from shardwright.planner.validation.scores import CLEAR_DIFFERENCE, ProblemScore, score
from shardwright.specs import Layout

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, order=True)
class Grid:
    """A layout in the degrees that the sweep varied."""

    tp: int
    pp: int
    dp: int
    micro_batch: int

    @classmethod
    def of(cls, layout: Layout | RowParallel) -> Grid:
        values = [layout.tp, layout.pp, layout.dp, layout.micro_batch]
        return cls(*(int(value or 1) for value in values))

    def __str__(self) -> str:
        return f"tp{self.tp} pp{self.pp} dp{self.dp} mb{self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Counted:
    """How many of how many."""

    right: int
    all: int

    def __str__(self) -> str:
        share = f" ({self.right / self.all:.0%})" if self.all else ""
        return f"{self.right} of {self.all}{share}"


@dataclass(frozen=True, slots=True)
class Summary:
    """One state of knowledge, over the trials that it did not see."""

    median_error: float
    p90_error: float
    bias: float
    band_coverage: float
    within_shapes: Counted
    within_sections: Counted
    regrets: tuple[float, ...]
    """Of shapes with several trials."""

    @property
    def mean_regret(self) -> float:
        return statistics.fmean(self.regrets)

    @property
    def num_best(self) -> int:
        """Shapes whose pick was the fastest trial."""
        return sum(regret == 0.0 for regret in self.regrets)


def summary(trials: Sequence[Trial], results: Sequence[RowResult]) -> Summary:
    """Of trials and their results, in the same order."""
    found = score(results)
    errors, coverage = found.step.errors, found.step.band_coverage
    assert errors.median is not None
    assert errors.p90 is not None
    assert errors.bias is not None
    assert coverage is not None
    return Summary(
        errors.median, errors.p90, errors.bias, coverage,
        Counted(
            sum(one.num_right for one in found.problems),
            sum(one.num_pairs for one in found.problems),
        ),
        within_sections(trials, results),
        tuple(found.regrets),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeanSummary:
    """Means of summaries over the choice of what was seen."""

    num_choices: int
    median_error: float
    p90_error: float
    bias: float
    band_coverage: float
    within_shapes: float
    """The share of all pairs of all choices."""
    within_sections: float
    best: float
    """The share of shapes whose pick was the fastest trial."""
    mean_regret: float
    worst_regret: float

    @classmethod
    def of(cls, found: Sequence[Summary]) -> MeanSummary:
        def mean(value: Callable[[Summary], float]) -> float:
            return statistics.fmean(map(value, found))

        regrets = [regret for one in found for regret in one.regrets]
        return cls(
            len(found),
            mean(lambda one: one.median_error),
            mean(lambda one: one.p90_error),
            mean(lambda one: one.bias),
            mean(lambda one: one.band_coverage),
            _share(one.within_shapes for one in found),
            _share(one.within_sections for one in found),
            sum(regret == 0.0 for regret in regrets) / len(regrets),
            statistics.fmean(regrets),
            max(regrets),
        )


def _share(counts: Iterable[Counted]) -> float:
    pairs = [(one.right, one.all) for one in counts]
    return sum(right for right, _ in pairs) / sum(total for _, total in pairs)


def within_sections(trials: Sequence[Trial], results: Sequence[RowResult]) -> Counted:
    """Clear pairs of a section on as many GPUs, by seconds a sequence."""
    groups: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for trial, result in zip(trials, results, strict=True):
        batch = trial.row.parallel.global_batch
        measured_s, predicted_s = result.measured_step_time_s, result.predicted_step_time_s
        if measured_s is None or predicted_s is None or batch is None:
            continue
        key = trial.section, trial.row.num_gpus
        groups[key].append((measured_s / batch, predicted_s / batch))
    pairs = [
        pair for group in groups.values() for pair in itertools.combinations(group, 2)
        if max(pair)[0] / min(pair)[0] - 1 > CLEAR_DIFFERENCE
    ]  # fmt: skip
    right = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
    return Counted(right, len(pairs))


# Picks


def by_problem(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Trials of one job, in the chronicle's order."""
    found: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        found[trial.row.problem or trial.row.id].append(trial)
    return dict(found)


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """The fastest; None where all ran out of memory."""
    timed = [trial for trial in trials if trial.row.step_time_s]
    return min(timed, key=lambda one: (one.row.step_time_s, one.row.id), default=None)


def rule_pick(trials: Iterable[Trial]) -> Trial | None:
    """Of trials that ran, that of "tp8 first": the most tp up to a node, of these the fewest
    stages, of these the largest micro-batch."""
    timed = [trial for trial in trials if trial.row.step_time_s]
    within = [trial for trial in timed if Grid.of(trial.row.parallel).tp <= GPUS_PER_NODE]
    return min(within, key=lambda one: _by_rule(Grid.of(one.row.parallel)), default=None)


def _by_rule(grid: Grid) -> tuple[int, int, int]:
    return -grid.tp, grid.pp, -grid.micro_batch


def regret_of(picked: Trial, trials: Iterable[Trial]) -> float:
    """What a pick cost beyond the fastest trial, as a fraction."""
    best = best_of(trials)
    assert best is not None
    assert best.row.step_time_s is not None
    assert picked.row.step_time_s is not None
    return picked.row.step_time_s / best.row.step_time_s - 1


def rule_regrets(trials: Iterable[Trial]) -> tuple[float, ...]:
    """Of "tp8 first", for each job with several timed trials."""
    found = []
    for group in by_problem(trials).values():
        picked = rule_pick(group)
        if picked is not None and sum(one.row.step_time_s is not None for one in group) > 1:
            found.append(regret_of(picked, group))
    return tuple(found)


def chance_regrets(trials: Iterable[Trial]) -> tuple[float, ...]:
    """Of a trial drawn at random, in the mean, for each job with several timed trials."""
    found = []
    for group in by_problem(trials).values():
        timed = [one for one in group if one.row.step_time_s]
        if len(timed) > 1:
            found.append(statistics.fmean(regret_of(one, timed) for one in timed))
    return tuple(found)


def order_by_difference(
    trials: Iterable[Trial], predicted_s: Mapping[str, float]
) -> dict[str, Counted]:
    """Clear pairs of one job by what sets them apart: ``tp``, ``pp`` under the same tp, or the
    ``micro-batch`` alone. ``predicted_s``: seconds by id."""
    counts: dict[str, list[bool]] = {"tp": [], "pp": [], "micro-batch": []}
    for group in by_problem(trials).values():
        timed = [(one, one.row.step_time_s) for one in group if one.row.step_time_s]
        for (a, a_s), (b, b_s) in itertools.combinations(timed, 2):
            if max(a_s, b_s) / min(a_s, b_s) - 1 > CLEAR_DIFFERENCE:
                is_right = (a_s - b_s) * (predicted_s[a.row.id] - predicted_s[b.row.id]) > 0
                counts[_difference(a, b)].append(is_right)
    return {name: Counted(sum(found), len(found)) for name, found in counts.items()}


def _difference(a: Trial, b: Trial) -> str:
    one, other = Grid.of(a.row.parallel), Grid.of(b.row.parallel)
    if one.tp != other.tp:
        return "tp"
    return "pp" if one.pp != other.pp else "micro-batch"


def micro_batch_pairs(trials: Iterable[Trial], small: int, large: int) -> list[tuple[Trial, Trial]]:
    """Timed trials of one job with tp over the node that differ in the micro-batch alone."""
    found = []
    for group in by_problem(trials).values():
        by_grid = {Grid.of(one.row.parallel): one for one in group if one.row.step_time_s}
        for grid, one in by_grid.items():
            other = by_grid.get(replace(grid, micro_batch=large))
            if grid.tp == GPUS_PER_NODE and grid.micro_batch == small and other is not None:
                found.append((one, other))
    return found


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a layout that was planned, among the trials of its job."""

    tried: Trial | None
    """None: nobody ran it, or it is not among these trials."""
    rank: int | None
    """1: the fastest of the trials; None where it was not tried or ran out of memory."""
    num_timed: int

    @property
    def ran_out_of_memory(self) -> bool:
        return self.tried is not None and self.rank is None


def fate_of(grid: Grid, trials: Sequence[Trial]) -> Fate:
    """Where a layout lies among the trials."""
    timed = sorted(one.row.step_time_s for one in trials if one.row.step_time_s)
    tried = next((one for one in trials if Grid.of(one.row.parallel) == grid), None)
    seconds = tried and tried.row.step_time_s
    rank = timed.index(seconds) + 1 if seconds else None
    return Fate(tried, rank, len(timed))


def picks(scores: Iterable[ProblemScore]) -> dict[str, str]:
    """The id of the pick, by job."""
    return {one.problem: one.picked_id for one in scores if one.picked_id is not None}


# What the trials took


def sweep_gpu_hours(trials: Iterable[Trial]) -> float:
    """GPU-hours of the steps that were timed and of those before them; of trials that ran out of
    memory, none."""
    return sum(
        NUM_TIMED_STEPS * (trial.row.step_time_s or 0.0) * (trial.row.num_gpus or 0) / HOUR_S
        for trial in trials
    )


def start_up_gpu_hours(trials: Iterable[Trial]) -> float:
    """GPU-hours for each minute that a trial takes before its first step."""
    return sum((trial.row.num_gpus or 0) / 60.0 for trial in trials)
