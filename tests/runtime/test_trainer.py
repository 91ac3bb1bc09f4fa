"""The training loop, as a world of one rank in this process."""

from __future__ import annotations

import errno
import math
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime import ranks, trainer
from shardwright.runtime.checkpoint import CheckpointStore
from shardwright.runtime.job import Job
from shardwright.runtime.metrics import StepRecord, read_records
from shardwright.runtime.models import build_rank
from shardwright.runtime.models.huggingface import to_hugging_face
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import shard_of
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.runtime.summary import RunSummary
from shardwright.runtime.trainer import Trainer, train
from shardwright.specs import InputError, OptimizerSpec, Plan, RunError
from tests.runtime.plans import plan_of, small_model, training_of


@pytest.fixture(autouse=True)
def _unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own process keeps all its cores."""
    monkeypatch.setattr(ranks, "settle_on_cores", lambda *_: None)


def _plan(**choices: Any) -> Plan:
    training = choices.pop("training", None) or training_of()
    return plan_of(small_model(num_layers=2), training, cluster=local_cluster(1), **choices)


def _train(folder: Path, **options: Any) -> RunSummary:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = Job(**{"plan": _plan(), "data": "mock", "steps": 6, "save_dir": str(folder), **options})
    summary = train(job, Rendezvous("torchrun", 0, 1, 0, 1, "127.0.0.1", port))
    assert summary is not None
    return summary


def _losses(folder: Path) -> list[tuple[float, float, float]]:
    records = read_records(folder / "metrics.jsonl")
    return [(record.loss, record.grad_norm, record.learning_rate) for record in records]


def test_loss_falls_on_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 300, encoding="utf-8")
    summary = _train(tmp_path / "run", data=str(text), steps=12)
    assert summary.first_loss is not None
    assert summary.last_loss is not None
    assert summary.last_loss < 0.8 * summary.first_loss


def test_summary_compares_prediction_and_measurement(tmp_path: Path) -> None:
    summary = _train(tmp_path, save_every=4)
    assert (summary.first_step, summary.last_step, summary.stopped_early) == (1, 6, False)
    assert summary.num_timed_steps == 3
    assert summary.measured_step_time_s is not None
    (memory,) = summary.memory
    weights_and_states_bytes = 4 * 4 * small_model(num_layers=2).num_parameters
    assert memory.live_tensor_bytes is not None
    assert memory.live_tensor_bytes > weights_and_states_bytes
    assert CheckpointStore(tmp_path).steps() == [4, 6]
    assert summary.checkpoint == str(tmp_path / "step-000006")


def test_resumed_run_continues_to_the_last_bit(tmp_path: Path) -> None:
    _train(tmp_path / "unbroken")
    store = CheckpointStore(tmp_path / "broken")
    _train(tmp_path / "broken", save_every=2)
    (tmp_path / "broken" / "latest").write_text("step-000004\n", encoding="utf-8")
    summary = _train(tmp_path / "broken", resume=True)
    assert summary.first_step == 5
    assert _losses(tmp_path / "broken") == _losses(tmp_path / "unbroken")
    assert store.latest_step() == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    do_step = Trainer._do_step

    def interrupted(self: Trainer, step: int) -> StepRecord:
        if step == 2:
            os.kill(os.getpid(), number)
        return do_step(self, step)

    monkeypatch.setattr(Trainer, "_do_step", interrupted)
    summary = _train(tmp_path)
    assert (summary.last_step, summary.stopped_early) == (3, True)
    assert CheckpointStore(tmp_path).latest_step() == 3
    monkeypatch.undo()


def test_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    optimizer = OptimizerSpec(learning_rate=1e30, warmup_steps=0, clip_norm=None)
    plan = _plan(training=training_of(optimizer=optimizer))
    with pytest.raises(
        RunError, match=r"step [23] gave loss \S+ and gradient norm (nan|inf)"
    ) as error:
        _train(tmp_path, plan=plan, save_every=1)
    assert "--resume" in str(error.value)
    assert all(abs(loss) < float("inf") for loss, _, _ in _losses(tmp_path))


def test_full_disk_ends_the_run_and_keeps_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FileSystemWriter.write_data

    def full_later(self: FileSystemWriter, *args: Any) -> Any:
        if CheckpointStore(tmp_path).latest_step() is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, *args)

    monkeypatch.setattr(FileSystemWriter, "write_data", full_later)
    with pytest.raises(RunError, match="cannot save the checkpoint of step 4") as error:
        _train(tmp_path, save_every=2)
    assert "the one of step 2 is untouched" in str(error.value)
    monkeypatch.undo()
    assert _train(tmp_path, resume=True).first_step == 3


def test_other_runs_are_refused_before_anything_is_touched(tmp_path: Path) -> None:
    _train(tmp_path, steps=1)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InputError, match="holds a run's checkpoints"):
        _train(tmp_path)
    with pytest.raises(InputError, match="seed is 5, there 0"):
        _train(tmp_path, resume=True, plan=_plan(training=training_of(seed=5)))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_weights_of_another_model_than_the_plans_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def build_wrong(model: Any, *args: Any, **options: Any) -> Any:
        return build_rank(small_model(num_layers=2, vocab_size=300), *args, **options)

    monkeypatch.setattr(trainer, "build_rank", build_wrong)
    with pytest.raises(RunError, match=r"embedding.weight is built as .*300.*planned as .*307"):
        _train(tmp_path)


def test_run_starts_from_hugging_face_weights(tmp_path: Path) -> None:
    plan = _plan()
    rank = build_rank(plan.model, plan.layout, plan.training, ParallelGroups.alone())
    weights = {shard_of(p).name: p.detach().clone() for p in rank.parameters()}
    weights["head.weight"].zero_()  # every token is then equally likely
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file(to_hugging_face(plan.model, weights), folder / "model.safetensors")
    summary = _train(tmp_path / "run", steps=1, init_from=str(folder))
    assert summary.first_loss == pytest.approx(math.log(plan.model.embedding.vocab_size), rel=1e-6)
