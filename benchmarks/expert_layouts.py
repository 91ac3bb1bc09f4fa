"""Layouts that experts tuned and published, beside the optimum that is planned for the same job.

    python -m benchmarks.expert_layouts [--data DIR] [--seconds S] [--write]

The rows are those of `benchmarks.revealed_preference`. Every job (model, devices, batch, sequences,
precision, software with what it lacks) is planned once over the whole space, and each row's layout
is priced by the same cost model. Where the row is predicted clearly slower than the optimum, the
choices in which they differ are changed one at a time, from the row's to the optimum's, to see
which makes the difference. With ``--write`` the tables become ``benchmarks/expert_layouts.md``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.revealed_preference import (
    DATA,
    MARGIN,
    SOURCES,
    fastest_of_jobs,
    layout_words,
    tuned_jobs,
)
from shardwright.planner.engine import Found, engine_for
from shardwright.planner.exporters.rules import broken_target_rules
from shardwright.planner.layouts import layout_of, named_choices
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.planner.validation.choose import Choice, Predictor, Pricer, choose
from shardwright.planner.validation.pricers import default_pricer
from shardwright.planner.validation.problem import Case, CaseMaker
from shardwright.planner.validation.results import Job, prepare
from shardwright.planner.validation.rows import read_runs
from shardwright.planner.validation.stack_fits import run_defaults
from shardwright.specs import Breakdown, Layout, Prediction, ShardwrightError
from shardwright.specs.units import format_seconds

TARGET = Path("benchmarks/expert_layouts.md")
WANTED = 0.7
"""Of the rows, that are to be within `MARGIN` of the optimum."""
SECONDS = 5.0
"""Of search for each job."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp", "sequence_parallel"),
    "cp": ("cp", "cp_kind"),
    "pp": ("pp", "vpp", "schedule"),
    "ep": ("ep", "etp"),
    "micro_batch": ("micro_batch",),
    "vpp, schedule": ("vpp", "schedule"),
    "zero": ("zero", "reshard_after_forward"),
    "recompute": ("recompute",),
    "offload": ("offload",),
    "loss_chunks": ("loss_chunks",),
    "rank_order": ("rank_order",),
    "stages": ("stages",),
}
"""What is changed together as one choice."""
MOST_TOGETHER = 3
"""Choices that are changed at once."""
_FOLLOWING = ("dp", "compile", "zero_shard_degree", "expert_zero_shard_degree")
"""What is not carried over: it follows from the rest, or is the software's."""
_WEIGHT = ("none", "selective", "full")

Planner = Callable[[Problem, float], Found]


@dataclass(frozen=True, slots=True)
class Change:
    """Choices of a row's layout in place of which the optimum's are put."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    """Before and after."""
    ratio: float
    """The step before over that after."""
    term: str
    """Of the step, what changes most."""
    term_s: tuple[float, float]
    """Before and after."""

    @property
    def words(self) -> str:
        before, after = map(format_seconds, self.term_s)
        changed = ", ".join(
            f"{name} {value}" for name, value in zip(self.names, self.values, strict=True)
        )
        return f"{changed}: x {1 / self.ratio:.3f}, {self.term} {before} -> {after}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row's layout beside the optimum of its job."""

    id: str
    stack: str
    measured_s: float
    published: Choice
    optimum: Layout
    predicted: Prediction
    """Of the optimum."""
    gap: float
    """By how much another may be better than that, at the most."""
    broken: tuple[str, ...]
    """Rules of the software that the optimum breaks."""
    change: Change | None = None
    """Where the row is not close: the choice that makes the difference."""
    fastest: tuple[str, float] | None = None
    """The source's fastest run of the job, of any release, and its step over that of this row."""

    @property
    def ratio(self) -> float:
        """The row's predicted step over the optimum's."""
        return self.published.prediction.step_time_s / self.predicted.step_time_s

    @property
    def is_close(self) -> bool:
        return self.ratio <= 1.0 + MARGIN

    @property
    def is_close_for_sure(self) -> bool:
        """Also to the best that may have been missed."""
        return self.ratio <= (1.0 + MARGIN) * (1.0 - self.gap)


# Which choice makes the difference


