"""Steps of our own runtime correct a measured profile: what is hidden is found."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping

import pytest

from shardwright.cost_models.communication import INTER_NODE_RATIO, INTRA_NODE_RATIO
from shardwright.cost_models.compute import COMPUTE_RATIO
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.calibration.learn import FEWEST_FOR_BAND, Lesson
from shardwright.planner.calibration.measured import PRIOR_SPREADS, learn_measured
from shardwright.planner.calibration.profile import calibrated_profile
from shardwright.planner.calibration.runs import job_of_step
from shardwright.planner.validation.results import Job
from shardwright.specs import InputError, Layout, SoftwareSpec
from tests.planner.trials.made import LAYOUTS, problem

HIDDEN = ({COMPUTE_RATIO: 1.4}, {COMPUTE_RATIO: 0.7, INTRA_NODE_RATIO: 1.4},
          {COMPUTE_RATIO: 1.2, INTRA_NODE_RATIO: 1.5, INTER_NODE_RATIO: 0.7})  # fmt: skip


def step_time_s(profile: HardwareProfile, layout: Layout) -> float:
    of = problem()
    return StepModel(of.model, of.training, profile, of.software).predict(layout).step_time_s


def jobs(hidden: Mapping[str, float]) -> list[Job]:
    """Each layout as the machine with these ratios would run it."""
    of, machine = problem(), problem(**hidden).profile
    layouts = [Layout.of(of.model, of.training, **choices) for choices in LAYOUTS]
    return [
        job_of_step(
            name=f"run-{i}", model=of.model, training=of.training, profile=of.profile,
            software=SoftwareSpec(), layout=layout, step_time_s=step_time_s(machine, layout),
        )
        for i, layout in enumerate(layouts)
    ]  # fmt: skip


def errors(profile: HardwareProfile, others: list[Job]) -> list[float]:
    return [
        abs(step_time_s(profile, job.layouts[0]) / (job.row.step_time_s or 1.0) - 1.0)
        for job in others
    ]


def after(lesson: Lesson) -> HardwareProfile:
    base = problem().profile
    return calibrated_profile(base, lesson, SoftwareSpec(), sources=["here"])


@pytest.mark.parametrize("hidden", HIDDEN)
def test_all_layouts_tell_the_ratios(hidden: dict[str, float]) -> None:
    lesson = learn_measured(jobs(hidden), problem().profile)
    assert [one.name for one in lesson.parameters] == list(PRIOR_SPREADS)
    for one in lesson.parameters:
        low, high = one.ends
        assert low <= hidden.get(one.name, 1.0) <= high
    before, later = lesson.median_error("before"), lesson.median_error("after")
    assert before is not None
    assert later is not None
    assert later < 0.25 * before


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("anchor", range(len(LAYOUTS)))
def test_one_run_helps_the_others(hidden: dict[str, float], anchor: int) -> None:
    made = jobs(hidden)
    base = problem().profile
    others = [job for index, job in enumerate(made) if index != anchor]
    learned = after(learn_measured([made[anchor]], base))
    assert statistics.fmean(errors(learned, others)) < statistics.fmean(errors(base, others))


def test_one_run_halves_the_error_where_it_is_one_of_computing() -> None:
    made, base = jobs({COMPUTE_RATIO: 1.4}), problem().profile
    ratios = []
    for index, anchor in enumerate(made):
        others = made[:index] + made[index + 1 :]
        learned = after(learn_measured([anchor], base))
        ratios.append(
            statistics.fmean(errors(learned, others)) / statistics.fmean(errors(base, others))
        )
    assert statistics.median(ratios) < 0.5


def test_what_is_written_is_what_was_shown() -> None:
    (first, *_) = jobs(HIDDEN[1])
    lesson = learn_measured([first], problem().profile)
    assert step_time_s(after(lesson), first.layouts[0]) == pytest.approx(lesson.runs[0].after_s)


def test_the_prior_of_a_second_calibration_is_the_first() -> None:
    made = jobs(HIDDEN[0])
    once = after(learn_measured(made[:2], problem().profile))
    again = learn_measured(made[2:], once)
    assert again.parameters[0].before == once.parameter(COMPUTE_RATIO)
    assert again.parameters[0].spread_before < PRIOR_SPREADS[COMPUTE_RATIO]


def test_few_runs_keep_the_profile_s_band_and_many_state_their_own() -> None:
    made = jobs(HIDDEN[0])
    few = learn_measured(made[: FEWEST_FOR_BAND - 1], problem().profile)
    assert "as the profile stated it" in few.band_source
    assert all(run.left_out_s is None for run in few.runs)
    many = learn_measured(made, problem().profile)
    assert "6 configurations" in many.band_source
    assert many.band.low < many.band.high


def test_a_spoilt_run_is_named() -> None:
    made = jobs(HIDDEN[0])
    row = made[0].row
    spoilt = row.model_copy(
        update={"measured": row.measured.model_copy(
            update={"iteration_time_s": 3 * (row.step_time_s or 1.0)}
        )}
    )  # fmt: skip
    made[0] = dataclasses.replace(made[0], case=dataclasses.replace(made[0].case, row=spoilt))
    lesson = learn_measured(made, problem().profile)
    assert [run.is_outlier for run in lesson.runs] == [True] + [False] * (len(made) - 1)
    assert abs(math.log(lesson.parameters[0].after / 1.4)) < 0.1


def test_other_software_is_refused() -> None:
    (first, *_) = jobs(HIDDEN[0])
    case = dataclasses.replace(first.case, software=SoftwareSpec(framework="torchtitan"))
    with pytest.raises(InputError, match="ran torchtitan"):
        learn_measured([dataclasses.replace(first, case=case)], problem().profile)
