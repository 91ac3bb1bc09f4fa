from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import sweep_plans
from benchmarks.sweep_plans import DATA, SWEEPS, Swept, compare, problems_of, report
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, prepare
from shardwright.planner.validation.rows import Row, read_runs
from shardwright.planner.validation.stack_fits import run_defaults
from tests.planner.validation import rows

SAMPLED = ("2gpu-gbs16-h1024-L12-s1024", "4gpu-gbs32-h2048-L24-s1024", "8gpu-gbs16-h2048-L24-s1024")
"""Small, and together some 50 layouts; `python -m benchmarks.sweep_plans` compares all."""


def sweep(tps: tuple[int, ...]) -> list[Job]:
    """One job under several layouts, which take the longer the more tp they have."""
    made: list[Row] = [
        rows.row(
            id=f"sweep-{tp}", stack="megatron-deepspeed", problem="sweep",
            parallel={"tp": tp, "dp": 4 // tp, "num_microbatches": None, "precision": "fp16",
                      "zero": 0},
        )
        for tp in tps
    ]  # fmt: skip
    items = prepare(made, CaseMaker(defaults=run_defaults))
    return [item for item in items if isinstance(item, Job)]


class TestCompare:
    def test_restricted_to_what_was_measured_the_pick_is_that_of_validate(self) -> None:
        found = compare("sweep", sweep((1, 2, 4)))
        assert found.picked == found.validated
        assert found.is_same_layout
        assert found.num_layouts == 3

    def test_unrestricted_the_plan_is_at_least_as_fast(self) -> None:
        found = compare("sweep", sweep((4,)))
        assert found.planned_s < found.measured_best_s
        assert found.is_never_slower
        assert found.gap == 0.0

    def test_only_timed_rows_of_a_problem_count(self) -> None:
        job = sweep((2,))[0]
        oom = replace(job, case=replace(job.case, row=job.row.model_copy(update={"status": "oom"})))
        alone = replace(
            job, case=replace(job.case, row=job.row.model_copy(update={"problem": None}))
        )
        assert problems_of([job, oom, alone]) == {"sweep": [job]}


@pytest.mark.skipif(not (DATA / SWEEPS).exists(), reason="the swept layouts are not there")
def test_on_swept_problems_the_pick_is_that_of_validate_and_no_plan_is_slower() -> None:
    wanted = [
        row for row in read_runs(DATA / SWEEPS).rows if getattr(row, "problem", "") in SAMPLED
    ]
    swept = problems_of(prepare(wanted, CaseMaker(defaults=run_defaults)))
    assert set(swept) == set(SAMPLED)
    for name, jobs in swept.items():
        found = compare(name, jobs)
        assert found.is_same_layout, found
        assert found.is_never_slower, found


class TestReport:
    def test_what_differs_is_counted_and_marked(self) -> None:
        good = Swept("a", 3, "x", "x", True, 2.0, 1.5, 0.0, "dp=8")
        slower = replace(good, problem="b", planned_s=2.1, gap=0.2)
        other = replace(good, problem="c", picked="y", is_same_layout=False)
        text = "\n".join(report([good, slower, other]))
        assert "picks on 2 of 3 problems" in text
        assert "measured layout on 2 of 3; 2 of these plans" in text
        assert "| a | 3 |" in text
        assert "| b **differs** | 3 |" in text
        assert "| c **differs** | 3 |" in text


def test_without_data_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_plans, "TARGET", tmp_path / "out.md")
    assert sweep_plans.main(["--data", str(tmp_path), "--write"]) == 0
    assert "is not there" in capsys.readouterr().err
    assert not (tmp_path / "out.md").exists()
