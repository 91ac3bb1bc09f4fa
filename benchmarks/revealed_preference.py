"""Layouts that experts chose and published, priced beside the layouts one step away.

    python -m benchmarks.revealed_preference [--data DIR] [--write]

Whoever publishes a speed has tried the layouts around it. A cost model that calls one of those
clearly faster is therefore likely wrong there, whatever its error on times that were measured. Each
published layout is priced beside its neighbours: half or double tp, pp, micro-batch and vpp, and
other recomputation; same GPUs, same batch, dp takes up the rest. Only neighbours that obey every
rule, those of the software too, and that are predicted to fit are compared. With ``--write`` the
tables become ``benchmarks/revealed_preference.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.planner.exporters.rules import broken_target_rules
from shardwright.planner.validation.candidates import layouts_of
from shardwright.planner.validation.choose import Choice, Pricer, choose
from shardwright.planner.validation.pricers import default_pricer
from shardwright.planner.validation.problem import Case, CaseMaker
from shardwright.planner.validation.results import Job, Skip, prepare
from shardwright.planner.validation.rows import GIB, read_runs
from shardwright.planner.validation.scores import CLEAR_DIFFERENCE
from shardwright.planner.validation.stack_fits import run_defaults
from shardwright.specs import Breakdown, InputError, Layout, ShardwrightError
from shardwright.specs.layout import ScheduleName
from shardwright.specs.units import format_seconds

DATA = Path("../shared/data")
TARGET = Path("benchmarks/revealed_preference.md")

MARGIN = 0.08
"""By how much a neighbour may be predicted faster: about the error of a single prediction."""
WANTED = 0.8
"""Of the rows, that are to be within `MARGIN`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that experts tuned, and what their software could have run in their place."""

    prefix: str
    """How their ids begin."""
    target: str | None
    """Whose rules its layouts obey, beside our own."""
    policies: tuple[str, ...] = ("none", "selective", "full")
    """Of recomputation."""


SOURCES: Mapping[str, Source] = {
    "megatron-bridge": Source("mbridge-", "megatron-bridge"),
    "megatron-lm-2021": Source("sc21-", "mt-megatronlm", ("none", "full")),
    "megatron-lm-2022": Source("korth-", "mt-megatronlm"),
    "torchtitan": Source("titan-", None),
}
"""By stack. The releases of 2021 and 2022 have the rules of Megatron Core r0.9.0: even stages,
whole heads. Selective recomputation came with that of 2022 (arXiv 2205.05198)."""
_BASELINES = {"deepspeed-zero3-2021": "the baseline of the paper, not its own layout"}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A layout one step away."""

    step: str
    """What differs, as ``tp / 2``."""
    choice: Choice

    @property
    def step_time_s(self) -> float:
        return self.choice.prediction.step_time_s


@dataclass(frozen=True, slots=True)
class Judgement:
    """A published layout beside its neighbours."""

    id: str
    stack: str
    measured_s: float | None
    published: Choice
    neighbours: tuple[Neighbour, ...]
    """Those that are valid and fit."""
    why_not_tuned: str | None
    """None: the layout counts as chosen by experts."""
    fastest: tuple[str, float] | None = None
    """The source's fastest run of the job, and its step over that of this row."""

    @property
    def best(self) -> Neighbour | None:
        return min(self.neighbours, key=lambda one: one.step_time_s, default=None)

    @property
    def ratio(self) -> float:
        """Predicted step of the published layout over that of its best neighbour."""
        assert self.best is not None
        return self.published.prediction.step_time_s / self.best.step_time_s

    @property
    def is_preferred(self) -> bool:
        return self.ratio <= 1.0 + MARGIN

    @property
    def dominant_term(self) -> tuple[str, float]:
        """The part of the step that the best neighbour is predicted to save most of, in seconds."""
        assert self.best is not None
        published, other = self.published.prediction.breakdown, self.best.choice.prediction
        saved = {
            name: getattr(published, name) - getattr(other.breakdown, name)
            for name in Breakdown.model_fields
        }
        name = max(saved, key=lambda one: saved[one])
        return name, saved[name]


# Rows


def tuned_jobs(items: Iterable[Job | Skip]) -> list[tuple[Job, str | None]]:
    """The timed runs of the named sources, each with why experts did not choose it, if so."""
    jobs = [item for item in items if isinstance(item, Job) and _is_of_a_source(item)]
    fastest: dict[object, float] = {}
    for job in jobs:
        problem, seconds = _problem(job), job.row.step_time_s
        assert seconds is not None
        fastest[problem] = min(seconds, fastest.get(problem, seconds))
    return [(job, _why_not(job, fastest[_problem(job)])) for job in jobs]


