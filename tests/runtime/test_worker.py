"""A worker leaves its summary or its failure, and never outlives its agent."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime import ranks, worker
from shardwright.runtime.job import JOB_FILE, SUMMARY_FILE, Failure, Job, failure_file
from shardwright.runtime.summary import RunSummary
from tests.runtime.plans import cluster_of, plan_of


@pytest.fixture(autouse=True)
def _rank_zero_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(ranks, "settle_on_cores", lambda *_: None)


def _work(folder: Path, job: Job) -> int:
    (folder / JOB_FILE).write_text(job.to_json(), encoding="utf-8")
    return worker.main(folder)


def test_done_job_leaves_its_summary(tmp_path: Path) -> None:
    job = Job(plan=plan_of(cluster=local_cluster(1)), data="mock", steps=2)
    assert _work(tmp_path, job) == 0
    summary = RunSummary.from_json((tmp_path / SUMMARY_FILE).read_text(encoding="utf-8"))
    assert summary.last_step == 2
    assert not failure_file(tmp_path, 0).exists()


def test_refused_job_leaves_its_failure(tmp_path: Path) -> None:
    job = Job(plan=plan_of(cluster=cluster_of(1)), data="mock", steps=2)
    assert _work(tmp_path, job) == 2
    failure = Failure.from_json(failure_file(tmp_path, 0).read_text(encoding="utf-8"))
    assert "but this machine is" in failure.problem
    assert not (tmp_path / SUMMARY_FILE).exists()


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell of a parent's end")
def test_worker_dies_with_its_agent() -> None:
    child = (
        "from shardwright.runtime import worker; worker.die_with_parent();"
        " print('ready', flush=True); import time; time.sleep(60)"
    )
    agent = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        " print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        process = psutil.Process(int(run.stdout.readline()))
        assert run.stdout.readline() == "ready\n"
        run.kill()
        assert psutil.wait_procs([process], timeout=20)[1] == []
