"""``shardwright calibrate RUN... -o profile.json``: learn a cluster's and a stack's numbers."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from rich.table import Table

    from shardwright.cli._inputs import Training
    from shardwright.cli._runs import OneStep, RunReader
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.planner.calibration.learn import Learned, Lesson
    from shardwright.planner.calibration.logs.jobs import LogJob
    from shardwright.planner.calibration.runs import Selection
    from shardwright.planner.validation.results import Job, Skip

MOST_ROWS = 20
"""Runs in the table for people, the worst after calibration first; ``--json`` has all."""
MOST_NAMED = 5
"""Reasons for leaving runs out, and runs that are far off, that are named."""


def calibrate(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Training logs; JSON files of runs; folders of `run --save`.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the profile to this file.")
    ] = Path("profile.json"),
    cluster: Annotated[
        str | None, typer.Option(metavar="C", help="Where the runs ran; default as each says.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A profile to add these runs to.")
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Their software; others are left out."),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hugging Face configs by name, beyond the presets."),
    ] = None,
    step_time: Annotated[
        str | None, typer.Option(metavar="T", help="One measured step, such as 12.3s.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Its model, or that of the logs.")
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(metavar="L", help="Its layout, or that of the logs: one for all, or each's."),
    ] = None,
    gpus: _options.Gpus = None,
    nodes: _options.Nodes = None,
    global_batch: _options.GlobalBatch = None,
    seq_len: _options.SeqLen = None,
    precision: _options.Precision = None,
    optimizer: _options.Optimizer = None,
    gradient_dtype: _options.GradientDType = None,
    trainable: _options.Trainable = "full",
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Learn a software stack's numbers from measured steps, and write them into a profile."""
    from shardwright.cli import _inputs, _output, _runs, validate
    from shardwright.cli.cluster import check_new
    from shardwright.specs.plan import write_text

    check_new(output, force=force, why="what it was taught would be lost")
    training = _inputs.Training(
        global_batch, seq_len, precision, optimizer, trainable, None, gradient_dtype
    )
    logs = [path for path in runs or [] if _runs.is_log(path)]
    options = _runs.LogOptions(training, model, tuple(layout or ()))
    step = None if logs else one_step(step_time, model, layout, training)
    check_logs(logs, step_time)
    base = base_profile(cluster, profile, gpus, nodes)
    configs = {} if models is None else validate.read_configs(models)
    reader = _runs.RunReader(base, stack, configs)
    others = [path for path in runs or [] if path not in logs]
    taught = teach(reader, others, step, stack, reader.read_logs(logs, options))
    write_text(output, taught.profile.to_json())
    if as_json:
        _output.print_json(as_dict(taught, output))
    else:
        _print(taught, output)


@dataclass(frozen=True, slots=True)
class Taught:
    """What was learned, from which runs, and the profile that now knows it."""

    profile: HardwareProfile
    lesson: Lesson
    chosen: Selection
    assumed: dict[str, str]
    logs: tuple[LogJob, ...] = ()


def check_logs(logs: Sequence[Path], step_time: str | None) -> None:
    """Raise where options would speak of logs and of a step at once."""
    from shardwright.specs import InputError

    if logs and step_time is not None:
        raise InputError(
            f"--step-time and a log ({logs[0]}) are given",
            why="--model and --layout would speak of both",
            fix="calibrate on one of them, and add the other to its profile with --profile",
        )


def teach(
    reader: RunReader,
    paths: Sequence[Path],
    step: OneStep | None,
    stack: str | None,
    logs: Sequence[LogJob] = (),
) -> Taught:
    """Read the runs, learn, and make the profile; raises `InputError`."""
    from shardwright.cli import _inputs, _runs
    from shardwright.hardware_profiles.stacks import list_stacks
    from shardwright.planner.calibration.learn import learn, refuse_absurd
    from shardwright.planner.calibration.measured import learn_measured
    from shardwright.planner.calibration.profile import calibrated_profile
    from shardwright.planner.calibration.runs import is_measured, select
    from shardwright.specs import InputError, SoftwareSpec

    if not paths and step is None and not logs:
        raise InputError(
            "there is no run to learn from",
            fix="name logs or files of runs, or describe one with --model, --layout and"
            " --step-time",
        )
    items: list[Job | Skip] = [*reader.read(paths), *(one.job for one in logs)]
    if stack is not None:
        own = {item.case.software.framework for item in items if not hasattr(item, "reason")}
        _inputs.one_of(stack, sorted({*list_stacks(), SoftwareSpec().framework, *own}), "--stack")
    assumed: dict[str, str] = {}
    for one in logs:
        assumed |= one.assumed
    if step is not None:
        job, assumed = reader.one_step(step)
        items.append(job)
    chosen = select(items, stack)
    home = reader.base or chosen.home
    lesson = learn_measured(chosen.jobs, home) if is_measured(home) else learn(chosen.jobs)
    told = {run.id: run for run in lesson.runs}
    for name in (*([_runs.STEP_OPTION] if step else []), *(one.log.source for one in logs)):
        if name in told:
            refuse_absurd(told[name])
    made = calibrated_profile(
        home,
        lesson,
        chosen.software,
        sources=[
            *map(str, paths),
            *(one.log.source for one in logs),
            *([_runs.STEP_OPTION] if step else []),
        ],
        command=shlex.join(["shardwright", *sys.argv[1:]]),
    )
    return Taught(made, lesson, chosen, assumed, tuple(logs))


