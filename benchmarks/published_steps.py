"""Step times that others measured, against the catalogue: the source of its 80 % bands.

    python -m benchmarks.published_steps --runs published_runs.json [--rows]

The file holds published measurements (`benchmarks.published_rows`); without it there is nothing to
compare. A *source* is one software stack, whose rows share their biases. Nothing of the cost model
or the catalogue is fitted to these rows but the band.

* ratio: measured over predicted step time; above 1 the prediction is too fast.
* pooled band: the 10th and 90th percentile of all ratios, each source with the same total weight.
* widest band: the lowest 10th and the highest 90th percentile of any source.
* coverage: the share of a source's rows inside the band of the *other* sources.
* within one problem: each ratio over the median ratio of the same job's layouts, what is left when
  layouts are compared with each other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from benchmarks.published_rows import Job, Row, job_of

Band = tuple[float, float]
Ratios = Mapping[str, Sequence[float]]
"""Measured over predicted, by source."""

_LOW, _HIGH = 0.1, 0.9
"""The ends of a band that holds 80 %."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row, priced."""

    row_id: str
    source: str
    problem: str | None
    accelerator: str
    measured_s: float
    predicted_s: float

    @property
    def ratio(self) -> float:
        return self.measured_s / self.predicted_s


def quantiles(
    values: Sequence[float], weights: Sequence[float], at: Sequence[float]
) -> list[float]:
    """Weighted quantiles: each value stands at the middle of its weight, linear in between."""
    order = np.argsort(values)
    sorted_values, sorted_weights = np.asarray(values)[order], np.asarray(weights)[order]
    middles = (np.cumsum(sorted_weights) - sorted_weights / 2) / np.sum(sorted_weights)
    return [float(q) for q in np.interp(at, middles, sorted_values)]


def source_band(ratios: Sequence[float]) -> Band:
    """10th and 90th percentile of one source."""
    low, high = quantiles(ratios, [1.0] * len(ratios), (_LOW, _HIGH))
    return low, high


def pooled_band(ratios: Ratios) -> Band:
    """10th and 90th percentile of all rows, every source with the same total weight."""
    values = [ratio for rows in ratios.values() for ratio in rows]
    weights = [1 / len(rows) for rows in ratios.values() for _ in rows]
    low, high = quantiles(values, weights, (_LOW, _HIGH))
    return low, high


def widest_band(ratios: Ratios) -> Band:
    """From the lowest 10th to the highest 90th percentile of any source."""
    lows, highs = zip(*(source_band(rows) for rows in ratios.values()), strict=True)
    return min(lows), max(highs)


def coverage(ratios: Sequence[float], band: Band) -> float:
    """The share of rows inside a band."""
    return sum(band[0] <= ratio <= band[1] for ratio in ratios) / len(ratios)


def left_out(
    ratios: Ratios, band_of: Callable[[Ratios], Band]
) -> Iterator[tuple[str, Band, float]]:
    """Each source, the band of all the others, and how much of the source lies inside."""
    for source, rows in ratios.items():
        band = band_of({other: ratios[other] for other in ratios if other != source})
        yield source, band, coverage(rows, band)


def compare(rows: Sequence[Row]) -> tuple[list[Comparison], dict[str, Counter[str]]]:
    """Every row that can be priced, and how many of each source are skipped, by reason."""
    compared: list[Comparison] = []
    skipped: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        job = job_of(row)
        if isinstance(job, Job):
            compared.append(_priced(job))
        else:
            skipped[row.stack or "not stated"][job] += 1
    return compared, skipped


def _priced(job: Job) -> Comparison:
    device = job.step_model.cluster.accelerator.name
    row = job.row
    return Comparison(row.id, job.source, row.problem, device, job.measured_s, job.predicted_s())


def by_source(compared: Sequence[Comparison]) -> dict[str, list[float]]:
    """Ratios by source, sources in alphabetic order."""
    found: dict[str, list[float]] = {name: [] for name in sorted({c.source for c in compared})}
    for comparison in compared:
        found[comparison.source].append(comparison.ratio)
    return found


def within_problems(compared: Sequence[Comparison]) -> list[float]:
    """Ratios over the median ratio of their problem, of problems with several layouts."""
    problems: dict[str, list[float]] = defaultdict(list)
    for comparison in compared:
        if comparison.problem is not None:
            problems[comparison.problem].append(comparison.ratio)
    several = [ratios for ratios in problems.values() if len(ratios) > 1]
    return [ratio / statistics.median(ratios) for ratios in several for ratio in ratios]


def report(
    compared: Sequence[Comparison], skipped: Mapping[str, Counter[str]], *, with_rows: bool
) -> Iterator[str]:
    """Lines for people."""
    if with_rows:
        for c in sorted(compared, key=lambda c: (c.source, c.ratio)):
            yield (
                f"{c.ratio:6.3f}  {c.measured_s:9.3f} s measured  {c.predicted_s:9.3f} s predicted"
                f"  {c.source}  {c.row_id}"
            )
        yield ""
    yield from _summary(compared)
    yield ""
    yield from _skips(skipped)
    ratios = by_source(compared)
    if len(ratios) > 1:
        yield ""
        yield from _bands(ratios)
    relative = within_problems(compared)
    if relative:
        low, high = source_band(relative)
        yield ""
        yield f"within one problem ({len(relative)} rows): {low:.3f} .. {high:.3f}"


def _summary(compared: Sequence[Comparison]) -> Iterator[str]:
    yield f"{'source':<22} {'rows':>4}  median    p10    p90   MAPE  accelerators"
    for source, ratios in by_source(compared).items():
        own = [c for c in compared if c.source == source]
        low, high = source_band(ratios)
        error = statistics.fmean(abs(c.predicted_s / c.measured_s - 1) for c in own)
        devices = ", ".join(sorted({c.accelerator for c in own}))
        yield (
            f"{source:<22} {len(own):>4} {statistics.median(ratios):>7.3f} {low:>6.3f} {high:>6.3f}"
            f" {error:>6.1%}  {devices}"
        )


def _skips(skipped: Mapping[str, Counter[str]]) -> Iterator[str]:
    for source in sorted(skipped):
        reasons = (f"{count} {reason}" for reason, count in skipped[source].most_common())
        yield f"skipped of {source}: {'; '.join(reasons)}"


def _bands(ratios: Ratios) -> Iterator[str]:
    for name, band_of in (("pooled", pooled_band), ("widest", widest_band)):
        low, high = band_of(ratios)
        yield f"{name} band: {low:.3f} .. {high:.3f}"
        shares = []
        for source, (other_low, other_high), share in left_out(ratios, band_of):
            shares.append(share)
            yield f"  without {source:<22} {other_low:.3f} .. {other_high:.3f} covers {share:.0%}"
        yield f"  mean coverage of the source left out: {statistics.fmean(shares):.0%}"


def main(arguments: Sequence[str]) -> int:
    """Print the report; 0 also where there is no file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="published measurements, JSON")
    parser.add_argument("--rows", action="store_true", help="list every row as well")
    options = parser.parse_args(arguments)
    if not options.runs.is_file():
        sys.stdout.write(f"skipped: there is no file {options.runs}\n")
        return 0
    values = json.loads(options.runs.read_text(encoding="utf-8"))
    compared, skipped = compare(TypeAdapter(list[Row]).validate_python(values))
    sys.stdout.writelines(f"{line}\n" for line in report(compared, skipped, with_rows=options.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
