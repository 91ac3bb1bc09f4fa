"""Predicted against measured peak memory of published runs, by software stack.

    python benchmarks/memory_errors.py RUNS.json > benchmarks/memory_errors.md

Each row is read in the kind of memory that its source states. What is fitted (the share that the
allocator loses, and the ratios that verdicts allow for) is fitted once to all rows and, for the
column "left out", without the rows of the stack that is scored.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.validation.choose import choose
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, Skip, prepare
from shardwright.planner.validation.rows import MemoryKind, Row, read_runs
from shardwright.planner.validation.stack_fits import StackPricer, run_defaults
from shardwright.specs import ShardwrightError

_GIB = 2**30
_FRACTIONS = tuple(number / 200 for number in range(21))
"""0 to 10 % in steps of half a per cent: what is customary, and less."""
_NEARLY_FULL = 0.8
"""Of the capacity: rows that say whether a model refuses what runs."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A row beside its prediction, whose share lost by the allocator can be changed."""

    row: Row
    stack: str
    kind: MemoryKind
    verdict: str
    capacity_bytes: int
    predicted_bytes: float
    """With the catalogue's fraction."""
    live_bytes: float
    """Of tensors, where the kind counts what the allocator loses; else 0."""
    fraction: float

    def ratio(self, fraction: float | None = None) -> float:
        """Measured over predicted."""
        assert self.row.peak_memory_bytes is not None
        more = 0.0 if fraction is None else (fraction - self.fraction) * self.live_bytes
        return self.row.peak_memory_bytes / (self.predicted_bytes + more)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("runs", type=Path)
    rows = read_runs(parser.parse_args().runs).rows
    maker = CaseMaker(defaults=run_defaults)
    told = [row for row in rows if isinstance(row, Row) and (row.is_oom or row.peak_memory_bytes)]
    readings, skipped = _read(prepare(told, maker))
    _say("# Peak memory: predicted against measured\n")
    _say(
        "Written by `benchmarks/memory_errors.py`; errors are predicted / measured - 1.\n\n"
        '"Left out" refits the share that the allocator loses without the stack\'s own rows.'
        " What a stack keeps\n(`stack_memory.json`) was read from its source or inferred with these"
        " rows in view, so neither column\nis a test on runs that nobody had seen.\n"
    )
    _print_errors([one for one in readings if one.row.peak_memory_bytes])
    _print_verdicts(readings)
    _print_refused(prepare([row for row in rows if isinstance(row, Row)], maker))
    _say(f"\n## Skipped\n\n{sum(skipped.values())} rows:\n")
    for reason, count in skipped.most_common():
        _say(f"- {count}: {reason}")


def _read(items: Iterable[Job | Skip]) -> tuple[list[Reading], Counter[str]]:
    readings: list[Reading] = []
    skipped: Counter[str] = Counter()
    for item in items:
        if isinstance(item, Skip):
            skipped[item.reason] += 1
            continue
        readings.append(_reading(item))
    return readings, skipped


def _model(job: Job) -> StackModel:
    case = job.case
    return StackPricer()(case.model, case.training, case.profile, case.software)


def _reading(job: Job) -> Reading:
    model, row = _model(job), job.row
    choice = choose(model, job.layouts)
    peaks = model.memory_of_kind(choice.layout, row.kind_of_memory)
    tensors = model.memory_of_kind(choice.layout, "reserved")
    at = max(range(len(peaks)), key=lambda rank: peaks[rank])
    rank = choice.prediction.memory[at]
    live = rank.total_bytes - rank.fixed
    return Reading(
        row=row,
        stack=row.stack or "unknown",
        kind=row.kind_of_memory,
        verdict=choice.prediction.memory_verdict,
        capacity_bytes=model.capacity_bytes,
        predicted_bytes=float(peaks[at]),
        live_bytes=0.0 if peaks[at] == live else float(live),
        fraction=tensors[at] / live - 1.0,
    )


def _fitted(readings: Sequence[Reading]) -> float:
    """The fraction that makes the median reading of reserved and device memory right."""
    told = [one for one in readings if one.kind != "allocated_or_unknown"]
    by_stack = _by_stack(told)

    def miss(fraction: float) -> float:
        return sum(
            (statistics.median(one.ratio(fraction) for one in group) - 1.0) ** 2
            for group in by_stack.values()
        )

    return min(_FRACTIONS, key=miss) if told else 0.0