def _is_of_a_source(job: Job) -> bool:
    row = job.row
    source = SOURCES.get(row.stack or "")
    is_timed = row.kind == "training_run" and not row.is_oom and row.step_time_s is not None
    return source is not None and row.id.startswith(source.prefix) and is_timed


def _problem(job: Job) -> object:
    """What rows have in common that are layouts of one job."""
    return job.row.problem or _job_key(job)


def _job_key(job: Job) -> object:
    """The job itself; a problem may be of one release of the software alone."""
    case = job.case
    return job.row.stack, id(case.model), case.training, case.accelerator, case.num_gpus


def _why_not(job: Job, fastest_s: float) -> str | None:
    framework = job.case.software.framework
    if framework in _BASELINES:
        return _BASELINES[framework]
    assert job.row.step_time_s is not None
    if job.row.step_time_s > (1.0 + CLEAR_DIFFERENCE) * fastest_s:
        return "the same source has a clearly faster layout of the same job"
    return None


# Neighbours


def neighbours_of(
    case: Case, layout: Layout, policies: Sequence[str]
) -> Iterator[tuple[str, Case]]:
    """Each step away from a layout as a case that states it whole; not all of them are valid.

    ``policies``: of recomputation, that the software knows.
    """
    stated = _stated(layout, case)
    for factor, sign in ((0.5, "/ 2"), (2.0, "x 2")):
        for name, change in _DEGREES.items():
            changed = change(layout, factor)
            if changed is not None:
                yield f"{name} {sign}", _with(case, stated | changed)
    own = {entry.policy for entry in layout.recompute}
    for policy in policies:
        if own != {policy}:
            yield f"recompute {policy}", _with(case, stated | {
                "recompute": policy, "recompute_modules": None, "as_printed": None,
            })  # fmt: skip


def _stated(layout: Layout, case: Case) -> dict[str, Any]:
    """A layout as the fields of a row; what is shared out again stays open."""
    row = case.row.parallel
    policies = {entry.policy for entry in layout.recompute}
    modules = layout.recompute[0].modules
    return {
        "tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "ep": layout.ep,
        "etp": layout.etp, "vpp": layout.vpp, "zero": layout.zero or row.zero,
        "sequence_parallel": layout.sequence_parallel, "micro_batch": layout.micro_batch,
        "num_microbatches": None, "schedule": layout.schedule and str(layout.schedule),
        "recompute": policies.pop() if len(policies) == 1 else None,
        "recompute_modules": modules, "as_printed": row.as_printed,
    }  # fmt: skip


def _with(case: Case, fields: Mapping[str, Any]) -> Case:
    parallel = case.row.parallel.model_copy(update=dict(fields))
    return replace(case, row=case.row.model_copy(update={"parallel": parallel}))


def _times(value: int, factor: float) -> int | None:
    """None where there is no such whole number; halves are rounded down."""
    changed = int(value * factor)
    return changed if changed >= 1 else None


def _at_cost_of_dp(layout: Layout, name: str, factor: float) -> dict[str, Any] | None:
    degree = _times(getattr(layout, name), factor)
    if degree is None:
        return None
    dp, over = divmod(layout.dp * getattr(layout, name), degree)
    return None if over or not dp else {name: degree, "dp": dp}


def _tp(layout: Layout, factor: float) -> dict[str, Any] | None:
    changed = _at_cost_of_dp(layout, "tp", factor)
    if changed is None:
        return None
    if changed["tp"] == 1 or layout.tp == 1:
        changed["sequence_parallel"] = None if changed["tp"] > 1 else False
    return changed


def _pp(layout: Layout, factor: float) -> dict[str, Any] | None:
    changed = _at_cost_of_dp(layout, "pp", factor)
    if changed is not None and 1 in (changed["pp"], layout.pp):
        changed |= {"vpp": 1, "schedule": None if changed["pp"] == 1 else "1f1b"}
    return changed


def _micro_batch(layout: Layout, factor: float) -> dict[str, Any] | None:
    changed = _times(layout.micro_batch, factor)
    return None if changed is None else {"micro_batch": changed}


def _vpp(layout: Layout, factor: float) -> dict[str, Any] | None:
    usual = (ScheduleName.ONE_F_ONE_B, ScheduleName.INTERLEAVED)
    changed = _times(layout.vpp, factor)
    if layout.schedule not in usual or changed is None:
        return None
    return {"vpp": changed, "schedule": "1f1b" if changed == 1 else "interleaved-1f1b"}


