"""The replay itself: hidden is hidden, plans obey what they must, the docs show what it prints."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from functools import cache

import pytest

from benchmarks.replay import (
    PAGE,
    PLOT,
    Planner,
    balanced_stages,
    even_stages,
    jobs_of,
    question_of,
    replay,
    with_numbers,
)
from benchmarks.replay_facts import FORBIDDEN, launched, numbers, trials
from benchmarks.replay_plot import draw, section_colours
from benchmarks.replay_report import page, screen
from benchmarks.replay_scores import Grid
from benchmarks.replay_story import Story
from shardwright.planner.engine import engine_for
from shardwright.planner.validation.results import Job
from shardwright.planner.validation.stack_fits import StackPricer


@cache
def story() -> Story:
    return replay()


def last_job() -> Job:
    return jobs_of([launched()])[0]


class TestStages:
    def test_layers_alone(self) -> None:
        assert list(even_stages(6, 12)) == [
            (6,), (3, 6), (2, 4, 6), (1, 2, 3, 4, 5, 6)
        ]  # fmt: skip
        assert list(even_stages(6, 4)) == [(6,), (3, 6)]

    def test_embedding_and_head_stand_for_a_layer_each(self) -> None:
        # 4 layers and 2: halves of 3 hold 2 layers each, thirds of 2 hold 1, 2 and 1.
        assert list(balanced_stages(4, 6)) == [(2, 4), (1, 3, 4)]
        assert list(balanced_stages(4, 4)) == [(2, 4)]

    def test_bloom_as_its_readme_has_it(self) -> None:
        sizes = [
            tuple(b - a for a, b in zip((0, *stops), stops, strict=False))
            for stops in balanced_stages(70, 384)
        ]
        assert (5, *[6] * 10, 5) in sizes


class TestHidden:
    def test_a_question_holds_nothing_that_was_measured(self) -> None:
        job = last_job()
        measured = job.row.measured.model_copy(update={"iteration_time_s": 1.0, "peak_mem_gb": 1.0})
        other = jobs_of([launched()])[0]
        case = other.case
        changed = Job(
            type(case)(
                case.row.model_copy(update={"measured": measured}), case.model, case.training,
                case.profile, case.software, case.defaults, case.assumed,
            ), other.layouts,
        )  # fmt: skip
        assert question_of(changed, numbers()) == question_of(job, numbers())

    def test_plans_are_priced_with_the_numbers_that_saw_nothing(self) -> None:
        job, known = last_job(), numbers()
        case = job.case
        expected = StackPricer(known)(case.model, case.training, case.profile, case.software)
        engine = engine_for(question_of(job, known))
        (layout,) = job.layouts
        assert engine.predict(layout) == expected.predict(layout)
        catalogue = StackPricer()(case.model, case.training, case.profile, case.software)
        assert expected.predict(layout) != catalogue.predict(layout)

    def test_a_profile_names_each_number_once(self) -> None:
        case = last_job().case
        profile = with_numbers(case.profile, case.software, numbers())
        names = [one.name for one in profile.parameters]
        assert len(set(names)) == len(names)
        assert "stack.compute_ratio" in names


class TestPlanner:
    def test_it_plans_what_bloom_was_trained_with(self) -> None:
        found = Planner.of(launched(), last_job(), numbers()).best()
        assert found is not None
        assert str(Grid.of(found.layout)) == "tp4 pp12 dp8 mb2"
        assert [stage.layers[1] - stage.layers[0] for stage in found.layout.stages] == [
            5, *[6] * 10, 5
        ]  # fmt: skip

    def test_tp8_first_takes_the_fewest_stages_and_the_largest_micro_batch_that_fit(self) -> None:
        planner = Planner.of(launched(), last_job(), numbers())
        found = planner.by_rule()
        assert found is not None
        layout = found.layout
        assert layout.tp == 8
        stops = tuple(stage.layers[1] for stage in layout.stages)
        larger = planner.engine.predict(planner._ruled(stops, layout.micro_batch * 2))
        assert larger.memory_verdict != "fits"
        for fewer in (*even_stages(70, 48), *balanced_stages(70, 48)):
            if len(fewer) < layout.pp and 2048 % (48 // len(fewer)) == 0:
                peak = planner.engine.predict(planner._ruled(fewer, 1))
                assert peak.memory_verdict != "fits", fewer


class TestStory:
    def test_every_shape_is_planned_as_the_software_could_run_it(self) -> None:
        assert {"zero2", "zero3", "offload"} <= set(FORBIDDEN)
        found = story()
        assert sum(len(one.trials) for one in found.answers) == len(trials())
        for answer in found.answers:
            assert answer.plan is not None
            layout = answer.plan.layout
            assert layout.tp in (1, 2, 4, 8)
            assert layout.vpp == layout.cp == layout.ep == 1
            assert layout.zero in (0, 1)
            assert {entry.policy for entry in layout.recompute} == {"full"}
            assert not layout.offload
            sizes = [b - a for a, b in (stage.layers for stage in layout.stages)]
            assert len(set(sizes[1:-1])) <= 1
            assert answer.plan.prediction.memory_verdict == "fits"

    def test_a_plan_is_never_predicted_slower_than_a_trial_that_fits_with_a_margin(self) -> None:
        found = story()
        results = {one.id: one for one in found.unseen}
        for answer in found.answers:
            assert answer.plan is not None
            planned_s = answer.plan.prediction.step_time_s
            for trial in answer.trials:
                result = results[trial.row.id]
                if not result.is_at_risk:
                    assert result.predicted_step_time_s is not None
                    assert planned_s <= result.predicted_step_time_s * (1 + 1e-9), trial.row.id

    def test_what_is_known_of_the_sweep_helps(self) -> None:
        """One trial mends the level; the catalogue saw all of them."""
        found = story()
        none, one, every = found.unseen_summary, found.anchored, found.catalogue
        assert every.median_error < one.median_error < none.median_error
        assert every.mean_regret < none.mean_regret

    def test_the_docs_show_what_is_printed(self) -> None:
        again = "python -m benchmarks.replay --write"
        assert PAGE.read_text(encoding="utf-8") == page(story()), again
        assert PLOT.read_text(encoding="utf-8") == draw(story()), again

    def test_it_is_one_screen(self) -> None:
        lines = screen(story()).splitlines()
        assert len(lines) <= 60
        assert max(map(len, lines)) <= 160
        assert re.search(r"\d+ of 49 \(", screen(story()))

    def test_the_plot_shows_every_trial_and_every_pick(self) -> None:
        root = ET.fromstring(draw(story()))
        space = "{http://www.w3.org/2000/svg}"
        circles = root.findall(f"{space}circle")
        timed = sum(not one.row.is_oom for one in trials())
        in_choices = sum(one.num_timed for one in story().choices)
        dots = [one for one in circles if one.find(f"{space}title") is not None]
        assert len(dots) == 2 * timed + in_choices
        rings = [one for one in circles if one.get("r") == "8"]
        assert len(rings) == len(story().choices) + 1
        for dot in dots:
            assert 0 < float(dot.get("cx", "0")) < float(root.get("width", "0"))
            assert 0 < float(dot.get("cy", "0")) < float(root.get("height", "0"))
        assert len(set(section_colours(trials()).values())) == 8


def test_trials_that_make_no_job_are_refused() -> None:
    broken = launched().row.model_copy(update={"status": "lost"})
    with pytest.raises(AssertionError):
        jobs_of([type(launched())("s", "d", "x", False, broken)])
