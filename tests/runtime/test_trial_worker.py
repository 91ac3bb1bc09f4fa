"""A rank of a trial leaves what it found, or why it failed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime import ranks, trial_worker
from shardwright.runtime.job import JOB_FILE, Failure, failure_file
from shardwright.runtime.trial import Entry, TrialJob, read_visits, visited_last
from tests.runtime.plans import cluster_of, plan_of


@pytest.fixture(autouse=True)
def _rank_zero_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(trial_worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(ranks, "settle_on_cores", lambda *_: None)


def _work(folder: Path, *, foreign: bool = False) -> int:
    plan = plan_of(micro_batch=4, cluster=cluster_of(1) if foreign else local_cluster(1))
    entry = Entry(layout=plan.layout, prediction=plan.prediction)
    job = TrialJob(plan=plan, entries=(entry,), num_rounds=3, steps_per_visit=1)
    (folder / JOB_FILE).write_text(job.to_json(), encoding="utf-8")
    return trial_worker.main(folder)


def test_visits_are_left(tmp_path: Path) -> None:
    assert _work(tmp_path) == 0
    assert [one.index for one in read_visits(tmp_path)] == [0, 0, 0]
    assert visited_last(tmp_path, 0) is None


def test_a_refusal_is_left(tmp_path: Path) -> None:
    assert _work(tmp_path, foreign=True) == 2
    failure = Failure.from_json(failure_file(tmp_path, 0).read_text(encoding="utf-8"))
    assert "test-device" in (failure.why or "")
