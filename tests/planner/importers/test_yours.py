"""A user's own layout beside the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.planner.api import PlanAnswer, plan
from shardwright.planner.importers.job import Asked, Job, job_of
from shardwright.planner.importers.registry import Given
from shardwright.planner.importers.yours import Yours, adopted, yours_of
from shardwright.planner.problem import Problem
from tests.planner.importers.megatron.scripts import BATCH, SIZES


def asked(folder: Path, more: str = "") -> tuple[Job, Problem, PlanAnswer]:
    path = folder / "run.sh"
    path.write_text(
        f"torchrun --nproc_per_node 4 pretrain_gpt.py {SIZES} {BATCH} --bf16 {more}\n",
        encoding="utf-8",
    )
    job = job_of(path, "megatron-lm", Asked(cluster="dgx-a100-80gb"), Given())
    one = job.question
    answer = plan(
        model=one.model, profile=one.profile, training=one.training, software=one.software,
        top=1, time_limit_s=20,
    )  # fmt: skip
    return job, Problem(one.model, one.training, one.profile, one.software), answer


def judged(folder: Path, more: str = "") -> Yours:
    job, problem, answer = asked(folder, more)
    return yours_of(problem, job.reading, answer)


def test_a_slower_layout_says_where_its_time_goes(tmp_path: Path) -> None:
    found = judged(
        tmp_path, "--tensor-model-parallel-size 4 --recompute-granularity full"
        " --recompute-method uniform --recompute-num-layers 1",
    )  # fmt: skip
    assert found.verdict == "slower"
    assert "tp traffic" in found.reasons[0]
    json = found.to_json_dict()
    assert json["layout"]["tp"] == 4
    assert json["prediction"]["step_time_s"] > 0


def test_a_layout_that_cannot_be_says_why(tmp_path: Path) -> None:
    found = judged(tmp_path, "--tensor-model-parallel-size 3")
    assert (found.verdict, found.candidate) == ("unknown", None)
    assert "no multiple" in found.reasons[0]
    assert found.to_json_dict()["layout"] is None
    found = judged(tmp_path, "--micro-batch-size 5")
    assert found.verdict == "breaks_rules"
    assert "micro_batch" in found.reasons[0]


def test_a_faster_layout_becomes_the_plan_of_a_search_that_was_cut_short(tmp_path: Path) -> None:
    job, problem, answer = asked(tmp_path, "--use-distributed-optimizer")
    assert answer.plan is not None
    plan_s = answer.plan.prediction.step_time_s
    cut = answer.plan.certificate.model_copy(update={"optimal": False, "gap": 0.5})
    slow = answer.plan.prediction.model_copy(
        update={"step_time_s": 10 * plan_s, "step_time_band_s": (9 * plan_s, 11 * plan_s)}
    )
    made = answer.plan.model_copy(update={"certificate": cut, "prediction": slow})
    late = replace(answer, plan=made, certificate=cut)
    found = yours_of(problem, job.reading, late)
    assert found.verdict == "faster"
    better = adopted(late, found)
    assert better.plan is not None
    assert found.candidate is not None
    assert better.plan.layout == found.candidate.layout
    assert better.plan.alternatives[0].layout == made.layout
    own_s = found.candidate.prediction.step_time_s
    assert better.plan.certificate.gap == pytest.approx(max(0.0, 1 - 5 * plan_s / own_s))
    books = better.plan.certificate
    assert books.considered == sum(
        (books.excluded_by_rules, books.excluded_by_memory, books.excluded_by_bound,
         books.excluded_by_dominance, books.simulated)
    )  # fmt: skip
    fixed = replace(late, plan=made.model_copy(update={"asked": {"fix": "tp=1"}}))
    assert adopted(fixed, found) is fixed
