"""What timed layouts teach a profile that is priced by a software stack's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.planner.calibration.learn import learn
from shardwright.planner.calibration.profile import calibrated_profile
from shardwright.planner.calibration.runs import job_of_step, require_formulas
from shardwright.planner.engine import engine_for
from shardwright.planner.layouts import layout_in_words
from shardwright.planner.problem import Problem
from shardwright.planner.trials.correction import Changed, Correction
from shardwright.planner.trials.terms import Timed


def correct_stack(problem: Problem, timed: Sequence[Timed], *, source: str) -> Correction:
    """As `correction.correct`, by `calibration.learn`.

    Raises:
        InputError: the profile is of a kind that steps cannot correct.
    """
    require_formulas(problem.profile)
    jobs = [
        job_of_step(
            name=layout_in_words(one.layout), model=problem.model, training=problem.training,
            profile=problem.profile, software=problem.software, layout=one.layout,
            step_time_s=one.step_time_s,
        )
        for one in timed
    ]  # fmt: skip
    lesson = learn(jobs)
    made = calibrated_profile(problem.profile, lesson, problem.software, sources=[source])
    corrected = Problem(problem.model, problem.training, made, problem.software)
    left_out = [run.left_out_s for run in lesson.runs]
    return Correction(
        profile=made,
        changes=tuple(
            Changed(one.name, one.unit, one.before, one.after, one.spread_after)
            for one in lesson.parameters
        ),
        before=tuple(engine_for(problem).predict(one.layout) for one in timed),
        after=tuple(engine_for(corrected).predict(one.layout) for one in timed),
        left_out_s=None if None in left_out else tuple(s for s in left_out if s is not None),
    )
