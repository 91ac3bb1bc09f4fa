"""Which cost model `validate` scores, what it learns, and that it prices each layout once."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.validation.pricers import Remembering, default_fitter, default_pricer
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, evaluate, peaks_of_kind, prepare
from shardwright.planner.validation.stack_fits import StackPricer, StackStudy, run_defaults
from shardwright.specs import InputError, Layout, ModelSpec, Prediction
from tests.planner.validation import rows
from tests.planner.validation.fakes import FakePricer, ScaleFitter, prediction

TWO_SECONDS = FakePricer(lambda model, layout: prediction(2.0))


def jobs(*changes: dict[str, Any]) -> list[Job]:
    found = [rows.row(**({"id": f"r{n}"} | change)) for n, change in enumerate(changes)]
    items = prepare(found, CaseMaker(defaults=run_defaults))
    assert all(isinstance(item, Job) for item in items)
    return [item for item in items if isinstance(item, Job)]


def measured(seconds: float, **changes: Any) -> dict[str, Any]:
    return {"measured": {"iteration_time_s": seconds}} | changes


class TestDefaultPricer:
    def test_prices_runs_of_any_software(self) -> None:
        (result,) = evaluate(jobs({}), default_pricer())
        assert result.skipped is None
        assert result.predicted_step_time_s is not None
        assert 0.01 < result.predicted_step_time_s < 10

    @pytest.mark.parametrize(
        "changes",
        [
            {"parallel": {"schedule": "zb-h1"}},
            {"parallel": {"schedule": None, "vpp": 2}},
            {"parallel": {"other": "LoRA"}},
            {"parallel": {"other": "activation offload"}},
            {"parallel": {"recompute": "selective"}},
            {"parallel": {"cp": 2, "dp": 1, "micro_batch": 1}},
        ],
    )
    def test_prices_what_our_own_runtime_cannot_run(self, changes: dict[str, Any]) -> None:
        (result,) = evaluate(jobs(changes), default_pricer())
        assert result.skipped is None
        assert result.predicted_step_time_s is not None

    def test_a_precision_that_the_device_lacks_is_a_reason(self) -> None:
        (result,) = evaluate(jobs({"parallel": {"precision": "mxfp8"}}), default_pricer())
        assert "no known rate for fp8" in str(result.skipped)


class TestDefaultFitter:
    def test_it_studies_the_files_jobs_and_leaves_its_skips(self) -> None:
        known = jobs({}, {})
        fitter = default_fitter([*known], forget=True)
        assert isinstance(fitter, StackStudy)
        assert list(fitter.jobs) == known
        assert fitter.forget

    def test_from_nothing_nothing_is_learned(self) -> None:
        known = jobs({})
        (before,) = evaluate(known, default_pricer())
        (after,) = evaluate(known, default_fitter(known).fit([]))
        assert after.predicted_step_time_s == before.predicted_step_time_s


class TestScaleFitter:
    """The plainest fitter, which other tests here use."""

    def test_a_stack_takes_its_own_median(self) -> None:
        known = jobs(measured(3.0), measured(4.0), measured(8.0))
        (result, *_) = evaluate(known, ScaleFitter(TWO_SECONDS).fit(known))
        assert result.predicted_step_time_s == 4.0
        assert result.band_s == (2.0, 6.0)

    def test_an_unseen_stack_takes_the_median_of_the_stacks(self) -> None:
        known = jobs(
            *(measured(4.0, stack="a") for _ in range(5)),
            measured(6.0, stack="b"),
            measured(20.0, stack="c"),
        )
        unseen = jobs({"stack": "d"})
        (result,) = evaluate(unseen, ScaleFitter(TWO_SECONDS).fit(known))
        assert result.predicted_step_time_s == 6.0


class TestRemembering:
    def test_each_layout_is_priced_once_also_where_it_is_refused(self) -> None:
        asked: list[int] = []

        def price(model: ModelSpec, layout: Layout) -> Prediction:
            asked.append(layout.zero)
            if layout.zero:
                raise InputError("no ZeRO")
            return prediction()

        pricer = Remembering.of(FakePricer(price))
        known = jobs({"parallel": {"zero": 0}}, {"parallel": {"zero": 1}})
        first = evaluate(known, pricer)
        assert evaluate(known, pricer) == first
        assert asked == [0, 1]
        assert [result.skipped for result in first] == [None, "no ZeRO"]

    def test_a_job_has_one_model(self) -> None:
        pricer = Remembering.of(StackPricer())
        (job,) = jobs({})
        case = job.case
        one, two = (
            pricer(case.model, case.training, case.profile, case.software) for _ in range(2)
        )
        assert one is two

    @pytest.mark.parametrize("kind", ["device", "reserved", "allocated_or_unknown"])
    def test_kinds_of_memory_are_the_models_own(self, kind: Any) -> None:
        (job,) = jobs({})
        case, (layout,) = job.case, job.layouts
        remembering: Any = Remembering.of(StackPricer())(
            case.model, case.training, case.profile, case.software
        )
        own = StackPricer()(case.model, case.training, case.profile, case.software)
        assert isinstance(own, StackModel)
        assert remembering.memory_of_kind(layout, kind) == own.memory_of_kind(layout, kind)

    def test_kinds_of_memory_of_plainer_models_follow_from_their_parts(self) -> None:
        (job,) = jobs({})
        case, (layout,) = job.case, job.layouts
        remembering: Any = Remembering.of(TWO_SECONDS)(
            case.model, case.training, case.profile, case.software
        )
        found = remembering.memory_of_kind(layout, "device")
        assert found == peaks_of_kind(prediction(2.0), "device", case.profile)
