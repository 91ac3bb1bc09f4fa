from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import expert_layouts
from benchmarks.expert_layouts import (
    Verdict,
    decisive,
    dominant_term,
    judge_all,
    plan,
    report,
)
from shardwright.planner.engine import Found
from shardwright.planner.problem import Problem
from shardwright.planner.validation.choose import Choice
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, prepare
from shardwright.specs import Breakdown, Candidate, Certificate, InputError, Layout
from tests.planner.validation import rows
from tests.planner.validation.fakes import FakePricer, prediction


def job(**changes: Any) -> Job:
    """A row of the 2022 release: tp 2 x pp 2 x dp 2, micro-batches of 2, fully recomputed."""
    made = {"id": "korth-1", "stack": "megatron-lm-2022"} | changes
    (item,) = prepare([rows.row(**made)], CaseMaker(defaults=lambda row: {}))
    assert isinstance(item, Job), item
    return item


def problem_of(item: Job) -> Problem:
    case = item.case
    return Problem(case.model, case.training, case.profile, case.software)


def certificate(gap: float = 0.0) -> Certificate:
    return Certificate(
        considered=1, excluded_by_rules=0, excluded_by_memory=0, excluded_by_bound=0,
        excluded_by_dominance=0, simulated=1, optimal=gap == 0.0, gap=gap, space="all",
        search_s=0.1,
    )  # fmt: skip


def found(layout: Layout, step_s: float, gap: float = 0.0) -> Found:
    best = Candidate(layout=layout, prediction=prediction(step_s))
    return Found((best,), (), certificate(gap))


def other_layout(**changes: Any) -> Layout:
    return job(id="korth-2", parallel=changes).layouts[0]


def price(seconds: dict[tuple[int, int], float]) -> FakePricer:
    """By tp and micro-batch; else 1."""
    return FakePricer(
        lambda model, layout: prediction(seconds.get((layout.tp, layout.micro_batch), 1.0))
    )


def change_of(seconds: dict[tuple[int, int], float], **optimum: Any) -> Any:
    item, best = job(), other_layout(**optimum)
    case = item.case
    model = price(seconds)(case.model, case.training, case.profile, case.software)
    ends = [Choice(one, model.predict(one), 1) for one in (item.layouts[0], best)]
    return decisive(problem_of(item), model, *ends)


class TestDecisive:
    def test_the_one_choice_that_brings_most_of_the_difference(self) -> None:
        seconds = {(2, 2): 2.0, (4, 2): 1.9, (2, 4): 1.1, (4, 4): 1.0}
        change = change_of(seconds, tp=4, dp=1, micro_batch=4, num_microbatches=None)
        assert change.names == ("micro_batch",)
        assert change.values == ("2 -> 4",)
        assert change.ratio == pytest.approx(2.0 / 1.1)
        assert "micro_batch 2 -> 4: x 0.550" in change.words

    def test_two_where_neither_alone_brings_half_of_it(self) -> None:
        seconds = {(2, 2): 2.0, (4, 2): 1.9, (2, 4): 2.5, (4, 4): 1.0}
        change = change_of(seconds, tp=4, dp=1, micro_batch=4, num_microbatches=None)
        assert change.names == ("tp", "micro_batch")
        assert change.ratio == pytest.approx(2.0)

    def test_all_where_no_three_save(self) -> None:
        """Each alone, and both, cost more with the row's boundaries and dp."""
        item, best = job(), other_layout(tp=4, dp=1, micro_batch=4, num_microbatches=None)
        case = item.case
        model = price({(4, 4): 2.0})(case.model, case.training, case.profile, case.software)
        row = Choice(item.layouts[0], model.predict(item.layouts[0]), 1)
        change = decisive(problem_of(item), model, row, Choice(best, prediction(0.5), 1))
        assert change.names == ("tp", "micro_batch", "zero")
        assert change.ratio == pytest.approx(2.0)

    def test_the_term_that_changes_most(self) -> None:
        before = Breakdown(compute_forward=1.0, bubble=3.0)
        after = Breakdown(compute_forward=1.5, bubble=1.0)
        assert dominant_term(before, after) == ("bubble", (3.0, 1.0))


