"""Measured runs that a user names: files of rows, folders of `run --save`, training logs, one step
as options."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.specs import InputError, Plan
from shardwright.specs.plan import read_text
from shardwright.specs.units import parse

if TYPE_CHECKING:
    from shardwright.cli._inputs import Training
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.planner.calibration.logs.jobs import LogJob
    from shardwright.planner.validation.results import Job, Skip
    from shardwright.planner.validation.rows import Row
    from shardwright.planner.validation.shapes import Configs

_HEAD_BYTES = 4096
METRICS_FILE = "metrics.jsonl"
LATEST_FILE = "latest"
STEP_OPTION = "--step-time"
"""The name of a run that was given by options."""


@dataclass(frozen=True, slots=True)
class OneStep:
    """One measured step as it was typed."""

    model: str
    layout: str
    step_time: str
    training: Training


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What options say of the training that logs are of, as it was typed."""

    training: Training
    model: str | None = None
    layouts: tuple[str, ...] = ()
    """One for all logs, or one for each in their order."""


@dataclass(frozen=True, slots=True)
class RunReader:
    """Reads runs as jobs on one cluster, or on each run's own."""

    base: HardwareProfile | None = None
    """The cluster that all ran on, in whatever number of its nodes; None: as each run says."""
    stack: str | None = None
    """The software of runs that name none; None: that of a calibrated base, else any."""
    configs: Configs | None = None

    def read(self, paths: Sequence[Path]) -> list[Job | Skip]:
        """Every run of every path but logs; raises `InputError` where one holds none."""
        items: list[Job | Skip] = []
        for path in paths:
            folder = path.parent if path.name == METRICS_FILE else path
            if folder.is_dir():
                items.append(self._run_folder(folder))
            else:
                items += self._rows(path)
        return items

    def read_logs(self, paths: Sequence[Path], options: LogOptions) -> list[LogJob]:
        """Every log as a job; raises `InputError` where one is none, or states too little."""
        from shardwright.planner.calibration.logs.jobs import Given, log_job
        from shardwright.planner.calibration.logs.recognise import read_log
        from shardwright.planner.layout_text import parse_choices
        from shardwright.specs.sources import read_model

        layouts = [parse_choices(text) for text in options.layouts]
        if len(layouts) > 1 and len(layouts) != len(paths):
            raise InputError(
                f"{len(layouts)} layouts are given for {len(paths)} logs",
                fix="give --layout once for all, or once for each log in their order",
            )
        given = Given(
            profile=self.base,
            model=None if options.model is None else read_model(options.model).spec,
            training=options.training,
            stack=self.stack,
        )
        found = []
        for index, path in enumerate(paths):
            choices = layouts[index if len(layouts) > 1 else 0] if layouts else None
            found.append(log_job(read_log(path), replace(given, choices=choices)))
        return found

    def _rows(self, path: Path) -> Iterator[Job | Skip]:
        from shardwright.planner.calibration.runs import clusters_on
        from shardwright.planner.validation import clusters, problem, results, rows

        maker = problem.CaseMaker(
            defaults=self._defaults,
            configs=self.configs,
            clusters=clusters.profile_of if self.base is None else clusters_on(self.base),
        )
        yield from results.prepare(rows.read_runs(path).rows, maker)

    def _defaults(self, row: Row) -> Mapping[str, Any]:
        from shardwright.planner.validation.stack_fits import run_defaults

        known = None if self.base is None or self.base.software is None else self.base.software
        stack = self.stack or (known and known.framework)
        return run_defaults(row if row.stack else row.model_copy(update={"stack": stack}))

    def _run_folder(self, folder: Path) -> Job:
        from shardwright.hardware_profiles.resolve import catalogue_profile, resized
        from shardwright.planner.calibration.runs import (
            is_measured,
            job_of_step,
            require_formulas,
        )

        plan, step_time_s = read_run_folder(folder)
        if self.base is None or not is_measured(self.base):
            require_formulas(catalogue_profile(plan.cluster, str(folder)))
        profile = (
            catalogue_profile(plan.cluster, str(folder))
            if self.base is None
            else resized(self.base, gpus=plan.layout.world)
        )
        return job_of_step(
            name=str(folder), model=plan.model, training=plan.training, profile=profile,
            software=plan.software, layout=plan.layout, step_time_s=step_time_s,
        )  # fmt: skip

    def one_step(self, step: OneStep) -> tuple[Job, dict[str, str]]:
        """The run that options describe, and what they left to be assumed; raises `InputError`."""
        from shardwright.cli import _inputs
        from shardwright.planner.calibration.runs import job_of_step
        from shardwright.planner.layout_text import parse_choices
        from shardwright.planner.layouts import layout_of
        from shardwright.planner.problem import Problem
        from shardwright.specs.sources import read_model

        if self.base is None:
            raise InputError("a measured step needs a cluster", fix="add --cluster C")
        model = read_model(step.model).spec
        training, assumed = _inputs.complete_training(
            step.training, model, self.base.devices.num_devices
        )
        software = _inputs.software_named(self.stack, self.base, assumed)
        layout = layout_of(Problem(model, training, self.base), parse_choices(step.layout))
        job = job_of_step(
            name=STEP_OPTION, model=model, training=training, profile=self.base, software=software,
            layout=layout, step_time_s=parse(step.step_time, "seconds"),
        )  # fmt: skip
        return job, assumed


def is_log(path: Path) -> bool:
    """Whether a path is to be read as what a training printed: no folder, no file of rows."""
    if path.is_dir() or path.name == METRICS_FILE:
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return path.suffix != ".json"
    if path.suffix == ".json":
        return b'"log_history"' in head or b'"log_history"' in path.read_bytes()
    return not re.match(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*(?:\{|\])|\{\s*\"(?:rows|runs)\")", head)


def read_run_folder(folder: Path) -> tuple[Plan, float]:
    """The plan of a run of ours that was saved, and its median step time after the warm-up.

    Raises:
        InputError: no record, no checkpoint with its plan, or too few steps.
    """
    from shardwright.runtime.metrics import read_records
    from shardwright.runtime.summary import WARM_UP_STEPS

    records = read_records(folder / METRICS_FILE)
    fix = "give a folder that `shardwright run --save` wrote, or a JSON file of runs"
    if not records:
        raise InputError(f"{folder} holds no record of a run ({METRICS_FILE})", fix=fix)
    newest = read_text(folder / LATEST_FILE, what="checkpoint").strip()
    plan = Plan.load(folder / newest / "plan.json")
    timed = [record.step_time_s for record in records[WARM_UP_STEPS:]]
    if not timed:
        raise InputError(
            f"{folder} holds {len(records)} steps; the first {WARM_UP_STEPS} are not timed",
            fix="run more steps",
        )
    return plan, statistics.median(timed)
