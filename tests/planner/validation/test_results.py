from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from shardwright.hardware_profiles.profile import Parameter
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import (
    Job,
    RowResult,
    Skip,
    evaluate,
    peaks_of_kind,
    prepare,
    price,
)
from shardwright.planner.validation.rows import MemoryKind, Row, Unreadable, parse_rows
from shardwright.specs import InputError, Layout, ModelSpec, Prediction
from tests.planner.validation import rows
from tests.planner.validation.fakes import CAPACITY, FakePricer, prediction


def items_of(*found: Row | Unreadable, defaults: Any = None) -> tuple[Job | Skip, ...]:
    return prepare(found, CaseMaker(defaults=defaults or (lambda row: {})))


def result_of(row: Row, priced: Prediction) -> RowResult:
    (result,) = evaluate(items_of(row), FakePricer(lambda model, layout: priced))
    return result


def job_of(row: Row) -> Job:
    (item,) = items_of(row)
    assert isinstance(item, Job)
    return item


def test_a_row_beside_its_prediction() -> None:
    result = result_of(rows.row(), prediction(1.5, band=(0.5, 2.0)))
    assert result.skipped is None
    assert (result.measured_step_time_s, result.predicted_step_time_s) == (2.0, 1.5)
    assert result.band_s == (0.75, 3.0)
    assert result.ratio == 0.75
    assert (result.measured_oom, result.predicted_oom, result.is_at_risk) == (False, False, False)
    assert (result.stack, result.accelerator, result.is_full) == (
        "some-stack", "a100-sxm4-80gb", True,
    )  # fmt: skip


def test_of_a_row_that_ran_out_of_memory_only_the_verdict_counts() -> None:
    row = rows.row(status="oom", measured={"peak_mem_gb": None})
    result = result_of(row, prediction(peaks=(2 * CAPACITY,)))
    assert (result.measured_oom, result.predicted_oom, result.ratio) == (True, True, None)


def test_the_time_of_a_memory_row_is_not_scored() -> None:
    result = result_of(rows.row(kind="memory_only"), prediction())
    assert result.measured_step_time_s is None
    assert result.memory_ratio is not None


def test_the_cheapest_open_choice_is_taken() -> None:
    def faster_with_zero(model: ModelSpec, layout: Layout) -> Prediction:
        return prediction(2.0 - layout.zero)

    row = rows.row(parallel={"zero": None})
    (result,) = evaluate(items_of(row), FakePricer(faster_with_zero))
    assert (result.predicted_step_time_s, result.num_open) == (1.0, 2)
    assert result.layout is not None
    assert result.layout.zero == 1


class TestSkips:
    def test_unreadable_rows_and_rows_that_make_no_job(self) -> None:
        items = items_of(
            Unreadable("bad", "no row"), rows.row(id="k", kind="kernel"), rows.row(id="good")
        )
        results = evaluate(items, FakePricer(lambda model, layout: prediction()))
        assert [(r.id, r.skipped) for r in results] == [
            ("bad", "no row"), ("k", "a kernel is no training run"), ("good", None),
        ]  # fmt: skip

    def test_contradictions(self) -> None:
        (item,) = items_of(rows.row(parallel={"dp": 3}))
        assert isinstance(item, Skip)
        assert "does not make up 8 GPUs" in item.reason

    def test_what_a_model_does_not_describe_is_skipped_without_its_advice(self) -> None:
        def refuse(model: ModelSpec, layout: Layout) -> Prediction:
            raise InputError("no experts", why="none are built", fix="use dense models")

        (result,) = evaluate(items_of(rows.row()), FakePricer(refuse))
        assert result.skipped == "no experts because none are built"
        assert result.predicted_step_time_s is None
        assert result.measured_step_time_s == 2.0

    def test_a_fault_of_the_model_ends_nothing(self) -> None:
        def fail(model: ModelSpec, layout: Layout) -> Prediction:
            if layout.tp == 2:
                raise KeyError("oops")
            return prediction()

        other = rows.row(id="b", parallel={"tp": 1, "dp": 4})
        results = evaluate(items_of(rows.row(), other), FakePricer(fail))
        assert results[0].skipped == "the cost model failed: KeyError: 'oops'"
        assert results[1].skipped is None

    def test_a_fault_while_a_job_is_made_ends_nothing(self) -> None:
        def fail(row: Row) -> dict[str, Any]:
            raise RuntimeError("no defaults")

        (item,) = items_of(rows.row(), defaults=fail)
        assert isinstance(item, Skip)
        assert "RuntimeError: no defaults" in item.reason


