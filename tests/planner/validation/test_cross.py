from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardwright.planner.validation.choose import Pricer
from shardwright.planner.validation.cross import HOLD_OUTS, HoldOut, folds, held_out
from shardwright.planner.validation.results import Job, Skip
from tests.planner.validation import rows
from tests.planner.validation.fakes import ScaleFitter
from tests.planner.validation.test_pricers import TWO_SECONDS, jobs, measured

ROWS = jobs(
    measured(2.0, stack="a", problem="p"),
    measured(2.0, stack="a", problem="q", model={"layers": 8}),
    measured(4.0, stack="b", problem="p"),
    measured(4.0, stack="b", problem=None, model={"seq_len": 512}),
)


def parts(hold_out: HoldOut) -> list[list[str]]:
    return sorted(sorted(fold.rows) for fold in folds(ROWS, hold_out))


@pytest.mark.parametrize(
    ("hold_out", "expected"),
    [
        ("stack", [["r0", "r1"], ["r2", "r3"]]),
        ("model", [["r0"], ["r1"], ["r2", "r3"]]),
        ("each-problem", [["r0", "r2"], ["r1"], ["r3"]]),
        ("problem", [["r0", "r2"], ["r1"], ["r3"]]),
    ],
)
def test_what_is_left_out_together(hold_out: HoldOut, expected: list[list[str]]) -> None:
    assert parts(hold_out) == expected


def test_problems_are_dealt_into_five_folds_alike_every_time() -> None:
    many = jobs(*({"problem": f"p{n // 2}"} for n in range(24)))
    found = folds(many, "problem")
    assert found == folds(many, "problem")
    assert sorted(len(fold.rows) for fold in found) == [4, 4, 4, 6, 6]
    for fold in found:  # whole problems: both rows of each
        assert all((f"r{int(r[1:]) ^ 1}") in fold.rows for r in fold.rows)


class Recording:
    """A fitter that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[set[str]] = []

    def fit(self, jobs: Sequence[Job], *, unseen: Sequence[Job] = ()) -> Pricer:
        self.shown.append({job.row.id for job in jobs})
        return TWO_SECONDS


@pytest.mark.parametrize("hold_out", HOLD_OUTS)
def test_no_row_is_priced_by_a_model_that_saw_it(hold_out: HoldOut) -> None:
    fitter = Recording()
    found = held_out(ROWS, hold_out, fitter)
    everything = {job.row.id for job in ROWS}
    left_out = [everything - shown for shown in fitter.shown]
    assert sorted(row for part in left_out for row in part) == sorted(everything)
    assert [score.num_fitted for score in found.folds] == [len(shown) for shown in fitter.shown]


def test_results_keep_the_order_of_the_rows_and_their_skips() -> None:
    skip = Skip(rows.row(id="s"), "no job")
    found = held_out([ROWS[0], skip, *ROWS[1:]], "stack", ScaleFitter(TWO_SECONDS))
    assert [result.id for result in found.results] == ["r0", "s", "r1", "r2", "r3"]
    assert found.results[1].skipped == "no job"
    by_id = {result.id: result.predicted_step_time_s for result in found.results}
    assert by_id == {"r0": 4.0, "r1": 4.0, "r2": 2.0, "r3": 2.0, "s": None}
    assert [(fold.name, fold.errors.mape) for fold in found.folds] == [("a", 1.0), ("b", 0.5)]