def _by_stack(readings: Iterable[Reading]) -> dict[str, list[Reading]]:
    found: dict[str, list[Reading]] = defaultdict(list)
    for one in readings:
        found[one.stack].append(one)
    return dict(found)


def _print_errors(readings: Sequence[Reading]) -> None:
    _say("| stack | kind | rows | median | p90 | bias | left out: fraction | median | p90 |")
    _say("|---|---|---|---|---|---|---|---|---|")
    left_out: list[float] = []
    for stack, group in sorted(_by_stack(readings).items()):
        others = [one for one in readings if one.stack != stack]
        fraction = _fitted(others)
        again = [1 / one.ratio(fraction) - 1 for one in group]
        left_out += again
        kinds = "/".join(sorted({one.kind for one in group}))
        own = _scores([1 / one.ratio() - 1 for one in group])
        _say(f"| {stack} | {kinds} | {own} | {fraction:.1%} | {_size(again)} |")
    errors = [1 / one.ratio() - 1 for one in readings]
    _say(f"| **all** | | {_scores(errors)} | | {_size(left_out)} |")
    ratios = sorted(one.ratio() for one in readings)
    _say(f"\nThe fraction of all: {_fitted(readings):.1%}.")
    low, middle, high = (_weighted(readings, quantile) for quantile in (0.1, 0.5, 0.9))
    _say(
        f"Measured over predicted, equal weight per stack: 10th percentile {low:.3f}, median"
        f" {middle:.3f}, 90th {high:.3f}; over rows: median {statistics.median(ratios):.3f}."
    )


def _scores(errors: Sequence[float]) -> str:
    return f"{len(errors)} | {_size(errors)} | {statistics.mean(errors):+.1%}"


def _size(errors: Sequence[float]) -> str:
    sizes = sorted(abs(error) for error in errors)
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return f"{statistics.median(sizes):.1%} | {p90:.1%}"


def _weighted(readings: Sequence[Reading], quantile: float) -> float:
    groups = _by_stack(readings)
    pairs = sorted((one.ratio(), 1 / len(group)) for group in groups.values() for one in group)
    total = 0.0
    for ratio, weight in pairs:
        total += weight / len(groups)
        if total >= quantile:
            return ratio
    return pairs[-1][0]


def _print_verdicts(readings: Sequence[Reading]) -> None:
    _say("\n## Runs that ended for lack of memory\n")
    _say("| row | predicted GiB | usable GiB | verdict | measured GiB |")
    _say("|---|---|---|---|---|")
    for one in readings:
        if not one.row.is_oom:
            continue
        measured = one.row.peak_memory_bytes
        shown = f"{measured / _GIB:.1f}, at times" if measured else ""
        _say(
            f"| {one.row.id} | {one.predicted_bytes / _GIB:.1f} |"
            f" {one.capacity_bytes / _GIB:.1f} | {one.verdict} | {shown} |"
        )
    full = [one for one in _ran(readings) if _fill(one) >= _NEARLY_FULL]
    refused = [one for one in full if one.verdict == "does_not_fit"]
    _say(
        f"\nOf {len(full)} runs that took >= {_NEARLY_FULL:.0%} of their device,"
        f" {len(refused)} are refused."
    )


def _ran(readings: Iterable[Reading]) -> Iterator[Reading]:
    return (one for one in readings if one.row.peak_memory_bytes and not one.row.is_oom)


def _fill(one: Reading) -> float:
    assert one.row.peak_memory_bytes is not None
    return one.row.peak_memory_bytes / one.capacity_bytes


def _print_refused(items: Iterable[Job | Skip]) -> None:
    """Runs that took place did fit; most do not state their recomputation."""
    _say("\n## Runs that took place, whatever they measured\n")
    _say("| stack | runs | refused in every layout that they may have had |\n|---|---|---|")
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for item in items:
        if isinstance(item, Skip) or item.row.is_oom:
            continue
        model, stack = _model(item), item.row.stack or "unknown"
        try:
            verdicts = {model.verdict(model.memory(layout)) for layout in item.layouts}
        except ShardwrightError:
            continue
        counts[stack] += 1
        refused[stack] += verdicts == {"does_not_fit"}
    for stack, count in sorted(counts.items()):
        _say(f"| {stack} | {count} | {refused[stack]} |")


if __name__ == "__main__":
    main()