class TestMemory:
    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("allocated_or_unknown", [9e9, 19e9]),
            ("reserved", [9.9e9, 20.9e9]),
            ("device", [10e9, 20e9]),
        ],
    )
    def test_kinds(self, kind: MemoryKind, expected: list[float]) -> None:
        profile = job_of(rows.row()).case.profile
        others = [p for p in profile.parameters if p.name != "memory.fragmentation_fraction"]
        margin = Parameter(
            name="memory.fragmentation_fraction", value=0.1, unit="1", kind="user",
            fitted_from="test",
        )  # fmt: skip
        profile = profile.model_copy(update={"parameters": (*others, margin)})
        device = profile.devices.accelerator
        context = device.memory_bytes - device.usable_memory_bytes
        priced = prediction(peaks=(10 * 10**9, 20 * 10**9))
        extra = context if kind == "device" else 0
        found = peaks_of_kind(priced, kind, profile)
        assert list(found) == [value + extra for value in expected]

    @pytest.mark.parametrize(
        ("note", "peak"),
        [
            (None, 30e9),
            ("max over stages", 30e9),
            ("rank-0 peak", 10e9),
            ("max over first/last pipeline ranks incl. embedding", 20e9),
        ],
    )
    def test_ranks_that_a_source_looked_at(self, note: str | None, peak: float) -> None:
        row = rows.row(memory_kind=None, measured={"mem_note": note})
        priced = prediction(peaks=(10 * 10**9, 30 * 10**9, 20 * 10**9), fixed=0)
        assert result_of(row, priced).predicted_peak_memory_bytes == peak

    def test_a_predictor_may_tell_the_kinds_apart_itself(self) -> None:
        class Knowing:
            def predict(self, layout: Layout) -> Prediction:
                return prediction()

            def memory_of_kind(self, layout: Layout, kind: MemoryKind) -> Sequence[int]:
                return [len(kind)]

        result = price(job_of(rows.row()), Knowing())
        assert result.predicted_peak_memory_bytes == len("device")


def test_jobs_of_one_model_and_cluster_share_a_predictor() -> None:
    made: list[str] = []

    class Counting(FakePricer):
        def __call__(self, model: ModelSpec, *rest: Any) -> Any:
            made.append(model.name)
            return super().__call__(model, *rest)

    items = items_of(
        rows.row(id="a"), rows.row(id="b", parallel={"zero": 0}), rows.row(id="c", stack="other")
    )
    evaluate(items, Counting(lambda model, layout: prediction()))
    assert len(made) == 2


JUNK: tuple[Any, ...] = (
    None, 0, -1, 1, 3, 10**6, 10**30, 0.5, float("nan"), "", "x", "8", True, [], ["a"], {},
    {"a": 1},
)  # fmt: skip


def damaged(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row with each of its fields replaced by each kind of junk, one at a time."""
    for key, part in whole.items():
        if key != "id":
            yield from (whole | {key: junk} for junk in JUNK)
        if isinstance(part, dict):
            for field in part:
                yield from (whole | {key: part | {field: junk}} for junk in JUNK)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {"experts": 8, "topk": 2, "gated_mlp": True, "other": "MLA; 1 dense; 1 shared"}},
        {"status": "oom", "hardware": {"accelerator": "GB200", "gpus_per_node": 4}},
    ],
)
def test_whatever_a_row_holds_it_is_priced_or_skipped_with_a_reason(
    changes: dict[str, Any],
) -> None:
    priced = prediction()
    values = [value | {"id": f"r{n}"} for n, value in enumerate(damaged(rows.value(**changes)))]
    items = prepare(parse_rows(values), CaseMaker(defaults=lambda row: {}))
    results = evaluate(items, FakePricer(lambda model, layout: priced))
    assert len(results) == len(values) > 500
    for found in results:
        assert (found.skipped is None) == (found.predicted_step_time_s is not None), found.id
        assert found.skipped is None or "cannot be read as a job" not in found.skipped, found
    assert sum(found.skipped is None for found in results) > 100
