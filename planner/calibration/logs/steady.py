"""The step time of a log's steady part: `steady_step`.

Of the printed steps are left out, in this order, and counted under a reason:

1. steps of another global batch than most (a ramp-up of the batch size);
2. steps whose update was skipped (the search for a loss scale), where others are left;
3. the first print of a training, and of each restart: it allocates, connects and compiles; and what
   follows it until the first print within the tolerance of what comes later (at most half of them);
4. prints further from the median than the tolerance: checkpoints, evaluations, disturbances.

The tolerance is four robust standard deviations (1.4826 median absolute deviations), and 3 % at
least. The step time is the median of the rest. Prints of several processes for one step are one. A
log whose restarts differ by more than a fifth is of two configurations, and is refused.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.planner.calibration.logs.reading import LoggedStep, LogReading
from shardwright.planner.calibration.logs.times import Size, timed_steps
from shardwright.specs import InputError
from shardwright.specs.units import format_seconds

FEWEST_TOLERATED_FRACTION = 0.03
"""Scatter of steps that is never a reason: most clusters have so much."""
DEVIATIONS = 4.0
"""Beyond so many a normal scatter would put one print of 16,000."""
_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
OTHER_RUN = 1.2
"""Ratio of step times beyond which two starts of a log are of two configurations."""
_LATE_PRINTS = 3
"""Lines of slower processes come at most so many prints late."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One print of the log; of several processes the median."""

    number: int | None
    time_s: float
    global_batch: int | None
    skipped: int


@dataclass(frozen=True, slots=True)
class Steady:
    """The step time of a log's steady part."""

    step_time_s: float
    scatter_fraction: float
    """Robust standard deviation of the kept prints, of the median."""
    num_kept: int
    num_printed: int
    """Prints, those of several processes for one step counted once."""
    dropped: tuple[tuple[int, str], ...]
    """How many were left out, and why."""
    basis: str
    """From what the times were read."""
    global_batch: int | None = None

    def in_words(self) -> str:
        """``5.41 s (median of 42 of 50 prints; left out: 3 of warm-up, 5 far from the median)``"""
        words = f"median of {self.num_kept} of {self.num_printed} prints"
        if self.num_printed == 1:
            words = "one print"
        left = ", ".join(f"{count} {why}" for count, why in self.dropped)
        basis = "" if self.basis == "the times of steps" else f"; from {self.basis}"
        return (
            f"{format_seconds(self.step_time_s)} ({words}"
            f"{f'; left out: {left}' if left else ''}{basis})"
        )


def steady_step(log: LogReading, size: Size = Size()) -> Steady:  # noqa: B008
    """The step time, by the rules at the top of this file.

    ``size``: of the job, for logs that print rates; a global batch in it picks the steps with it.

    Raises:
        InputError: no step time can be had, no step has the batch, or the log is of two runs.
    """
    timed = timed_steps(log, size)
    starts = merged(timed.steps)
    printed = sum(map(len, starts))
    dropped: Counter[str] = Counter()
    starts, batch = _of_one_batch(starts, log, size, dropped)
    starts = _updated(starts, dropped)
    starts = [_warm(start, index > 0, dropped) for index, start in enumerate(starts)]
    kept_starts = [_near(start, dropped) for start in starts if start]
    kept = [sample for start in kept_starts for sample in start]
    if not kept:
        raise InputError(
            f"{log.source} holds no step beyond the first of a run, which is longer than others",
            fix="give a log of more steps, or the step as --step-time",
        )
    _require_one_run(kept_starts, log)
    middle = statistics.median(sample.time_s for sample in kept)
    return Steady(
        step_time_s=middle,
        scatter_fraction=_deviation(kept, middle) / middle,
        num_kept=len(kept),
        num_printed=printed,
        dropped=tuple((count, why) for why, count in dropped.items()),
        basis=timed.basis,
        global_batch=batch,
    )


def merged(steps: Sequence[LoggedStep]) -> list[list[Sample]]:
    """By start of the training: one sample for each step, however many processes printed it."""
    many = len({step.printer for step in steps if step.printer is not None}) > 1
    starts: list[list[list[LoggedStep]]] = [[]]
    for step in steps:
        current = starts[-1]
        last = current[-1][0].number if current else None
        if step.number is None or last is None or step.number > last:
            current.append([step])
            continue
        recent = [group for group in current[-_LATE_PRINTS:] if group[0].number == step.number]
        if recent and (many or step.number == last):
            recent[0].append(step)
        else:
            starts.append([[step]])
    return [[_sample(group) for group in start] for start in starts]


