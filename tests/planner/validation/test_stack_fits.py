"""Stacks learn from runs that were measured on machines with known numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shardwright.hardware_profiles.stacks import fitted, stack_facts
from shardwright.planner.validation import stack_fits
from shardwright.planner.validation.cross import held_out
from shardwright.planner.validation.results import Job, evaluate
from shardwright.planner.validation.stack_fits import (
    StackPricer,
    StackStudy,
    calibrated,
    observations,
    run_defaults,
)
from shardwright.specs import ShardwrightError
from tests.planner.validation import rows
from tests.planner.validation.test_pricers import jobs

LAYOUTS: list[dict[str, Any]] = [
    {"tp": tp, "pp": pp, "dp": 8 // tp // pp, "micro_batch": micro, "zero": zero,
     "num_microbatches": 16 * tp * pp // 8 // micro, "schedule": "1f1b" if pp > 1 else None}
    for tp, pp, micro, zero in (
        (1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 2, 1), (8, 1, 2, 0), (2, 2, 1, 1), (1, 2, 1, 0),
        (1, 4, 1, 1), (4, 2, 2, 1),
    )
]  # fmt: skip
MODEL = {"layers": 8, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn_hidden": 16384}


def runs_of(stack: str, layouts: Sequence[dict[str, Any]] = LAYOUTS) -> list[Job]:
    changes = ({"stack": stack, "model": MODEL, "parallel": one} for one in layouts)
    found = jobs(*changes)
    named = [
        replace(job, case=replace(job.case, row=job.row.model_copy(update={"id": f"{stack}-{n}"})))
        for n, job in enumerate(found)
    ]
    return [job for job in named if priced(StackPricer(), [job])[0] is not None]


def priced(pricer: Any, known: Sequence[Job]) -> list[float | None]:
    return [result.predicted_step_time_s for result in evaluate(known, pricer)]


def timed(known: Sequence[Job], **hidden: float) -> list[Job]:
    """The jobs, measured on a machine where a stack has these numbers."""
    names = {name.replace("__", "."): value for name, value in hidden.items()}
    fresh = {job.case.software.framework: names for job in known}
    found = []
    for job, seconds in zip(known, priced(StackPricer(fresh=fresh), known), strict=True):
        measured = job.row.measured.model_copy(update={"iteration_time_s": seconds})
        row = job.row.model_copy(update={"measured": measured})
        found.append(replace(job, case=replace(job.case, row=row)))
    return found


SLOW = {"stack__compute_ratio": 1.5, "stack__collective_ratio": 2.0}
RUNS = timed(runs_of("some-stack"), **SLOW)


def off(pricer: Any, known: Sequence[Job]) -> list[float]:
    """|log(predicted / measured)| by run."""
    return [
        abs(math.log((seconds or math.nan) / (job.row.step_time_s or math.nan)))
        for job, seconds in zip(known, priced(pricer, known), strict=True)
    ]


def test_what_a_run_leaves_open_is_known_of_its_stack() -> None:
    found = run_defaults(rows.row(stack="megatron-lm-2021"))
    facts = stack_facts("megatron-lm-2021")
    assert found["framework"] == "megatron-lm-2021"
    assert found["attention_kernel"] == facts.software.attention_kernel
    assert run_defaults(rows.row(stack="never heard of"))["framework"] == "never heard of"


def test_a_precision_that_is_not_ours_is_no_error() -> None:
    assert run_defaults(rows.row(parallel={"precision": "int3"}))["framework"] == "some-stack"


class TestCalibration:
    def test_one_run_halves_the_error_of_the_others(self) -> None:
        before, after = off(StackPricer(), RUNS), off(calibrated(RUNS[:1]), RUNS)
        assert sum(after) < sum(before) / 2

    def test_more_runs_do_better(self) -> None:
        found = [sum(off(calibrated(RUNS[:count]), RUNS)) for count in (0, 1, 4, len(RUNS))]
        assert found[0] > found[1] > found[-1]
        assert found[2] > found[-1] * 0.9

    def test_another_stack_on_the_same_device_learns_its_clock_alone(self) -> None:
        other = runs_of("another-stack", LAYOUTS[:3])
        pricer = calibrated(RUNS[:1])
        fresh = priced(pricer, other)
        for before, after in zip(priced(StackPricer(), other), fresh, strict=True):
            assert before is not None
            assert after is not None
            assert 0.9 < after / before < 1.15

    def test_from_no_runs_nothing_is_learned(self) -> None:
        assert priced(calibrated([]), RUNS) == priced(StackPricer(), RUNS)

    def test_numbers_stay_within_reason(self) -> None:
        absurd = [
            replace(job, case=replace(job.case, row=job.row.model_copy(update={
                "measured": job.row.measured.model_copy(update={"iteration_time_s": 1000.0})})))
            for job in RUNS[:1]
        ]  # fmt: skip
        pricer = calibrated(absurd)
        assert all(1e-3 < value < 1e3 for value in pricer.fresh["some-stack"].values() if value > 1)


class TestObservations:
    def test_jobs_share_the_model_of_their_case(self) -> None:
        found = [one for _, one in observations(RUNS, StackPricer())]
        assert len({id(one.model) for one in found}) < len(found)
        assert {one.scopes for one in found} == {
            frozenset({"stack:some-stack", "device:a100-sxm4-80gb"})
        }
        assert all(one.weight == 1.0 for one in found)

    def test_runs_of_unknown_layout_count_less_and_are_the_likeliest(self) -> None:
        (job,) = jobs({"model": MODEL, "parallel": {"micro_batch": None, "num_microbatches": None}})
        assert len(job.layouts) > 1
        ((_, one),) = observations([job], StackPricer())
        assert one.weight < 1.0
        assert one.layout in job.layouts

    def test_a_large_stack_does_not_outvote_the_others(self) -> None:
        (job,) = runs_of("some-stack", LAYOUTS[:1])
        many = [job] * 600
        weights = [one.weight for _, one in observations(many, StackPricer())]
        assert sum(weights) < 600
        assert sum(weights) > sum(one.weight for _, one in observations(many[:100], StackPricer()))

    def test_untimed_jobs_and_jobs_that_cannot_be_priced_are_left_out(self) -> None:
        untimed = [
            replace(job, case=replace(job.case, row=job.row.model_copy(update={
                "measured": job.row.measured.model_copy(update={"iteration_time_s": None}),
                "derived": None})))
            for job in RUNS[:1]
        ]  # fmt: skip
        refused = jobs({"parallel": {"precision": "mxfp8"}})
        case = refused[0].case
        with pytest.raises(ShardwrightError):
            StackPricer()(case.model, case.training, case.profile, case.software)
        assert observations([*untimed, *refused], StackPricer()) == []


@pytest.fixture(scope="module")
def study() -> StackStudy:
    slow = timed(runs_of("slow-stack"), stack__compute_ratio=1.4)
    fast = timed(runs_of("fast-stack"), stack__compute_ratio=1.0)
    return StackStudy([*slow, *fast], rounds=1)


class TestStudy:
    def test_stacks_are_told_apart(
        self, study: StackStudy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stack_fits, "_FEW", 4)
        pricer = study.fit(study.jobs)
        assert isinstance(pricer, StackPricer)
        assert pricer.known is not None
        ratios = {name: values["stack.compute_ratio"] for name, values in
                  pricer.known.stacks.items()}  # fmt: skip
        assert ratios["slow-stack"] / ratios["fast-stack"] == pytest.approx(1.4, rel=0.12)
        assert sum(off(pricer, study.jobs)) < 0.5 * sum(off(StackPricer(), study.jobs))

    def test_a_stack_that_was_held_out_is_unknown(
        self, study: StackStudy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stack_fits, "_FEW", 4)
        kept = [job for job in study.jobs if job.row.stack == "fast-stack"]
        pricer = study.fit(kept)
        assert isinstance(pricer, StackPricer)
        assert pricer.known is not None
        assert set(pricer.known.stacks) == {"fast-stack"}
        assert set(pricer.known.layers) <= {"fast-stack"}
        assert pricer.known.num_runs == {"fast-stack": len(kept)}

    def test_few_jobs_are_a_calibration(self, study: StackStudy) -> None:
        pricer = study.fit(study.jobs[:1])
        assert isinstance(pricer, StackPricer)
        assert set(pricer.fresh) == {"slow-stack"}

    def test_a_calibration_may_forget_its_own_stack(
        self, study: StackStudy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stack_fits, "_FEW", 4)
        forgetful = StackStudy(study.jobs, forget=True, rounds=1)
        pricer = forgetful.fit(study.jobs[:1])
        assert isinstance(pricer, StackPricer)
        assert pricer.known is not None
        assert set(pricer.known.stacks) == {"fast-stack"}


def test_of_a_small_file_nothing_that_is_held_out_is_known() -> None:
    """However its rows were timed, and even where the catalogue knows its stack."""
    others = timed(runs_of("fms-fsdp", LAYOUTS[:2]))
    predicted = []
    for ratio in (1.0, 3.0):
        held = timed(runs_of("torchtitan", LAYOUTS[:2]), stack__compute_ratio=ratio)
        items = [*others, *held]
        results = held_out(items, "stack", StackStudy(items)).results
        predicted.append([result.predicted_step_time_s for result in results[2:]])
    assert predicted[0] == predicted[1]
    known = StackStudy(items).fit(others, unseen=held)
    assert isinstance(known, StackPricer)
    assert known.known is not None
    assert "torchtitan" in fitted().stacks
    assert "torchtitan" not in known.known.stacks


def test_the_catalogue_is_not_changed_by_learning() -> None:
    before = fitted().model_dump()
    calibrated(RUNS[:1])
    assert fitted().model_dump() == before
