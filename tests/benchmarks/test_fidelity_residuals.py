from __future__ import annotations

import pytest

from benchmarks.fidelity_residuals import LEAST_ROWS, Priced, patterns, priced, suspects, worst
from shardwright.planner.validation.results import Job, evaluate
from shardwright.specs import Breakdown, InputError, Layout, ModelSpec, Prediction
from tests.benchmarks.test_fidelity_scores import TWO_SECONDS, items
from tests.planner.validation.fakes import FakePricer, prediction


def bubbly(model: ModelSpec, layout: Layout) -> Prediction:
    """A tenth of the step is a bubble for each sequence of a micro-batch."""
    bubble = 0.2 * layout.micro_batch
    spent = Breakdown(compute_forward=2.0 - bubble, bubble=bubble)
    return prediction(2.0).model_copy(update={"breakdown": spent})


def rows(*measured: tuple[float, int]) -> list[Priced]:
    """Measured seconds with micro-batches of so many sequences."""
    made = items(*(
        {"measured": {"iteration_time_s": seconds},
         "parallel": {"micro_batch": size, "num_microbatches": None}}
        for seconds, size in measured
    ))  # fmt: skip
    return priced(made, evaluate(made, TWO_SECONDS), FakePricer(bubbly))


def test_rows_carry_the_shares_of_their_terms() -> None:
    (one,) = rows((2.0, 4))
    assert one.shares["bubble"] == pytest.approx(0.4)
    assert one.shares["compute_forward"] == pytest.approx(0.6)
    assert one.largest_term == "bubble"
    assert one.log_error == 0.0


def test_rows_that_cannot_be_compared_are_left_out() -> None:
    def fails(model: ModelSpec, layout: Layout) -> Prediction:
        raise InputError("not described")

    made = items({}, {"id": "open", "parallel": {"micro_batch": None}})
    results = evaluate(made, TWO_SECONDS)
    assert [one.result.id for one in priced(made, results, FakePricer(bubbly))] == ["r0"]
    assert priced(made, results, FakePricer(fails)) == []


def test_the_worst_kind_comes_first() -> None:
    found = rows(*[(2.0, 1)] * LEAST_ROWS, *[(4.0, 4)] * LEAST_ROWS)
    shown = [one for one in patterns(found) if one.name == "micro-batch"]
    assert [one.value for one in shown] == ["2 to 4", "<= 1"]
    assert shown[0].errors.median == pytest.approx(0.5)
    assert shown[1].errors.median == pytest.approx(0.0)


def test_few_rows_are_no_kind() -> None:
    assert patterns(rows(*[(2.0, 1)] * (LEAST_ROWS - 1))) == []


def test_the_suspect_is_the_term_that_goes_with_the_error() -> None:
    (found,) = suspects(rows(*[(2.0, 1), (2.2, 2), (2.6, 4)] * 4))
    assert (found.stack, found.num_rows, found.term) == ("some-stack", 12, "bubble")
    assert found.correlation > 0.9


def test_stacks_with_few_rows_have_no_suspect() -> None:
    assert suspects(rows((2.0, 1), (2.2, 2))) == []


def test_the_furthest_off_in_either_direction() -> None:
    found = worst(rows((2.0, 1), (1.0, 1), (5.0, 1)), 2)
    assert [one.result.measured_step_time_s for one in found] == [5.0, 1.0]


def test_jobs_are_those_of_the_items() -> None:
    (one,) = rows((2.0, 1))
    assert isinstance(one.job, Job)
    assert one.job.row.id == one.result.id