def decisive(problem: Problem, model: Predictor, row: Choice, best: Choice) -> Change:
    """The fewest choices of ``best`` that alone bring the row at least half of the way, of those
    the ones that save most; else the most that any `MOST_TOGETHER` bring, or all where none do."""
    own, others = named_choices(row.layout), named_choices(best.layout)
    names = [
        name for name, keys in CHOICES.items() if any(own[key] != others[key] for key in keys)
    ]  # fmt: skip
    total = math.log(row.prediction.step_time_s / best.prediction.step_time_s)
    most: Change | None = None
    for count in range(1, MOST_TOGETHER + 1):
        for some in itertools.combinations(names, count):
            found = changed(problem, model, row, others, some)
            if found is not None and found.ratio > max(1.0, most.ratio if most else 1.0):
                most = found
        if most is not None and math.log(most.ratio) >= total / 2:
            break
    return most or _change(row, best.prediction, own, others, tuple(names))


def changed(
    problem: Problem, model: Predictor, base: Choice, others: Mapping[str, ChoiceValue],
    names: tuple[str, ...],
) -> Change | None:  # fmt: skip
    """``base`` with some of the choices of another; None where that breaks a rule or does not
    fit."""
    own = named_choices(base.layout)
    keys = [key for name in names for key in CHOICES[name]]
    layout = _with(problem, own, {key: others[key] for key in keys})
    if layout is None:
        return None
    try:
        after = model.predict(layout)
    except ShardwrightError:
        return None
    if after.memory_verdict == "does_not_fit":
        return None
    return _change(base, after, own, others, names)


def _change(
    base: Choice, after: Prediction, own: Mapping[str, ChoiceValue],
    others: Mapping[str, ChoiceValue], names: tuple[str, ...],
) -> Change:  # fmt: skip
    values = tuple(
        f"{_words(own, CHOICES[name][0])} -> {_words(others, CHOICES[name][0])}" for name in names
    )
    term, term_s = dominant_term(base.prediction.breakdown, after.breakdown)
    ratio = base.prediction.step_time_s / after.step_time_s
    return Change(names, values, ratio, term, term_s)


def _words(choices: Mapping[str, ChoiceValue], name: str) -> str:
    if name == "stages":
        return "own"
    parts = str(choices[name]).split("/")
    return "by stage" if len(set(parts)) > 1 else parts[0]


def _with(
    problem: Problem, own: Mapping[str, ChoiceValue], changed: Mapping[str, ChoiceValue]
) -> Layout | None:
    """A layout with other choices; None where it breaks a rule."""
    choices = {**own, **changed}
    compiled = choices["compile"]
    for name in _FOLLOWING:
        choices.pop(name)
    if compiled:
        choices["compile"] = True
    if choices["tp"] == 1:
        choices["sequence_parallel"] = False
    if choices["pp"] == 1:
        choices |= {"schedule": "none", "vpp": 1}
    elif choices["schedule"] == "none":
        choices["schedule"] = "1f1b"
    stages = choices["stages"]
    num_stages = int(str(choices["pp"])) * int(str(choices["vpp"]))
    if isinstance(stages, tuple) and len(stages) != num_stages:
        choices.pop("stages")
    policies = str(choices["recompute"])
    if policies.count("/") not in (0, num_stages - 1):
        choices["recompute"] = _heaviest(policies)
    try:
        layout = layout_of(problem, choices)
    except (ShardwrightError, ValueError):
        return None
    broken = layout.violations(problem.model, problem.cluster, problem.training)
    return None if broken else layout


def _heaviest(policies: str) -> str:
    """Of policies by stage the one that recomputes most, in all of a stage."""
    heaviest = max(policies.split("/"), key=lambda one: _WEIGHT.index(one.partition(":")[0]))
    return "full" if heaviest.startswith("full") else heaviest


def dominant_term(before: Breakdown, after: Breakdown) -> tuple[str, tuple[float, float]]:
    """The part of the step that changes most, and its seconds before and after."""
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in Breakdown.model_fields}
    name = max(pairs, key=lambda one: abs(pairs[one][0] - pairs[one][1]))
    return name, pairs[name]


# Rows


