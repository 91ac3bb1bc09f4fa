"""Runs as users start them: ranks that are killed, stopped, resumed, or joined from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime.checkpoint import CheckpointStore
from shardwright.runtime.job import Failure, Job, LostPeerError, failure_file
from shardwright.runtime.launch import WORKER_MODULE, environment_of, explain_failures
from shardwright.runtime.metrics import StepRecord, read_records
from shardwright.specs import InputError, RunError
from tests.runtime.plans import plan_of, small_model

STEPS = 24
_COMMAND = (sys.executable, "-c", "from shardwright.cli import main; main()", "run")
_WAIT_S = 120.0


def _start(plan: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_COMMAND, str(plan), "--data", "mock", *options],
        env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; no process of the run may be left."""
    try:
        output, errors = process.communicate(timeout=_WAIT_S)
    finally:
        process.kill()
    left = [
        p for p in psutil.process_iter(["cmdline"]) if WORKER_MODULE in (p.info["cmdline"] or ())
    ]
    assert [p for p in left if p.ppid() in (process.pid, 1)] == []
    return process.returncode, output, errors


def _worker(process: subprocess.Popen[str], rank: int) -> psutil.Process:
    return next(
        child
        for child in psutil.Process(process.pid).children()
        if WORKER_MODULE in child.cmdline() and child.environ()["RANK"] == str(rank)
    )


def _wait_for_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while len(read_records(folder / "metrics.jsonl")) < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _numbers(folder: Path) -> list[tuple[float, float, float]]:
    records = read_records(folder / "metrics.jsonl")
    return [(record.loss, record.grad_norm, record.learning_rate) for record in records]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Two pipeline ranks on this machine."""
    path = tmp_path / "plan.json"
    plan_of(small_model(num_layers=2), cluster=local_cluster(2), pp=2).save(path)
    return path


@pytest.mark.multiprocess
def test_killed_and_stopped_runs_continue_as_if_nothing_had_happened(
    tmp_path: Path, plan: Path
) -> None:
    broken = tmp_path / "broken"
    options = ("--steps", str(STEPS), "--save", str(broken), "--save-every", "4")

    killed = _start(plan, *options)
    _wait_for_step(broken, 6, killed)
    _worker(killed, 1).kill()
    code, _, errors = _finish(killed)
    (message,) = [line for line in errors.splitlines() if line.startswith("error:")]
    assert code == 4
    assert "rank 1 was killed by signal 9" in message
    assert "the last checkpoint is step " in message
    assert f"--save {broken} --resume" in message
    assert "Traceback" not in errors

    stopped = _start(plan, *options, "--resume")
    _wait_for_step(broken, 14, stopped)
    stopped.send_signal(signal.SIGTERM)
    code, output, errors = _finish(stopped)
    assert (code, "stopped early by a signal" in output) == (0, True), errors
    assert CheckpointStore(broken).latest_step() == len(read_records(broken / "metrics.jsonl"))

    resumed = _start(plan, *options, "--resume", "--json")
    unbroken = _start(plan, "--steps", str(STEPS), "--save", str(tmp_path / "unbroken"))
    code, output, errors = _finish(resumed)
    assert code == 0, errors
    assert json.loads(output)["last_step"] == STEPS
    assert _finish(unbroken)[0] == 0
    assert len(_numbers(broken)) == STEPS
    assert _numbers(broken) == _numbers(tmp_path / "unbroken")


def _ranks_of_a_launch(
    world: int, start: Callable[[dict[str, str]], subprocess.Popen[str]]
) -> list[tuple[int, str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        start({
            "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        })
        for rank in range(world)
    ]  # fmt: skip
    return [_finish(process) for process in processes]


@pytest.mark.multiprocess
def test_ranks_of_a_running_launch_join_and_the_first_one_speaks(plan: Path) -> None:
    first, second = _ranks_of_a_launch(
        2, lambda variables: _start(plan, "--steps", "2", "--json", **variables)
    )
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert json.loads(first[1])["num_ranks"] == 2
    assert second[1] == ""


@pytest.mark.multiprocess
def test_launch_of_another_size_is_refused_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan_of(cluster=local_cluster(4), pp=4).save(path)
    first, second = _ranks_of_a_launch(
        2, lambda variables: _start(path, "--steps", "2", **variables)
    )
    assert (first[0], second[0]) == (2, 2)
    assert "the plan is for 4 ranks, but this torchrun launch has 2" in first[2]
    assert "error:" not in second[2]


def _job(**options: object) -> Job:
    return Job.model_validate({"plan": plan_of(pp=4), "data": "mock", "steps": 20, **options})


def _leave(folder: Path, rank: int, error: InputError | RunError) -> None:
    failure_file(folder, rank).write_text(Failure.of(error).to_json(), encoding="utf-8")


def test_what_killed_a_rank_wins_over_what_others_say(tmp_path: Path) -> None:
    _leave(tmp_path, 0, LostPeerError("rank 0 lost the connection"))
    error = explain_failures(_job(), tmp_path, {0: 4, 1: -9, 2: -15})
    assert error.exit_code == 4
    assert "rank 1 was killed by signal 9 (out of memory?) before the first step" in str(error)


def test_cause_wins_over_lost_connections(tmp_path: Path) -> None:
    _leave(tmp_path, 0, LostPeerError("rank 0 lost the connection"))
    _leave(tmp_path, 3, RunError("rank 3 ran out of memory in step 2", fix="plan again"))
    error = explain_failures(_job(), tmp_path, {0: 4, 3: 4})
    assert str(error) == "rank 3 ran out of memory in step 2. To fix: plan again"


def test_refusal_of_ranks_keeps_its_exit_code(tmp_path: Path) -> None:
    for rank in range(4):
        _leave(tmp_path, rank, InputError("wrong data", why="so", fix="do"))
    error = explain_failures(_job(), tmp_path, {0: 2, 1: -15})
    assert (error.exit_code, str(error)) == (2, "wrong data because so. To fix: do")


def test_our_own_fault_has_exit_code_one(tmp_path: Path) -> None:
    error = explain_failures(_job(save_dir=str(tmp_path)), tmp_path, {2: 1, 3: -15})
    assert error.exit_code == 1
    assert "rank 2 ended with exit code 1" in str(error)


def test_step_and_checkpoint_are_named(tmp_path: Path) -> None:
    record = StepRecord(11, 1.0, 1.0, 1e-3, 1.0, 1.0)
    line = json.dumps({name: getattr(record, name) for name in StepRecord.__slots__})
    (tmp_path / "metrics.jsonl").write_text(line + "\n", encoding="utf-8")
    (tmp_path / "step-000010").mkdir()
    error = explain_failures(_job(save_dir=str(tmp_path)), tmp_path, {1: -9})
    assert f"at about step 12; the last checkpoint is step 10 in {tmp_path}" in str(error)


def test_ranks_start_with_the_plans_variables() -> None:
    job = _job(
        plan=plan_of().model_copy(update={"environment": {"OMP_NUM_THREADS": "3", "A": "b"}})
    )
    environment = environment_of(job)
    assert (environment["OMP_NUM_THREADS"], environment["A"]) == ("3", "b")
    assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