_DEGREES: Mapping[str, Callable[[Layout, float], dict[str, Any] | None]] = {
    "tp": _tp, "pp": _pp, "micro_batch": _micro_batch, "vpp": _vpp,
}  # fmt: skip


def is_allowed(case: Case, layout: Layout, target: str | None) -> bool:
    """Whether a layout obeys our rules and those of the software that ran."""
    if layout.violations(case.model, case.profile.devices, case.training):
        return False
    return not (target and broken_target_rules(target, layout, case.model, case.training))


def judge(job: Job, pricer: Pricer, why_not_tuned: str | None = None) -> Judgement:
    """Price a row and its neighbours.

    Raises:
        ShardwrightError: the cost model describes none of the row's layouts.
    """
    case, stack = job.case, job.row.stack or ""
    model = pricer(case.model, case.training, case.profile, case.software)
    published = choose(model, job.layouts, job.spares)
    source = SOURCES[stack]
    found = []
    for step, other in neighbours_of(case, published.layout, source.policies):
        try:
            allowed = [one for one in layouts_of(other) if is_allowed(case, one, source.target)]
        except InputError:
            continue
        if not allowed:
            continue
        choice = choose(model, allowed)
        if choice.fits and choice.layout != published.layout:
            found.append(Neighbour(step, choice))
    measured_s = job.row.step_time_s
    return Judgement(job.row.id, stack, measured_s, published, tuple(found), why_not_tuned)


# Report


def report(judgements: Sequence[Judgement], unpriced: Sequence[str]) -> Iterator[str]:
    """The whole file, line by line."""
    compared = [one for one in judgements if one.neighbours]
    tuned = [one for one in compared if one.why_not_tuned is None]
    yield "# Layouts that experts chose, beside their neighbours\n"
    yield (
        "Written by `python -m benchmarks.revealed_preference --write`. A published layout is"
        f" preferred if no\nneighbour one step away is predicted more than {MARGIN:.0%} faster"
        " (half or double tp, pp, micro-batch,\nvpp; other recomputation; same GPUs and batch;"
        " valid and predicted to fit). What a row leaves open,\nabove all the recomputation of"
        " megatron-bridge, is the cheapest choice that fits, so that no neighbour\ncan be better"
        " in it. Prices are the catalogue's, which were fitted to these rows among others.\n"
    )
    yield f"**{_fraction(tuned)} of tuned rows are preferred** (wanted: {WANTED:.0%}).\n"
    yield "| stack | tuned rows | preferred | median ratio | worst | all rows | preferred |"
    yield "|---|---|---|---|---|---|---|"
    for stack in (*sorted({one.stack for one in compared}), None):
        yield _stack_line(stack, compared)
    yield (
        "\nRatio: predicted step of the published layout over that of its best neighbour; below"
        " 1 the published\nlayout is predicted to be the best. Not tuned:"
    )
    reasons = Counter(one.why_not_tuned for one in compared if one.why_not_tuned)
    yield from (f"\n- {count} rows: {reason}" for reason, count in reasons.most_common())
    yield from _defects([one for one in tuned if not one.is_preferred])
    yield from _refused(judgements)
    alone = [one.id for one in judgements if not one.neighbours]
    yield f"\n## Not compared\n\n{len(alone)} rows have no neighbour that is valid and fits."
    yield from (f"\n- {text}" for text in unpriced)


def _fraction(rows: Sequence[Judgement]) -> str:
    good = sum(one.is_preferred for one in rows)
    return f"{good} of {len(rows)} ({good / len(rows):.0%})" if rows else "0 of 0"


def _stack_line(stack: str | None, compared: Sequence[Judgement]) -> str:
    rows = [one for one in compared if stack in (None, one.stack)]
    tuned = [one for one in rows if one.why_not_tuned is None]
    ratios = [one.ratio for one in tuned]
    middle, worst = (float(np.median(ratios)), max(ratios)) if ratios else (1.0, 1.0)
    return (
        f"| {stack or '**all**'} | {len(tuned)} | {_fraction(tuned)} | {middle:.3f} |"
        f" {worst:.3f} | {len(rows)} | {_fraction(rows)} |"
    )


def fastest_of_jobs(jobs: Sequence[Job]) -> dict[str, Job]:
    """For each row the fastest run of its job, whatever the release of the software."""
    groups: dict[object, list[Job]] = defaultdict(list)
    for job in jobs:
        groups[_job_key(job)].append(job)
    return {
        job.row.id: min(group, key=lambda one: (one.row.step_time_s or 0.0, one.row.id))
        for group in groups.values()
        for job in group
    }