def plan(problem: Problem, seconds: float) -> Found:
    """The optimum of a job, within so many seconds."""
    return engine_for(problem).search(Constraints(top=1, time_limit_s=seconds))


def judge(job: Job, model: Predictor, found: Found) -> Verdict:
    """A row beside the optimum of its job.

    Raises:
        ShardwrightError: the cost model describes none of the row's layouts.
    """
    case, row = job.case, job.row
    published = choose(model, job.layouts, job.spares)
    best = found.ranking[0]
    assert row.step_time_s is not None
    verdict = Verdict(
        row.id, row.stack or "", row.step_time_s, published, best.layout, best.prediction,
        found.certificate.gap, _broken(case, best.layout),
    )  # fmt: skip
    if verdict.is_close:
        return verdict
    optimum = Choice(best.layout, best.prediction, 0)
    return replace(verdict, change=decisive(_problem(case), model, published, optimum))


def _broken(case: Case, layout: Layout) -> tuple[str, ...]:
    target = SOURCES[case.row.stack or ""].target
    if target is None:
        return ()
    found = broken_target_rules(target, layout, case.model, case.training)
    return tuple(sorted({one.rule for one in found}))


def _problem(case: Case) -> Problem:
    return Problem(case.model, case.training, case.profile, case.software)


def _key(job: Job) -> object:
    case = job.case
    return (
        case.model.content_hash(), case.training, case.profile.content_hash(), case.software
    )  # fmt: skip


def judge_all(
    jobs: Sequence[Job], pricer: Pricer, planner: Planner, seconds: float
) -> tuple[list[Verdict], list[str]]:
    """Every row, and those that have no verdict with the reason; equal jobs are planned once."""
    found: list[Verdict] = []
    without: list[str] = []
    fastest = fastest_of_jobs(jobs)
    groups: dict[object, list[Job]] = defaultdict(list)
    for job in jobs:
        groups[_key(job)].append(job)
    for group in groups.values():
        case = group[0].case
        try:
            model = pricer(case.model, case.training, case.profile, case.software)
            planned = planner(_problem(case), seconds)
        except ShardwrightError as error:
            without += [f"{job.row.id}: {error.problem}" for job in group]
            continue
        if not planned.ranking:
            without += [f"{job.row.id}: nothing was found that fits" for job in group]
            continue
        for job in group:
            found.append(replace(judge(job, model, planned), fastest=_beside(job, fastest)))
    return found, without


def _beside(job: Job, fastest: Mapping[str, Job]) -> tuple[str, float]:
    other = fastest[job.row.id].row
    assert other.step_time_s is not None
    assert job.row.step_time_s is not None
    return other.id, other.step_time_s / job.row.step_time_s


# Report


def report(verdicts: Sequence[Verdict], without: Sequence[str], seconds: float) -> Iterator[str]:
    """The whole file, line by line."""
    yield "# Layouts that experts tuned, beside the planned optimum\n"
    yield (
        "Written by `python -m benchmarks.expert_layouts --write`. Each job is planned over the"
        f" whole space for up to\n{seconds:g} s, without what its software lacks. A row is close"
        f" where its layout is predicted at most {MARGIN:.0%} slower\nthan the optimum. What a row"
        " leaves open is the cheapest choice that fits. Prices are the catalogue's.\n"
    )
    yield f"**{_fraction(verdicts)} of rows are close** (wanted: {WANTED:.0%}).\n"
    yield "| stack | rows | close | close for sure | median ratio | worst | proven optima |"
    yield "|---|---|---|---|---|---|---|"
    for stack in (*sorted({one.stack for one in verdicts}), None):
        yield _stack_line(stack, verdicts)
    yield (
        "\nRatio: predicted step of the row's layout over that of the optimum. Close for sure:"
        " also to what the search\nmay have missed in its time. Proven: no other layout of the"
        " space is better under the model."
    )
    yield from _retried([one for one in verdicts if not one.is_close])
    yield from _rules(verdicts)
    far = [one for one in verdicts if not one.is_close]
    yield from _kinds(far)
    yield from _rows(far)
    if without:
        yield "\n## Not compared"
        yield from (f"\n- {text}" for text in without)


