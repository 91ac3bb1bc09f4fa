"""``shardwright trial PLAN``: time a plan's shortlist on the machine, correct the prices, pick."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.planner.problem import Problem
    from shardwright.planner.trials.correction import Correction
    from shardwright.planner.trials.shortlist import Skipped
    from shardwright.planner.trials.terms import Timed
    from shardwright.runtime.race import Standing
    from shardwright.runtime.seats import Seats
    from shardwright.runtime.trial import TrialJob
    from shardwright.specs import Candidate, Plan

logger = logging.getLogger(__name__)


def trial(
    plan: _options.PlanFile,
    top: Annotated[
        int,
        typer.Option(min=1, metavar="K", help="Layouts: the plan's, its ties, its alternatives."),
    ] = 3,
    steps: Annotated[
        int, typer.Option(min=3, metavar="N", help="Timed steps of each layout, at most.")
    ] = 20,
    rounds: Annotated[
        int | None,
        typer.Option(min=3, metavar="R", help="Rounds to spread them over; default 10 at most."),
    ] = None,
    data: Annotated[
        str, typer.Option(metavar="D", help="A text file or folder, `python-stdlib`, or `mock`.")
    ] = "mock",
    compare: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Time the layouts of this JSON list, all rounds of all."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="P", help="The plan's profile or cluster, where it has moved."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="That all verdicts together are right.")
    ] = 0.95,
    resolution: Annotated[
        str, typer.Option(metavar="S", help="Differences that do not matter.")
    ] = "1%",
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Seconds before a silent layout is given up.")
    ] = 300.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the picked plan to this file.")
    ] = None,
    corrected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the corrected profile to this file."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the timed layouts as SVG.")
    ] = None,
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Run a plan's shortlist in turn, correct the prices by what was measured, and pick.

    Inside a launch of torchrun, srun or mpirun each process holds one rank; otherwise one process
    per rank of the plan is started on this machine.
    """
    from shardwright.cli import _inputs, _output, _trial

    _inputs.require_torch("trial")
    from shardwright.runtime import sessions
    from shardwright.specs import Plan, ShardwrightError

    seats = seats_of(plan, timeout)
    if not seats.leads:
        sessions.run_trial(None, seats)
        return
    try:
        _check_outputs(output, corrected, plot, force=force)
        loaded = Plan.load(plan)
        asked = prepare(loaded, top, compare, profile)
        job = job_of(asked, data, steps, rounds, timeout).model_copy(
            update={
                "confidence": confidence,
                "resolution": _inputs.share(resolution, "--resolution"),
                "races": compare is None,
            }
        )
    except ShardwrightError as error:
        sessions.call_off(seats, error)
        raise
    with _output.progress("timing layouts") as show:
        done = sessions.run_trial(job, seats, show)
    assert done is not None
    result = result_of(asked, done)
    if corrected is not None and result.correction is None:
        logger.warning("there are no prices to correct, so %s is not written", corrected)
    _trial.write(result, output, corrected, plot)
    if as_json:
        _output.print_json(_trial.as_dict(result))
    else:
        _trial.print_result(result, output, corrected)


def seats_of(path: Path, timeout_s: float) -> Seats:
    """This process's ranks: all of the plan, or the one of a running launch.

    Raises:
        InputError: no plan, or a launch that does not say where its ranks meet.
    """
    from shardwright.runtime.rendezvous import find_rendezvous
    from shardwright.runtime.seats import Seats
    from shardwright.specs import Plan

    rendezvous = find_rendezvous(os.environ)
    if rendezvous is None:
        return Seats.here(Plan.load(path).layout.world)
    return Seats.joined(rendezvous, timeout_s)