def _sample(group: Sequence[LoggedStep]) -> Sample:
    first = group[0]
    time_s = statistics.median(step.time_s for step in group if step.time_s is not None)
    return Sample(first.number, time_s, first.global_batch, first.skipped)


def _of_one_batch(
    starts: list[list[Sample]], log: LogReading, size: Size, dropped: Counter[str]
) -> tuple[list[list[Sample]], int | None]:
    """The steps of one global batch: the one that is asked for, else that of most."""
    counts = Counter(s.global_batch for start in starts for s in start if s.global_batch)
    if not counts:
        return starts, size.global_batch
    chosen = size.global_batch or counts.most_common(1)[0][0]
    if chosen not in counts:
        said = ", ".join(f"{batch:,}" for batch in counts)
        raise InputError(
            f"{log.source} trained with a global batch of {said}, not of {chosen:,}",
            fix=f"leave out --global-batch, or give {next(iter(counts))}",
        )
    kept = [[s for s in start if s.global_batch == chosen] for start in starts]
    _count(dropped, starts, kept, "of another global batch")
    return [start for start in kept if start], chosen


def _updated(starts: list[list[Sample]], dropped: Counter[str]) -> list[list[Sample]]:
    kept = [[s for s in start if not s.skipped] for start in starts]
    if sum(map(len, kept)) < 2:
        return starts
    _count(dropped, starts, kept, "with skipped updates")
    return [start for start in kept if start]


def _count(
    dropped: Counter[str], before: Sequence[list[Sample]], after: Sequence[list[Sample]], why: str
) -> None:
    gone = sum(map(len, before)) - sum(map(len, after))
    if gone:
        dropped[why] += gone


def _warm(start: list[Sample], is_restart: bool, dropped: Counter[str]) -> list[Sample]:
    """A start without its warm-up."""
    gone = 1 if is_restart or _begins(start) else 0
    later = [s.time_s for s in start[len(start) // 2 :]]
    middle = statistics.median(later)
    most = middle + _tolerance_s(start[len(start) // 2 :], middle)
    while gone < len(start) // 2 and start[gone].time_s > most:
        gone += 1
    if gone:
        dropped["of a restart" if is_restart else "of warm-up"] += gone
    return start[gone:]


def _begins(start: Sequence[Sample]) -> bool:
    """Whether the first print covers the first step of a training, as far as numbers tell."""
    first = start[0].number
    if first is None:
        return False
    if len(start) == 1:
        return first <= 1
    second = start[1].number
    return second is not None and first <= max(1, second - first)


def _near(start: list[Sample], dropped: Counter[str]) -> list[Sample]:
    """A start without prints far from its median."""
    middle = statistics.median(sample.time_s for sample in start)
    most = _tolerance_s(start, middle)
    kept = [sample for sample in start if abs(sample.time_s - middle) <= most]
    slow = sum(sample.time_s > middle + most for sample in start)
    for count, why in ((slow, "slower than the rest"), (len(start) - len(kept) - slow, "faster")):
        if count:
            dropped[why] += count
    return kept


def _tolerance_s(samples: Sequence[Sample], middle: float) -> float:
    return max(DEVIATIONS * _deviation(samples, middle), FEWEST_TOLERATED_FRACTION * middle)


def _deviation(samples: Sequence[Sample], middle: float) -> float:
    return _MAD * statistics.median(abs(sample.time_s - middle) for sample in samples)


def _require_one_run(starts: Sequence[Sequence[Sample]], log: LogReading) -> None:
    """Raise where starts of several prints are too far apart to be of one configuration."""
    middles = [statistics.median(s.time_s for s in start) for start in starts if len(start) > 1]
    if len(middles) > 1 and math.log(max(middles) / min(middles)) > math.log(OTHER_RUN):
        raise InputError(
            f"{log.source} holds {len(starts)} starts whose steps take from"
            f" {format_seconds(min(middles))} to {format_seconds(max(middles))}",
            why="one configuration does not differ by so much",
            fix="give each run its own file",
        )
