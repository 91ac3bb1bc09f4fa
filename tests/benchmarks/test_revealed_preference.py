from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import revealed_preference as preference
from benchmarks.revealed_preference import judge, judge_all, neighbours_of, report, tuned_jobs
from shardwright.planner.validation.candidates import layouts_of
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, prepare
from shardwright.specs import Breakdown, InputError, Layout, ModelSpec, Prediction
from tests.planner.validation import rows
from tests.planner.validation.fakes import FakePricer, prediction

ALL = ("none", "selective", "full")


def job(**changes: Any) -> Job:
    """A row of the 2022 release: tp 2 x pp 2 x dp 2, micro-batches of 2, fully recomputed."""
    made = {"id": "korth-1", "stack": "megatron-lm-2022"} | changes
    (item,) = prepare([rows.row(**made)], CaseMaker(defaults=lambda row: {}))
    assert isinstance(item, Job), item
    return item


def steps(item: Job) -> dict[str, Layout]:
    """Every neighbour that can be laid out."""
    found = {}
    for step, case in neighbours_of(item.case, item.layouts[0], ALL):
        try:
            (found[step],) = layouts_of(case)
        except InputError:
            continue
    return found


def by(seconds: dict[str, float], **more: Any) -> FakePricer:
    """A cost model: seconds by the degrees of a layout, as ``tp2 pp2``; else 1."""

    def price(model: ModelSpec, layout: Layout) -> Prediction:
        return prediction(seconds.get(f"tp{layout.tp} pp{layout.pp}", 1.0), **more)

    return FakePricer(price)


class TestNeighbours:
    def test_each_dimension_is_halved_and_doubled(self) -> None:
        assert set(steps(job())) == {
            "tp / 2", "pp / 2", "micro_batch / 2", "tp x 2", "pp x 2", "micro_batch x 2",
            "vpp x 2", "recompute none", "recompute selective",
        }  # fmt: skip

    def test_gpus_and_batch_stay(self) -> None:
        for layout in steps(job()).values():
            assert layout.world == 8
            assert layout.dp * layout.micro_batch * layout.micro_batches == 16

    def test_no_more_than_one_step_is_taken(self) -> None:
        found = steps(job())
        assert (found["tp x 2"].tp, found["tp x 2"].pp, found["tp x 2"].dp) == (4, 2, 1)
        assert found["tp x 2"].micro_batch == 2
        assert found["vpp x 2"].schedule == "interleaved-1f1b"
        assert found["pp / 2"].schedule is None

    def test_sequence_parallelism_ends_with_tensor_parallelism(self) -> None:
        sequence_parallel = job(parallel={"sequence_parallel": True})
        found = steps(sequence_parallel)
        assert found["pp x 2"].sequence_parallel
        assert not found["tp / 2"].sequence_parallel

    def test_policies_that_the_software_lacks_are_left_out(self) -> None:
        found = dict(neighbours_of(job().case, job().layouts[0], ("none", "full")))
        assert "recompute selective" not in found
        assert "recompute none" in found


class TestJudgement:
    def test_the_best_neighbour_and_how_much_better(self) -> None:
        found = judge(job(), by({"tp2 pp2": 1.2, "tp4 pp2": 1.1, "tp1 pp2": 1.15}))
        assert found.ratio == pytest.approx(1.2)  # pp and the rest cost 1.0
        assert not found.is_preferred

    def test_up_to_the_margin_a_neighbour_may_be_faster(self) -> None:
        assert judge(job(), by({"tp2 pp2": 1.07})).is_preferred
        assert not judge(job(), by({"tp2 pp2": 1.09})).is_preferred

    def test_a_neighbour_that_does_not_fit_is_not_compared(self) -> None:
        assert judge(job(), by({"tp2 pp2": 1.2}, verdict="does_not_fit")).neighbours == ()

    def test_rules_of_the_software_hold(self) -> None:
        """Interleaving needs a multiple of pp micro-batches, here 3 with pp 2."""
        odd = job(parallel={"global_batch": 12, "num_microbatches": 3})
        taken = {one.step for one in judge(odd, by({})).neighbours}
        assert "vpp x 2" not in taken
        assert "vpp x 2" in {one.step for one in judge(job(), by({})).neighbours}

    def test_the_dominant_term_is_what_is_saved_most_of(self) -> None:
        def price(model: ModelSpec, layout: Layout) -> Prediction:
            bubble = 0.5 if layout.pp == 2 else 0.0
            spent = Breakdown(compute_forward=1.0 + 0.1 * layout.pp, bubble=bubble)
            return prediction(spent.total_s).model_copy(update={"breakdown": spent})

        found = judge(job(), FakePricer(price))
        assert found.best is not None
        assert found.best.step == "pp / 2"
        assert found.dominant_term == ("bubble", 0.5)


class TestTuned:
    def test_other_stacks_and_other_sources_do_not_count(self) -> None:
        assert tuned_jobs([job(id="x-1"), job(stack="llm-foundry"), job(status="oom")]) == []

    def test_a_clearly_slower_layout_of_the_same_job_was_not_chosen(self) -> None:
        slow = job(id="korth-2", measured={"iteration_time_s": 2.2})
        close = job(id="korth-3", measured={"iteration_time_s": 2.04})
        found = {item.row.id: why for item, why in tuned_jobs([job(), slow, close])}
        assert found["korth-1"] is None
        assert found["korth-3"] is None
        assert "clearly faster" in str(found["korth-2"])


class TestReport:
    def test_fractions_and_each_defect(self) -> None:
        items = [job(), job(id="korth-2", problem="q", parallel={"tp": 4, "dp": 1})]
        judged, unpriced = judge_all(items, by({"tp2 pp2": 1.2}))
        text = "\n".join(report(judged, unpriced))
        assert "**1 of 2 (50%) of tuned rows are preferred**" in text
        assert "| megatron-lm-2022 | 2 | 1 of 2 (50%) |" in text
        assert "| korth-1 | tp2 pp2 dp2 mb2 full | 0.60 |" in text
        assert "| korth-2 |" not in text

    def test_a_later_release_that_ran_the_job_faster_is_named(self) -> None:
        old = job(problem="release 1")
        new = job(id="korth-2", problem="release 2", measured={"iteration_time_s": 0.5})
        same = replace(new, case=replace(new.case, model=old.case.model))
        text = "\n".join(report(*judge_all([old, same], by({"tp2 pp2": 1.2}))))
        assert "| korth-2: 0.25 |" in text
        assert "| itself |" in text

    def test_rows_that_cannot_be_priced_are_named(self) -> None:
        def price(model: ModelSpec, layout: Layout) -> Prediction:
            raise InputError("nothing is known of it")

        judged, unpriced = judge_all([job()], FakePricer(price))
        assert judged == []
        assert unpriced == ["korth-1: nothing is known of it"]


def test_without_data_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preference, "TARGET", tmp_path / "out.md")
    assert preference.main(["--data", str(tmp_path), "--write"]) == 0
    assert "is not there" in capsys.readouterr().err
    assert not (tmp_path / "out.md").exists()