def _defects(rows: Sequence[Judgement]) -> Iterator[str]:
    """Rows with a clearly better neighbour: kinds first, then one by one."""
    yield f"\n## Suspected defects of the model ({len(rows)})\n"
    if not rows:
        return
    kinds: dict[tuple[str, str, str], list[Judgement]] = defaultdict(list)
    for one in rows:
        assert one.best is not None
        kinds[one.stack, one.best.step, one.dominant_term[0]].append(one)
    yield "| stack | best neighbour | dominant term | rows | median ratio | worst |"
    yield "|---|---|---|---|---|---|"
    for kind, some in sorted(kinds.items(), key=lambda item: -len(item[1])):
        ratios = [one.ratio for one in some]
        cells = " | ".join(kind)
        yield f"| {cells} | {len(some)} | {float(np.median(ratios)):.3f} | {max(ratios):.3f} |"
    yield (
        "\nThe dominant term is what the neighbour is predicted to save most seconds of. "
        "Where the published step itself is predicted too slow, the error is in that; where it is"
        " right,\nin the neighbour's, or experts did not choose: the last column is the source's"
        " fastest run of the same job,\nof any release, and its step over that of the row."
    )
    yield (
        "\n| row | layout | predicted / measured | neighbour | ratio |"
        " dominant term: published -> neighbour | peak GiB | of |"
        " fastest run |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in sorted(rows, key=lambda row: -row.ratio):
        yield _defect_line(one)


def _defect_line(one: Judgement) -> str:
    assert one.best is not None
    term, _ = one.dominant_term
    before, after = (
        format_seconds(getattr(choice.prediction.breakdown, term))
        for choice in (one.published, one.best.choice)
    )
    own = one.published.prediction
    whole = format_seconds(own.step_time_s)
    name, step_ratio = one.fastest or (one.id, 1.0)
    fastest = "itself" if name == one.id else f"{name}: {step_ratio:.2f}"
    known = f"{own.step_time_s / one.measured_s:.2f}" if one.measured_s else "-"
    peaks = " -> ".join(
        f"{max(choice.prediction.peak_memory_bytes) / GIB:.0f}"
        for choice in (one.published, one.best.choice)
    )
    return (
        f"| {one.id} | {layout_words(one.published.layout)} | {known} | {one.best.step} |"
        f" {one.ratio:.3f} | {term}: {before} -> {after} of {whole} | {peaks} |"
        f" {own.memory_capacity_bytes / GIB:.0f} | {fastest} |"
    )


def layout_words(layout: Layout) -> str:
    """The degrees that matter here, briefly."""
    names = ("tp", "cp", "pp", "vpp", "dp", "ep")
    degrees = [f"{name}{size}" for name in names if (size := getattr(layout, name)) > 1]
    policy = "/".join(dict.fromkeys(entry.policy for entry in layout.recompute))
    return " ".join([*degrees, f"mb{layout.micro_batch}", policy])


def _refused(judgements: Sequence[Judgement]) -> Iterator[str]:
    """Published layouts that ran, and are predicted not to fit: their neighbours are held to a
    limit that they are not."""
    refused = Counter(one.stack for one in judgements if not one.published.fits)
    yield "\n## Published layouts that are predicted not to fit\n"
    yield from (f"- {stack}: {count}" for stack, count in sorted(refused.items()))
    if not refused:
        yield "None."


def judge_all(items: Sequence[Job | Skip], pricer: Pricer) -> tuple[list[Judgement], list[str]]:
    """Every row of the sources, and those that could not be priced with the reason."""
    found: list[Judgement] = []
    unpriced: list[str] = []
    tuned = tuned_jobs(items)
    fastest = fastest_of_jobs([job for job, _ in tuned])
    for job, why_not in tuned:
        other = fastest[job.row.id].row
        assert other.step_time_s is not None
        assert job.row.step_time_s is not None
        beside = (other.id, other.step_time_s / job.row.step_time_s)
        try:
            found.append(replace(judge(job, pricer, why_not), fastest=beside))
        except ShardwrightError as error:
            unpriced.append(f"{job.row.id}: {error.problem}")
    return found, unpriced


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Published layouts beside their neighbours.")
    parser.add_argument("--data", type=Path, default=DATA, help="holds published_runs.json")
    parser.add_argument("--write", action="store_true", help=f"write {TARGET}")
    asked = parser.parse_args(arguments)
    path = asked.data / "published_runs.json"
    if not path.exists():
        sys.stderr.write(f"skipped: {path} is not there\n")
        return 0
    items = prepare(read_runs(path).rows, CaseMaker(defaults=run_defaults))
    text = "\n".join(report(*judge_all(items, default_pricer()))) + "\n"
    sys.stdout.write(text)
    if asked.write:
        TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