def one_step(
    step_time: str | None, model: str | None, layouts: Sequence[str] | None, training: Training
) -> OneStep | None:
    """The run that options describe; None where they describe none.

    Raises:
        InputError: they describe one in part.
    """
    from shardwright.cli._runs import OneStep
    from shardwright.specs import InputError

    batch = training.global_batch
    if len(layouts or ()) > 1:
        raise InputError("--layout is given several times", fix="give it once for one step")
    layout = layouts[0] if layouts else None
    given = {
        "--model": model,
        "--layout": layout,
        "--global-batch": batch,
        "--step-time": step_time,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given) and training == type(training)():
        return None
    if missing:
        raise InputError(
            f"a measured step needs {', '.join(missing)} as well",
            fix=f"add {missing[0]}, or leave out the options that describe one step",
        )
    assert model is not None
    assert layout is not None
    assert step_time is not None
    return OneStep(model, layout, step_time, training)


def base_profile(
    cluster: str | None, profile: Path | None, gpus: int | None, nodes: int | None
) -> HardwareProfile | None:
    """Where the runs ran, where that was said; raises `InputError`."""
    from shardwright.hardware_profiles.resolve import resolve_cluster
    from shardwright.planner.calibration.runs import is_measured, require_formulas
    from shardwright.specs import InputError

    if cluster is not None and profile is not None:
        raise InputError(
            "both --cluster and --profile are given",
            why="a profile holds its own cluster",
            fix="give only one of the two",
        )
    text = cluster if profile is None else str(profile)
    if text is None:
        if gpus is not None or nodes is not None:
            raise InputError("--gpus and --nodes need a cluster", fix="add --cluster C")
        return None
    found = resolve_cluster(text, gpus=gpus, nodes=nodes)
    if not is_measured(found):
        require_formulas(found)
    return found


def as_dict(taught: Taught, path: Path) -> dict[str, Any]:
    """The object that ``--json`` prints; times in seconds, spreads of logarithms (log-odds)."""
    lesson, made = taught.lesson, taught.profile
    return {
        "profile": str(path),
        "cluster": made.devices.in_words(),
        "stack": lesson.stack,
        "assumed": taught.assumed,
        "logs": [_log_dict(one) for one in taught.logs],
        "parameters": [
            {
                "name": one.name, "unit": one.unit, "before": one.before, "after": one.after,
                "spread_before": one.spread_before, "spread_after": one.spread_after,
                "interval_95": list(one.ends), "learned": one.is_learned, "meaning": _meaning(one),
            }
            for one in lesson.parameters
        ],
        "layers": lesson.layers,
        "runs": [
            {
                "id": run.id, "measured_step_time_s": run.measured_s, "before_s": run.before_s,
                "after_s": run.after_s, "left_out_s": run.left_out_s, "outlier": run.is_outlier,
            }
            for run in lesson.runs
        ],
        "parts": [
            {
                "id": part.id, "part": part.name, "measured_s": part.measured_s,
                "before_s": part.before_s, "after_s": part.after_s,
            }
            for part in lesson.parts
        ],
        "median_error": {
            when: lesson.median_error(when) for when in ("before", "after", "left_out")
        },
        "band": [lesson.band.low, lesson.band.high],
        "band_source": lesson.band_source,
        "skipped": [{"id": one.row.id, "reason": one.reason} for one in taught.chosen.skipped],
    }  # fmt: skip


def _log_dict(one: LogJob) -> dict[str, Any]:
    from shardwright.planner.calibration.logs.jobs import memory_checks

    steady = one.steady
    return {
        "log": one.log.source, "kind": one.log.kind, "step_time_s": steady.step_time_s,
        "scatter_fraction": steady.scatter_fraction, "prints": steady.num_printed,
        "kept": steady.num_kept, "left_out": {why: count for count, why in steady.dropped},
        "basis": steady.basis, "flops_convention": one.log.flops_convention,
        "memory": [
            {
                "what": check.what, "measured_bytes": check.measured_bytes,
                "predicted_bytes": check.predicted_bytes,
            }
            for check in memory_checks(one)
        ],
    }  # fmt: skip


def _log_lines(logs: Sequence[LogJob]) -> Iterator[str]:
    """What was read of each log, and its memory beside the prediction."""
    from shardwright.planner.calibration.logs.jobs import memory_checks
    from shardwright.specs.units import format_bytes

    for one in logs:
        yield f"log       {one.in_words()}"
        for check in memory_checks(one):
            yield (
                f"memory    {check.what}: at most {format_bytes(check.measured_bytes)} in the log,"
                f" {format_bytes(check.predicted_bytes)} predicted"
                f" ({check.predicted_bytes / check.measured_bytes - 1.0:+.1%}; not calibrated)"
            )


