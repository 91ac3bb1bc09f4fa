"""What was hidden is found, what the runs cannot tell is said, and errors are honest."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest

from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.fit import Free
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.stacks import fitted
from shardwright.planner.calibration.learn import (
    FEWEST_FOR_BAND,
    MEANINGS,
    Learned,
    Lesson,
    _student_p90,
    learn,
)
from shardwright.planner.calibration.profile import calibrated_profile
from shardwright.planner.validation.results import Job
from shardwright.planner.validation.rows import RowMeasured
from shardwright.specs import InputError
from tests.planner.calibration import hidden


def profile_after(jobs: list[Job], base: HardwareProfile | None = None) -> HardwareProfile:
    return calibrated_profile(
        base or hidden.cluster(), learn(jobs), hidden.SOFTWARE, sources=["here"]
    )


def errors(profile: HardwareProfile) -> list[float]:
    """Relative errors of layouts that nobody calibrated on."""
    model = stack_model(hidden.model(), hidden.TRAINING, profile, hidden.SOFTWARE)
    truth = hidden.machine()
    return [
        abs(model.step_time_s(layout) / truth.step_time_s(layout) - 1.0)
        for layout in hidden.layouts(hidden.OTHERS)
    ]


def slower(job: Job, ratio: float) -> Job:
    """The same run, as if it had taken ``ratio`` times as long."""
    step_s = job.row.step_time_s
    assert step_s is not None
    row = job.row.model_copy(update={"measured": RowMeasured(iteration_time_s=step_s * ratio)})
    return dataclasses.replace(job, case=dataclasses.replace(job.case, row=row))


def distance(one: Learned, truth: float) -> float:
    """How many stated spreads the estimate is from the truth."""
    scale = Free(one.name, "", one.after, 1.0, one.is_fraction)
    return abs(scale.scaled(truth) - scale.scaled(one.after)) / one.spread_after


@pytest.fixture(scope="module")
def ten() -> list[Job]:
    return hidden.runs(hidden.TAUGHT)


@pytest.fixture(scope="module")
def lesson(ten: list[Job]) -> Lesson:
    return learn(ten)


class TestHiddenNumbers:
    def test_ten_runs_at_least_halve_the_error_on_other_layouts(self, ten: list[Job]) -> None:
        before, after = errors(hidden.cluster()), errors(profile_after(ten))
        assert statistics.fmean(after) < 0.25 * statistics.fmean(before)
        assert max(after) < 0.5 * max(before)

    def test_each_lies_within_what_is_stated(self, lesson: Lesson) -> None:
        off = {one.name: distance(one, hidden.HIDDEN[one.name]) for one in lesson.parameters}
        assert off.keys() == MEANINGS.keys()
        assert max(off.values()) < 1.5
        assert statistics.fmean(off.values()) < 1.0

    def test_what_many_layouts_tell_apart_is_learned(self, lesson: Lesson) -> None:
        learned = {one.name for one in lesson.parameters if one.is_learned}
        assert {"stack.compute_ratio", "stack.collective_ratio"} <= learned
        assert "stack.host_s" not in learned

    def test_no_number_is_known_less_than_before(self, lesson: Lesson) -> None:
        assert all(one.spread_after <= one.spread_before * 1.0001 for one in lesson.parameters)

    def test_one_run_already_helps_other_layouts(self, ten: list[Job]) -> None:
        before = errors(hidden.cluster())
        after = errors(profile_after(ten[:1]))
        assert all(new < old for new, old in zip(after, before, strict=True))
        assert statistics.fmean(after) < 0.75 * statistics.fmean(before)

    def test_more_runs_after_a_first_calibration_add_to_it(self, ten: list[Job]) -> None:
        first = profile_after(ten[:3])
        later = [
            dataclasses.replace(job, case=dataclasses.replace(job.case, profile=first))
            for job in ten[3:]
        ]
        again = profile_after(later, first)
        assert statistics.fmean(errors(again)) < 0.75 * statistics.fmean(errors(first))


class TestOneRun:
    @pytest.mark.parametrize(
        ("ratio", "tolerance"),
        [(0.75, 0.08), (0.85, 0.05), (1.0, 0.001), (1.15, 0.05), (1.25, 0.08)],
    )
    def test_its_own_layout_is_then_predicted_within_the_scatter_of_runs(
        self, ten: list[Job], ratio: float, tolerance: float
    ) -> None:
        for job in ten[:4]:
            measured_s = job.row.step_time_s
            assert measured_s is not None
            expected_s = learn([job]).runs[0].before_s
            (run,) = learn([slower(job, ratio * expected_s / measured_s)]).runs
            assert run.after_s == pytest.approx(run.measured_s, rel=tolerance)

    def test_what_is_written_is_what_was_shown(self, ten: list[Job]) -> None:
        lesson = learn(ten[:1])
        profile = profile_after(ten[:1])
        model = stack_model(hidden.model(), hidden.TRAINING, profile, hidden.SOFTWARE)
        (layout,) = ten[0].layouts
        prediction = model.predict(layout)
        assert prediction.step_time_s == pytest.approx(lesson.runs[0].after_s)
        low, high = prediction.step_time_band_s
        assert low / prediction.step_time_s == pytest.approx(lesson.band.low)
        assert high / prediction.step_time_s == pytest.approx(lesson.band.high)

    def test_its_band_is_that_of_the_catalogue(self, ten: list[Job]) -> None:
        assert learn(ten[:1]).band == fitted().band_seen

    def test_on_an_accelerator_that_nobody_timed_it_is_wider(self, ten: list[Job]) -> None:
        known = fitted().model_copy(update={"clocks": {}})
        assert learn(ten[:1], known).band == fitted().band_unseen


class TestLeftOut:
    def test_few_configurations_leave_none_out(self, ten: list[Job]) -> None:
        few = learn([*ten[: FEWEST_FOR_BAND - 1], ten[0]])
        assert few.num_configurations == FEWEST_FOR_BAND - 1
        assert few.median_error("left_out") is None
        assert all(run.left_out_s is None for run in few.runs)

    def test_errors_of_what_is_left_out_are_those_of_learning_without_it(
        self, ten: list[Job], lesson: Lesson
    ) -> None:
        for index in (0, 4, 7):
            profile = profile_after([*ten[:index], *ten[index + 1 :]])
            model = stack_model(hidden.model(), hidden.TRAINING, profile, hidden.SOFTWARE)
            exact_s = model.step_time_s(ten[index].layouts[0])
            assert lesson.runs[index].left_out_s == pytest.approx(exact_s, rel=0.02)

    def test_repeats_are_left_out_together(self, ten: list[Job], lesson: Lesson) -> None:
        twice = learn([*ten, *ten])
        assert twice.num_configurations == lesson.num_configurations == len(ten)
        exact = [run.measured_s / run.left_out_s - 1 for run in twice.runs if run.left_out_s]
        assert max(map(abs, exact)) > 0.005  # else each would be predicted by its own repeat

    def test_the_band_grows_with_the_scatter(self, ten: list[Job]) -> None:
        noisy = [slower(job, 1.1 if i % 2 else 1 / 1.1) for i, job in enumerate(ten)]
        calm, wild = learn(ten).band, learn(noisy).band
        assert wild.low < calm.low < 1 < calm.high < wild.high
        assert "10 configurations" in learn(ten).band_source


def test_a_run_that_does_not_fit_the_others_is_named_and_counts_less(ten: list[Job]) -> None:
    spoilt = learn([*ten[:-1], slower(ten[-1], 3.0)])
    assert [run.is_outlier for run in spoilt.runs] == [False] * 9 + [True]
    compute = {one.name: one.after for one in spoilt.parameters}["stack.compute_ratio"]
    assert compute == pytest.approx(hidden.HIDDEN["stack.compute_ratio"], rel=0.08)


def test_layers_keep_what_they_have_in_common(ten: list[Job]) -> None:
    odd = [slower(job, 1.3) if job.layouts[0].micro_batch == 2 else job for job in ten]
    layers = learn(odd).layers
    by_batch = {name: ratio for name, ratio in layers.items() if "/b2/" in name}
    assert min(by_batch.values()) > 1.1
    others = [abs(math.log(r)) for name, r in layers.items() if name not in by_batch]
    assert statistics.median(others) < 0.06


def test_runs_of_one_shape_of_layers_teach_the_software_alone(ten: list[Job]) -> None:
    one_shape = [job for job in ten if (job.layouts[0].tp, job.layouts[0].micro_batch) == (4, 1)]
    assert learn([slower(job, 1.2) for job in one_shape]).layers == {}
    assert len(learn(ten).layers) > 1


def test_nothing_that_can_be_priced(ten: list[Job]) -> None:
    row = ten[0].row.model_copy(update={"measured": RowMeasured()})
    timeless = dataclasses.replace(ten[0], case=dataclasses.replace(ten[0].case, row=row))
    with pytest.raises(InputError, match="none of the runs can be priced"):
        learn([timeless])


def test_ends_of_a_fraction_stay_fractions() -> None:
    one = Learned("stack.hidden_fraction", "1", 0.7, 0.9, 1.0, 1.0, is_fraction=True)
    low, high = one.ends
    assert 0.5 < low < 0.9 < high < 1.0
    ratio = Learned("stack.compute_ratio", "1", 1.0, 2.0, 0.2, math.log(2.0) / 1.96)
    assert list(ratio.ends) == pytest.approx([1.0, 4.0])


@pytest.mark.parametrize(("freedom", "t"), [(4, 1.533), (9, 1.383), (30, 1.310), (10**9, 1.2816)])
def test_percentiles_of_student(freedom: int, t: float) -> None:
    assert _student_p90(freedom) == pytest.approx(t, abs=0.005)
