"""Plans of jobs whose layouts were swept and measured, beside those layouts.

    python -m benchmarks.sweep_plans [--data DIR] [--seconds S] [--write]

Restricted to the measured layouts, that is to each of them in turn, the plan must be the layout
that ``shardwright validate`` picks. Unrestricted it must not be predicted slower than any of them.
With ``--write`` the table becomes ``benchmarks/sweep_plans.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.planner.engine import Engine, engine_for
from shardwright.planner.layouts import layout_in_words, named_choices
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.validation.pricers import default_pricer
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, RowResult, Skip, evaluate, prepare
from shardwright.planner.validation.rows import read_runs
from shardwright.planner.validation.scores import problem_scores
from shardwright.planner.validation.stack_fits import run_defaults
from shardwright.specs import Layout

DATA = Path("../shared/data")
SWEEPS = "layout_sweeps_a100.json"
TARGET = Path("benchmarks/sweep_plans.md")
SECONDS = 10.0
"""Of search for each problem."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Swept:
    """One problem, planned restricted and unrestricted."""

    problem: str
    num_layouts: int
    """That were measured."""
    validated: str
    """The row that `validate` picks."""
    picked: str | None
    """The row whose layout is the plan when restricted; None where nothing fits."""
    is_same_layout: bool
    """Whether both have the same layout."""
    measured_best_s: float
    """The least prediction of a measured layout."""
    planned_s: float
    """The prediction of the unrestricted plan."""
    gap: float
    plan: str

    @property
    def is_never_slower(self) -> bool:
        return self.planned_s <= self.measured_best_s * (1.0 + ROUNDING)


def problems_of(items: Sequence[Job | Skip]) -> dict[str, list[Job]]:
    """Jobs with a measured step by their problem, in alphabetic order."""
    found: dict[str, list[Job]] = defaultdict(list)
    for item in items:
        is_timed = isinstance(item, Job) and item.row.step_time_s and not item.row.is_oom
        if is_timed and isinstance(item, Job) and item.row.problem:
            found[item.row.problem].append(item)
    return dict(sorted(found.items()))


def compare(problem: str, jobs: Sequence[Job], seconds: float = SECONDS) -> Swept:
    """Plan one problem both ways.

    Raises:
        ValueError: nothing fits, or no row can be priced.
    """
    results = evaluate(jobs, default_pricer())
    (score,) = problem_scores(results)
    if score.picked_id is None:
        raise ValueError(f"no row of {problem} can be priced")
    layouts = {one.id: one.layout for one in results if one.layout is not None}
    engines: dict[object, Engine] = {}
    picked = _restricted_pick(jobs, layouts, engines)
    plans = [engine.search(Constraints(top=1, time_limit_s=seconds)) for engine in engines.values()]
    found = min(
        (plan for plan in plans if plan.ranking),
        key=lambda plan: plan.ranking[0].prediction.step_time_s,
    )
    best = found.ranking[0]
    return Swept(
        problem, score.num_layouts, score.picked_id, picked,
        picked is not None and layouts[picked] == layouts[score.picked_id],
        min(_predicted(results)), best.prediction.step_time_s, found.certificate.gap,
        layout_in_words(best.layout),
    )  # fmt: skip


def _predicted(results: Sequence[RowResult]) -> Iterator[float]:
    for one in results:
        if one.predicted_step_time_s is not None:
            yield one.predicted_step_time_s


def _restricted_pick(
    jobs: Sequence[Job], layouts: dict[str, Layout], engines: dict[object, Engine]
) -> str | None:
    """The row whose layout is the best plan of all that are each fixed to a measured layout."""
    steps: list[tuple[float, str]] = []
    for job in jobs:
        layout = layouts.get(job.row.id)
        if layout is None:
            continue
        case = job.case
        key = (case.model.content_hash(), case.training, case.software)
        if key not in engines:
            problem = Problem(case.model, case.training, case.profile, case.software)
            engines[key] = engine_for(problem)
        found = engines[key].search(Constraints(fixed=named_choices(layout), top=1))
        if found.ranking:
            steps.append((found.ranking[0].prediction.step_time_s, job.row.id))
    return min(steps)[1] if steps else None


def report(swept: Sequence[Swept]) -> Iterator[str]:
    """The whole file, line by line."""
    same = sum(one.is_same_layout for one in swept)
    never = sum(one.is_never_slower for one in swept)
    proven = sum(one.gap == 0.0 for one in swept)
    yield "# Plans of jobs whose layouts were swept\n"
    yield (
        "Written by `python -m benchmarks.sweep_plans --write` from the 815 measured runs of vTrain"
        " (MICRO 2024).\nRestricted to the measured layouts, the plan is the one that `validate`"
        f" picks on {same} of {len(swept)} problems.\nUnrestricted, it is never predicted slower"
        f" than any measured layout on {never} of {len(swept)}; {proven} of these plans are\n"
        "proven. A row may repeat another's layout; then its name differs, the layout does not.\n"
    )
    yield (
        "| problem | layouts | pick of validate | restricted plan"
        " | best measured layout, predicted s | plan, s | gap |"
    )
    yield "|---|---|---|---|---|---|---|"
    for one in swept:
        mark = "" if one.is_same_layout and one.is_never_slower else " **differs**"
        yield (
            f"| {one.problem}{mark} | {one.num_layouts} | {one.validated} | {one.picked} |"
            f" {one.measured_best_s:.4g} | {one.planned_s:.4g} | {one.gap:.1%} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plans beside layouts that were swept.")
    parser.add_argument("--data", type=Path, default=DATA, help=f"holds {SWEEPS}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of search for each problem")
    parser.add_argument("--write", action="store_true", help=f"write {TARGET}")
    asked = parser.parse_args(arguments)
    path = asked.data / SWEEPS
    if not path.exists():
        sys.stderr.write(f"skipped: {path} is not there\n")
        return 0
    items = prepare(read_runs(path).rows, CaseMaker(defaults=run_defaults))
    swept = [compare(name, jobs, asked.seconds) for name, jobs in problems_of(items).items()]
    text = "\n".join(report(swept)) + "\n"
    sys.stdout.write(text)
    if asked.write:
        TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