def _meaning(one: Learned) -> str:
    from shardwright.planner.calibration import learn
    from shardwright.planner.trials import correction

    return {**correction.MEANINGS, **learn.MEANINGS}[one.name]


def _print(taught: Taught, path: Path) -> None:
    from shardwright.cli import _output, _tables

    lesson, skipped = taught.lesson, taught.chosen.skipped
    count = f"{len(lesson.runs)} in {lesson.num_configurations} configurations"
    _output.print_lines(
        f"cluster   {taught.profile.devices.in_words()}",
        f"software  {lesson.stack}",
        f"runs      {count}" + (f", {len(skipped)} left out" if skipped else ""),
        *_reasons(skipped),
        *_log_lines(taught.logs),
        *([_tables.assumed_in_words(taught.assumed)] if taught.assumed else []),
    )
    table = _output.table("parameter", "before", "after", "95 % within", "", "what it means")
    for one in lesson.parameters:
        low, high = one.ends
        table.add_row(
            one.name, f"{one.before:.3g} {unit_of(one)}", f"{one.after:.3g} {unit_of(one)}",
            f"{low:.3g} to {high:.3g}", "" if one.is_learned else "as before", _meaning(one),
        )  # fmt: skip
    tables = [_parts_table(lesson)] if lesson.parts else []
    _output.print_tables(table, _runs_table(lesson), *tables)
    _output.print_lines(*_verdict(lesson), "", *_next(taught, path))


def _reasons(skipped: Sequence[Skip]) -> Iterator[str]:
    """Why runs were left out, the commonest reason first."""
    counts = Counter(one.reason for one in skipped)
    for reason, count in counts.most_common(MOST_NAMED):
        yield f"left out  {count}: {reason}"


def unit_of(one: Learned) -> str:
    return "" if one.unit == "1" else one.unit


def _runs_table(lesson: Lesson) -> Table:
    from shardwright.cli import _output
    from shardwright.specs.units import format_seconds

    table = _output.table("run", "measured", "before", "", "after", "", "left out", "")
    worst = sorted(lesson.runs, key=lambda run: -abs(run.after_s / run.measured_s - 1.0))
    for run in worst[:MOST_ROWS]:
        cells = []
        for seconds in (run.before_s, run.after_s, run.left_out_s):
            if seconds is None:
                cells += ["", ""]
            else:
                cells += [format_seconds(seconds), f"{seconds / run.measured_s - 1.0:+.1%}"]
        table.add_row(run.id, format_seconds(run.measured_s), *cells)
    return table


def _parts_table(lesson: Lesson) -> Table:
    """What of the steps was timed by itself, the worst after calibration first."""
    from shardwright.cli import _output
    from shardwright.specs.units import format_seconds

    table = _output.table("part of a step", "of run", "measured", "before", "", "after", "")
    worst = sorted(lesson.parts, key=lambda part: -abs(part.after_s / part.measured_s - 1.0))
    for part in worst[:MOST_ROWS]:
        cells = []
        for seconds in (part.before_s, part.after_s):
            cells += [format_seconds(seconds), f"{seconds / part.measured_s - 1.0:+.1%}"]
        table.add_row(part.name, part.id, format_seconds(part.measured_s), *cells)
    return table


def _verdict(lesson: Lesson) -> Iterator[str]:
    """How good it is now, and what the runs leave open."""
    errors = [
        f"{error:.1%} {words}"
        for when, words in (
            ("before", "before"), ("after", "after"), ("left_out", "of runs that were left out")
        )
        if (error := lesson.median_error(when)) is not None
    ]  # fmt: skip
    yield f"error     in the median {', '.join(errors)}"
    yield f"band      {lesson.band.low:.3f} to {lesson.band.high:.3f} ({lesson.band_source})"
    open_ones = [one.name for one in lesson.parameters if not one.is_learned]
    if open_ones:
        yield (
            f"open      known no better than before: {', '.join(open_ones)}; runs that differ in"
            " what these govern would tell"
        )
    ratios = sorted(lesson.layers.values())
    if ratios:
        yield (
            f"layers    {len(ratios)} shapes of layers take {ratios[0]:.3g} to {ratios[-1]:.3g} of"
            " what these numbers alone say"
        )
    far = [run.id for run in lesson.runs if run.is_outlier]
    if far:
        named = ", ".join(far[:MOST_NAMED]) + (", ..." if len(far) > MOST_NAMED else "")
        yield (
            f"far off   {len(far)} that count less, for nothing explains them: {named}; check their"
            " layouts, and whether something slowed them"
        )


def _next(taught: Taught, path: Path) -> Iterator[str]:
    yield f"written   {path}"
    yield f"next: shardwright estimate MODEL --cluster {path} --layout LAYOUT"
