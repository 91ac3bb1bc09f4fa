from __future__ import annotations

import pytest

from shardwright.planner.validation import anchor
from shardwright.planner.validation.anchor import AnchorScore, anchor_scores, choices, over_stacks
from shardwright.planner.validation.results import evaluate
from tests.planner.validation.fakes import ScaleFitter
from tests.planner.validation.test_pricers import TWO_SECONDS, jobs, measured


class TestChoices:
    def test_one_row_is_chosen_in_every_way(self) -> None:
        assert choices(3, 1) == [(0,), (1,), (2,)]

    def test_few_combinations_are_all_taken(self) -> None:
        assert choices(4, 2) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]

    def test_many_are_drawn_alike_every_time(self) -> None:
        found = choices(50, 3)
        assert found == choices(50, 3)
        assert len(set(found)) == anchor.NUM_DRAWS
        assert all(len(set(rows)) == 3 for rows in found)

    def test_the_work_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(anchor, "MOST_PRICES", 100)
        assert len(choices(50, 1)) == 2


def scored(num_anchors: int, *seconds: float) -> AnchorScore:
    items = jobs(*(measured(s) for s in seconds))
    results = evaluate(items, TWO_SECONDS)
    (found,) = anchor_scores(items, results, num_anchors, ScaleFitter(TWO_SECONDS))
    return found


def test_a_stack_that_is_off_by_one_factor_is_learned_from_one_row() -> None:
    found = scored(1, 3.0, 3.0, 3.0)
    assert (found.num_rows, found.num_choices) == (3, 3)
    assert found.mape == pytest.approx(0.0)
    assert found.band_coverage == 1.0


def test_figures_are_means_over_the_choices() -> None:
    found = scored(1, 2.0, 4.0)
    assert found.mape == pytest.approx((0.5 + 1.0) / 2)


def test_a_stack_without_rows_to_score_says_so() -> None:
    found = scored(2, 2.0, 4.0)
    assert (found.num_rows, found.num_choices, found.mape) == (2, 0, None)


def test_stacks_are_apart() -> None:
    items = jobs(
        measured(3.0, stack="b"), measured(3.0, stack="b"), measured(9.0, stack="a"),
        measured(9.0, stack="a"),
    )  # fmt: skip
    found = anchor_scores(items, evaluate(items, TWO_SECONDS), 1, ScaleFitter(TWO_SECONDS))
    assert [(s.stack, s.mape) for s in found] == [("a", 0.0), ("b", 0.0)]


def test_over_stacks_each_weighs_as_many_as_its_rows() -> None:
    scores = (
        AnchorScore("a", 3, 3, mape=0.1, median=0.2, p90=0.3, bias=-0.1, band_coverage=None),
        AnchorScore("b", 1, 1, mape=0.5, median=0.2, p90=0.3, bias=0.3, band_coverage=0.5),
        AnchorScore("c", 1, 0),
    )
    whole = over_stacks(scores)
    assert whole is not None
    assert (whole.stack, whole.num_rows, whole.num_choices) == ("all", 4, 4)
    assert whole.mape == pytest.approx(0.2)
    assert whole.bias == pytest.approx(0.0)
    assert whole.band_coverage == 0.5
    assert over_stacks(scores[2:]) is None