def _fraction(rows: Sequence[Verdict]) -> str:
    good = sum(one.is_close for one in rows)
    return f"{good} of {len(rows)} ({good / len(rows):.0%})" if rows else "0 of 0"


def _stack_line(stack: str | None, verdicts: Sequence[Verdict]) -> str:
    rows = [one for one in verdicts if stack in (None, one.stack)]
    ratios = [one.ratio for one in rows] or [1.0]
    sure, proven = (
        sum(map(holds, rows))
        for holds in (lambda one: one.is_close_for_sure, lambda one: one.gap == 0.0)
    )
    return (
        f"| {stack or '**all**'} | {len(rows)} | {_fraction(rows)} | {sure} |"
        f" {float(np.median(ratios)):.3f} | {max(ratios):.3f} | {proven} |"
    )


def _retried(far: Sequence[Verdict]) -> Iterator[str]:
    """Rows whose source later ran the job clearly faster: experts had not found the best."""
    count = sum(one.fastest is not None and one.fastest[1] < 1.0 / (1.0 + MARGIN) for one in far)
    yield (
        f"\nOf the {len(far)} rows that are not close, {count} are of jobs that the same source ran"
        f" more than {MARGIN:.0%} faster in\nanother release: there the row was not the best"
        " layout, or the software became faster."
    )


def _rules(verdicts: Sequence[Verdict]) -> Iterator[str]:
    broken = Counter(rule for one in verdicts for rule in one.broken)
    alike = sum(len({entry.policy for entry in one.optimum.recompute}) > 1 for one in verdicts)
    yield (
        f"\nOf the optima, {alike} recompute otherwise on some stages than on others, which"
        " Megatron's and torchtitan's own\nsettings do not express (one setting for all stages);"
        " rules of the software that optima break: "
        + (", ".join(f"{rule} ({count})" for rule, count in broken.most_common()) or "none")
        + "."
    )


def _kinds(far: Sequence[Verdict]) -> Iterator[str]:
    yield f"\n## What makes the difference ({len(far)} rows)\n"
    yield "| stack | choice | term that changes most | rows | median ratio | worst |"
    yield "|---|---|---|---|---|---|"
    kinds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for one in far:
        assert one.change is not None
        kinds[one.stack, " + ".join(one.change.names), one.change.term].append(one.ratio)
    for kind, ratios in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        cells = " | ".join(kind)
        yield f"| {cells} | {len(ratios)} | {float(np.median(ratios)):.3f} | {max(ratios):.3f} |"


def _rows(far: Sequence[Verdict]) -> Iterator[str]:
    yield (
        "\nThe choices: the fewest of the optimum's that alone bring the row at least half of the"
        " way to it, with what is left\nof the row's step; three at most, or all where no three"
        " save. Each is a suspected defect of the model until the\nlayouts were run side by"
        " side.\n"
    )
    yield "| row | layout | predicted / measured | optimum | ratio | gap | choices | fastest run |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in sorted(far, key=lambda row: (-row.ratio, row.id)):
        name, step_ratio = one.fastest or (one.id, 1.0)
        fastest = "itself" if name == one.id else f"{name}: {step_ratio:.2f}"
        assert one.change is not None
        own_s = one.published.prediction.step_time_s
        yield (
            f"| {one.id} | {layout_words(one.published.layout)} | {own_s / one.measured_s:.2f} |"
            f" {layout_words(one.optimum)} | {one.ratio:.3f} | {one.gap:.1%} | {one.change.words} |"
            f" {fastest} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Published layouts beside the planned optimum.")
    parser.add_argument("--data", type=Path, default=DATA, help="holds published_runs.json")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of search for each job")
    parser.add_argument("--write", action="store_true", help=f"write {TARGET}")
    asked = parser.parse_args(arguments)
    path = asked.data / "published_runs.json"
    if not path.exists():
        sys.stderr.write(f"skipped: {path} is not there\n")
        return 0
    items = prepare(read_runs(path).rows, CaseMaker(defaults=run_defaults))
    jobs = [job for job, why_not in tuned_jobs(items) if why_not is None]
    judged = judge_all(jobs, default_pricer(), plan, asked.seconds)
    text = "\n".join(report(*judged, asked.seconds)) + "\n"
    sys.stdout.write(text)
    if asked.write:
        TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
