"""Jobs and failures survive the way between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.runtime.job import Failure, Job, LostPeerError
from shardwright.specs import InputError, RunError, ShardwrightError
from tests.runtime.plans import plan_of


def test_job_round_trips() -> None:
    job = Job(plan=plan_of(pp=2), data="mock", steps=3, save_dir="run")
    assert Job.from_json(job.to_json()) == job


@pytest.mark.parametrize(
    "error",
    [InputError("a", why="b", fix="c"), RunError("a", fix="c"), LostPeerError("a", why="b")],
)
def test_failure_keeps_message_and_exit_code(error: ShardwrightError) -> None:
    failure = Failure.from_json(Failure.of(error).to_json())
    assert failure.lost_peer == isinstance(error, LostPeerError)
    again = failure.as_error()
    assert (str(again), again.exit_code) == (str(error), error.exit_code)


def test_metrics_lie_beside_checkpoints_or_with_the_launcher() -> None:
    job = Job(plan=plan_of(), data="mock", steps=3)
    assert job.metrics_path(None) is None
    assert job.metrics_path(Path("folder")) == Path("folder/metrics.jsonl")
    kept = job.model_copy(update={"save_dir": "run"})
    assert kept.metrics_path(Path("folder")) == Path("run/metrics.jsonl")
    assert "--save run --resume" in kept.how_to_continue()
    assert "--save DIR" in job.how_to_continue()
