from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.validation.pricers import (
    OurSteps,
    Remembering,
    ScaleFitter,
    default_fitter,
    default_pricer,
    replace_framework,
    run_defaults,
    scaled,
)
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, evaluate, prepare
from shardwright.specs import InputError, Layout, ModelSpec, Prediction, SoftwareSpec
from tests.planner.validation import rows
from tests.planner.validation.fakes import FakePricer, prediction

TWO_SECONDS = FakePricer(lambda model, layout: prediction(2.0))


def jobs(*changes: dict[str, Any]) -> list[Job]:
    found = [rows.row(**({"id": f"r{n}"} | change)) for n, change in enumerate(changes)]
    items = prepare(found, CaseMaker(defaults=run_defaults))
    assert all(isinstance(item, Job) for item in items)
    return [item for item in items if isinstance(item, Job)]


def measured(seconds: float, **changes: Any) -> dict[str, Any]:
    return {"measured": {"iteration_time_s": seconds}} | changes


class TestOurSteps:
    def test_prices_what_our_runtime_can_do(self) -> None:
        (result,) = evaluate(jobs({}), default_pricer())
        assert result.skipped is None
        assert result.predicted_step_time_s is not None
        assert 0.01 < result.predicted_step_time_s < 10

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"parallel": {"precision": "mxfp8"}}, "precision mxfp8"),
            ({"parallel": {"schedule": "zb-h1"}}, "schedule zb-h1"),
            ({"parallel": {"schedule": None, "vpp": 2}}, "schedule interleaved-1f1b"),
            ({"parallel": {"other": "LoRA"}}, "trainable = lora:16"),
            ({"parallel": {"other": "activation offload"}}, "offload of activations"),
            ({"parallel": {"recompute": "selective"}}, "selective recompute"),
            ({"parallel": {"cp": 2, "dp": 1, "micro_batch": 1}}, "cp = 2"),
        ],
    )
    def test_names_what_it_does_not_describe(self, changes: dict[str, Any], told: str) -> None:
        (result,) = evaluate(jobs(changes), OurSteps)
        assert told in str(result.skipped)

    def test_whoever_ran_our_layers_are_priced(self) -> None:
        assert replace_framework(SoftwareSpec(framework="x", compile=True)) == SoftwareSpec(
            compile=True
        )


class TestScaleFitter:
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

    def test_from_nothing_nothing_is_learned(self) -> None:
        (result,) = evaluate(jobs({}), default_fitter(TWO_SECONDS).fit([]))
        assert result.predicted_step_time_s == 2.0


def test_scaled_scales_every_second() -> None:
    found = scaled(prediction(2.0), 1.5)
    assert found.breakdown.total_s == found.step_time_s == 3.0
    assert found.tokens_per_s == pytest.approx(1 / 1.5)
    assert found.peak_memory_bytes == prediction(2.0).peak_memory_bytes


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
