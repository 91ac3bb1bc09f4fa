"""`run` reads the plan and its options, then starts ranks or becomes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime import api, trainer
from shardwright.runtime.job import Job
from shardwright.runtime.metrics import StepRecord
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.runtime.summary import RunSummary, summarize
from shardwright.specs import InputError, Plan, RunError
from tests.runtime.plans import plan_of

JOINED = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    plan_of(cluster=local_cluster(2), dp=2).save(path)
    return path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Jobs that would start ranks."""
    jobs: list[Job] = []

    def launch(job: Job) -> RunSummary:
        jobs.append(job)
        record = StepRecord(1, 1.0, 1.0, 1e-3, 1.0, 1.0)
        return summarize(
            job.plan, [record], [], first_step=1, stopped_early=False, checkpoint=None, metrics=None
        )

    monkeypatch.setattr(api, "launch", launch)
    for name in JOINED:
        monkeypatch.delenv(name, raising=False)
    return jobs


def test_alone_it_starts_the_plans_ranks(plan: Path, launched: list[Job]) -> None:
    summary = api.run(plan_path=plan, data="mock", steps=3)
    (job,) = launched
    assert (job.plan, job.data, job.steps) == (Plan.load(plan), "mock", 3)
    assert summary is not None
    assert summary.num_ranks == 2


def test_seed_replaces_the_plans(plan: Path, launched: list[Job]) -> None:
    api.run(plan_path=plan, data="mock", steps=3, seed=11)
    assert launched[0].plan.training.seed == 11


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"steps": 0}, "steps: Input should be greater than 0", id="steps"),
        pytest.param({"save_every": -1}, "save_every: .*greater than 0", id="save-every"),
        pytest.param({"data": "absent.txt"}, "there is no data file or folder", id="data"),
        pytest.param({"plan_path": "absent.json"}, "there is no plan file", id="plan"),
    ],
)
def test_wrong_input_starts_nothing(
    plan: Path, launched: list[Job], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        api.run(**{"plan_path": plan, "data": "mock", "steps": 3, **options})
    assert launched == []


@pytest.mark.parametrize("on_every_rank", [True, False])
def test_first_rank_speaks_for_all(
    plan: Path, monkeypatch: pytest.MonkeyPatch, on_every_rank: bool
) -> None:
    joined: list[Rendezvous] = []

    def fail(job: Job, rendezvous: Rendezvous) -> None:
        joined.append(rendezvous)
        error = RunError("failed")
        error.on_every_rank = on_every_rank
        raise error

    monkeypatch.setattr(trainer, "train", fail)
    for name, value in JOINED.items():
        monkeypatch.setenv(name, value)
    expected: type[BaseException] = SystemExit if on_every_rank else RunError
    with pytest.raises(expected) as raised:
        api.run(plan_path=plan, data="mock", steps=3)
    assert joined[0].rank == 1
    if isinstance(raised.value, SystemExit):
        assert raised.value.code == RunError.exit_code