class TestVerdicts:
    def test_equal_jobs_are_planned_once(self) -> None:
        planned: list[Problem] = []

        def planner(problem: Problem, seconds: float) -> Found:
            planned.append(problem)
            return found(other_layout(tp=1, dp=4, num_microbatches=2), 1.0)

        items = [job(), job(id="korth-3", parallel={"tp": 4, "dp": 1, "num_microbatches": None})]
        items.append(job(id="korth-4", parallel={"global_batch": 32, "num_microbatches": None}))
        verdicts, without = judge_all(items, price({}), planner, 1.0)
        assert len(planned) == 2
        assert [one.id for one in verdicts] == ["korth-1", "korth-3", "korth-4"]
        assert without == []

    @pytest.mark.parametrize(
        ("step_s", "gap", "close", "sure"),
        [(1.08, 0.0, True, True), (1.08, 0.01, True, False), (1.09, 0.0, False, False),
         (0.9, 0.1, True, True)],
    )  # fmt: skip
    def test_up_to_the_margin_a_row_is_close(
        self, step_s: float, gap: float, close: bool, sure: bool
    ) -> None:
        one = self.verdict(step_s, gap)
        assert (one.is_close, one.is_close_for_sure) == (close, sure)

    def verdict(self, step_s: float, gap: float) -> Verdict:
        best = other_layout(tp=1, dp=4, num_microbatches=2)
        pricer = price({(2, 2): step_s})
        ((one,), _) = judge_all([job()], pricer, lambda *_: found(best, 1.0, gap), 1.0)
        return one

    def test_what_has_no_plan_is_named(self) -> None:
        nothing = Found((), (), certificate(1.0))
        verdicts, without = judge_all([job()], price({}), lambda *_: nothing, 1.0)
        assert verdicts == []
        assert without == ["korth-1: nothing was found that fits"]

        def refuse(*_: object) -> Found:
            raise InputError("nothing is left of the space")

        assert judge_all([job()], price({}), refuse, 1.0) == (
            [], ["korth-1: nothing is left of the space"],
        )  # fmt: skip

    def test_a_real_plan_is_as_fast_as_its_row(self) -> None:
        item = job(parallel={"recompute": "none"})
        best = plan(problem_of(item), 10.0)
        assert best.certificate.optimal
        ((one,), _) = judge_all(
            [item], _real_pricer(), lambda *_: best, 10.0
        )  # fmt: skip
        assert one.ratio >= 1.0 - 1e-9


def _real_pricer() -> Any:
    from shardwright.planner.validation.pricers import default_pricer

    return default_pricer()


class TestReport:
    def test_fractions_kinds_and_rows(self) -> None:
        best = other_layout(tp=4, dp=1, num_microbatches=None)
        pricer = price({(2, 2): 1.2})
        far = judge_all([job()], pricer, lambda *_: found(best, 1.0, 0.1), 1.0)
        close = judge_all([job(id="korth-9")], price({}), lambda *_: found(best, 1.0), 1.0)
        text = "\n".join(report([*far[0], *close[0]], ["x: why"], 5.0))
        assert "**1 of 2 (50%) of rows are close** (wanted: 70%)" in text
        assert "| megatron-lm-2022 | 2 | 1 of 2 (50%) | 1 | 1.100 | 1.200 | 1 |" in text
        assert "| megatron-lm-2022 | tp | " in text
        assert "| korth-1 | tp2 pp2 dp2 mb2 full | 0.60 |" in text
        assert "tp 2 -> 4: x 0.833" in text
        assert "- x: why" in text


def test_without_data_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_layouts, "TARGET", tmp_path / "out.md")
    assert expert_layouts.main(["--data", str(tmp_path), "--write"]) == 0
    assert "is not there" in capsys.readouterr().err
    assert not (tmp_path / "out.md").exists()