def _check_outputs(*paths: Path | None, force: bool) -> None:
    from shardwright.cli.cluster import check_new

    for path in paths:
        if path is not None:
            check_new(path, force=force, why="a trial overwrites nothing")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be timed."""

    plan: Plan
    problem: Problem | None
    """With the prices to correct; None where they are gone."""
    profile_source: str
    candidates: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...]
    """What our runtime cannot run, or the prices do not cover."""


def prepare(plan: Plan, top: int, compare: Path | None, profile: str | None) -> Asked:
    """The layouts, those that cannot run set aside; raises `InputError` where none is left."""
    from shardwright.cli.explain import prices_if_there, prices_of
    from shardwright.planner.problem import Problem
    from shardwright.planner.trials.shortlist import Skipped, read_layouts, reason_of, shortlist
    from shardwright.runtime.preflight import check_plan
    from shardwright.specs import InputError
    from shardwright.specs.plan import read_text

    needed = compare is not None or profile is not None
    prices: HardwareProfile | None = prices_of(plan, profile) if needed else prices_if_there(plan)
    problem = None
    if prices is not None:
        problem = Problem(plan.model, plan.training, prices, plan.software)
    skipped: list[Skipped] = []
    if compare is None:
        found = shortlist(plan, top)
    else:
        assert problem is not None
        text = read_text(compare, what="layouts")
        found, unpriced = read_layouts(text, problem, source=str(compare))
        skipped += unpriced
    runs: list[Candidate] = []
    for one in found:
        try:
            check_plan(with_layout(plan, one))
        except InputError as error:
            skipped.append(Skipped(one.layout, reason_of(error)))
        else:
            runs.append(one)
    if not runs:
        raise InputError(
            f"none of the {len(skipped)} layouts can be run here; the first: {skipped[0].reason}",
            fix="plan with --fix for what our runtime does",
        )
    source = profile or plan.provenance.profile_source
    return Asked(plan, problem, source, tuple(runs), tuple(skipped))


def with_layout(plan: Plan, candidate: Candidate) -> Plan:
    """The plan as if it had chosen another layout."""
    from shardwright.planner.trials.pick import plan_of_pick

    return plan_of_pick(plan, candidate, ties=(), others=(), command=None)


def job_of(asked: Asked, data: str, steps: int, rounds: int | None, timeout_s: float) -> TrialJob:
    """The trial as its ranks are told: ``steps`` spread over the rounds, 10 at most by default."""
    from shardwright.runtime.trial import Entry, TrialJob

    num_rounds = rounds or min(10, max(3, steps // 2))
    return TrialJob(
        plan=asked.plan,
        entries=tuple(
            Entry(layout=one.layout, prediction=one.prediction) for one in asked.candidates
        ),
        data=data,
        num_rounds=num_rounds,
        steps_per_visit=-(-steps // num_rounds),
        timeout_s=timeout_s,
    )


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. Standings, timed layouts and predictions are in one order: by measured
    time."""

    asked: Asked
    job: TrialJob
    standings: tuple[Standing, ...]
    timed: tuple[Timed, ...]
    correction: Correction | None
    failed: tuple[Skipped, ...]
    """Layouts that ended their ranks, and how."""

    def candidate(self, place: int) -> Candidate:
        """Of a standing, as it was predicted before."""
        return self.asked.candidates[self.standings[place].index]

    def corrected_candidate(self, place: int) -> Candidate:
        """As it is predicted now; as before where nothing was corrected."""
        before = self.candidate(place)
        if self.correction is None:
            return before
        return before.model_copy(update={"prediction": self.correction.after[place]})

    def picked_plan(self) -> Plan:
        """The fastest, those that it ties with, and the others."""
        from shardwright.planner.trials.pick import plan_of_pick

        found = [self.corrected_candidate(place) for place in range(len(self.standings))]
        ties = [place for place, one in enumerate(self.standings) if one.verdict == "tied"]
        others = [place for place, one in enumerate(self.standings) if one.verdict == "slower"]
        return plan_of_pick(
            self.asked.plan,
            found[0],
            ties=[found[place] for place in ties],
            others=[found[place] for place in others],
            command=shlex.join(["shardwright", *sys.argv[1:]]),
        )


def result_of(asked: Asked, job: TrialJob) -> Result:
    """Standings, and the correction that the timed layouts teach."""
    from shardwright.planner.trials.shortlist import Skipped
    from shardwright.runtime.trial import terms_of

    standings = tuple(job.race().standings())
    timed = tuple(
        timed_of(asked.candidates[one.index], one.step_time_s, terms_of(job, one.index))
        for one in standings
    )
    return Result(
        asked=asked,
        job=job,
        standings=standings,
        timed=timed,
        correction=correction_of(asked, timed),
        failed=tuple(
            Skipped(asked.candidates[one.index].layout, one.reason) for one in job.failures
        ),
    )


def timed_of(
    candidate: Candidate, step_time_s: float, terms_s: Sequence[dict[str, float]]
) -> Timed:
    """A layout as the planner's side reads it."""
    from shardwright.planner.trials.terms import Timed

    return Timed(candidate.layout, step_time_s, tuple(terms_s))


def correction_of(asked: Asked, timed: Sequence[Timed]) -> Correction | None:
    """None, with a warning, where the prices are gone or steps cannot correct them."""
    from shardwright.cost_models.pricing import is_own
    from shardwright.planner.trials.correction import correct
    from shardwright.planner.trials.stack import correct_stack
    from shardwright.specs import InputError

    problem = asked.problem
    if problem is None:
        return None
    count = len(timed)
    source = f"a trial of {count} {'layout' if count == 1 else 'layouts'} of {problem.model.name}"
    teach = correct if is_own(problem.profile, problem.software) else correct_stack
    try:
        return teach(problem, timed, source=source)
    except InputError as error:
        logger.warning("%s", error)
        return None
