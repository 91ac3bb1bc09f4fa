"""Fits the catalogue's numbers of stacks, clocks and kernels from published runs.

    python -m benchmarks.fit_stacks ../shared/data/published_runs.json \
        ../shared/data/layout_sweeps_a100.json [--write]

Prints the numbers; with ``--write`` they become ``hardware_profiles/catalogue_data/fitted.json``.
Bands are the 10th and 90th percentile of measured over predicted time of rows that were held out: a
whole stack for software that is not in the catalogue, a stack's model for software that is. The
catalogue carries no numbers of single layer shapes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardwright.cost_models.pricing import body_kinds
from shardwright.hardware_profiles.stacks import Fitted, FittedBand, Seen
from shardwright.planner.validation.cross import HoldOut, held_out
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, Skip, prepare
from shardwright.planner.validation.rows import read_runs
from shardwright.planner.validation.stack_fits import StackStudy, run_defaults

_TARGET = Path("hardware_profiles/catalogue_data/fitted.json")
_UNKNOWN_DEVICE_SPREAD = 0.2
"""Of an accelerator's best rate over its datasheet peak, of the logarithm: the catalogue's measured
fractions lie between 0.51 and 0.97 of the peak."""
_NORMAL_80 = 1.2816


def read_jobs(paths: Sequence[Path]) -> list[Job | Skip]:
    """Every row of the files as a job, or why it is none."""
    maker = CaseMaker(defaults=run_defaults)
    return [item for path in paths for item in prepare(read_runs(path).rows, maker)]


def band(items: Sequence[Job | Skip], study: StackStudy, how: HoldOut) -> FittedBand:
    """Where 80 % of measured over predicted lie, rows held out; fully stated runs only."""
    stated = {item.row.id for item in items if isinstance(item, Job)
              and item.row.is_full_configuration}  # fmt: skip
    results = held_out(items, how, study).results
    ratios = [1.0 / r.ratio for r in results if r.ratio is not None and r.id in stated]
    low, high = np.quantile(ratios, [0.1, 0.9])
    return FittedBand(low=round(float(low), 3), high=round(float(high), 3))


def widened(known: FittedBand) -> FittedBand:
    """For accelerators that were never timed: their best rate is a guess too."""
    more = (_NORMAL_80 * _UNKNOWN_DEVICE_SPREAD) ** 2
    low = math.exp(-math.hypot(math.log(known.low), math.sqrt(more)))
    high = math.exp(math.hypot(math.log(known.high), math.sqrt(more)))
    return FittedBand(low=round(low, 3), high=round(high, 3))


def rounded(fitted: Fitted) -> Fitted:
    """Four digits: more would not survive another month of data."""
    text = json.dumps(fitted.model_dump(mode="json"))
    return Fitted.model_validate(
        json.loads(text, parse_float=lambda digits: float(f"{float(digits):.4g}"))
    )


def reach(jobs: Sequence[Job]) -> Seen:
    """How far timed runs go."""
    timed = [job.case for job in jobs if job.row.step_time_s]
    return Seen(
        num_gpus=max(case.num_gpus for case in timed),
        seq_len=max(case.training.seq_len for case in timed),
        hidden_size=max(case.model.decoder.hidden_size for case in timed),
        blocks=tuple(sorted({kind for case in timed for kind in body_kinds(case.model)})),
    )


def fit_catalogue(items: Sequence[Job | Skip], published: Sequence[Job | Skip]) -> Fitted:
    """The numbers from all rows, the bands from those of ``published``."""
    study = StackStudy([item for item in items if isinstance(item, Job)])
    _, observations, fit = study.made
    numbers = study.numbers(fit.z, np.ones(len(observations), dtype=bool))
    unseen = band(published, study, "stack")
    update = {
        "fitted_from": "benchmarks/fit_stacks.py: published runs and A100 layout sweeps,"
        f" {len(observations)} runs",
        "layers": {},
        "seen": reach(study.jobs),
        "band_seen": band(published, study, "model"),
        "band_unseen": unseen,
        "band_unmeasured": widened(unseen),
    }
    return rounded(numbers.model_copy(update=update))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    published = read_jobs(arguments.runs[:1])
    fitted = fit_catalogue([*published, *read_jobs(arguments.runs[1:])], published)
    text = json.dumps(fitted.model_dump(mode="json"), indent=1) + "\n"
    sys.stdout.write(text)
    if arguments.write:
        _TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
