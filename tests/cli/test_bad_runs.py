"""What only a started rank can meet: each ends with one message, and older checkpoints whole."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime.checkpoint import CheckpointStore
from shardwright.specs import OptimizerSpec
from tests.cli.endings import Ending, end_of
from tests.runtime.plans import plan_of, training_of

COMMAND = (sys.executable, "-c", "from shardwright.cli import main; main()", "run")
WAIT_S = 60
FULL_AFTER_BYTES = 20_000
"""Less than the tensors of the smallest model take, more than any other file of a run."""


@contextmanager
def listening_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


def as_a_rank(port: str, *, world: int = 1) -> dict[str, str]:
    """The variables of rank 0 of a launch."""
    return {"RANK": "0", "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def free_port() -> str:
    with listening_port() as port:
        return port


def run(
    plan: Path, *options: str, environment: Mapping[str, str], fill_disk: bool = False
) -> Ending:
    """``run`` in a process of its own, on mock data; a full disk is a limit on its files' sizes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_AFTER_BYTES, FULL_AFTER_BYTES))

    done = subprocess.run(
        [*COMMAND, str(plan), "--data", "mock", *options],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=WAIT_S,
        check=False, preexec_fn=limit if fill_disk else None,
    )  # fmt: skip
    return Ending(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan_of(cluster=local_cluster(1)).save(path)
    return path


@pytest.fixture(scope="module")
def trained(plan: Path) -> Path:
    """The checkpoints of two steps."""
    folder = plan.parent / "trained"
    ending = run(
        plan, "--steps", "2", "--save", str(folder), "--save-every", "1",
        environment=as_a_rank(free_port()),
    )  # fmt: skip
    assert (ending.code, list(ending.faults())) == (0, []), ending
    assert CheckpointStore(folder).steps() == [1, 2]
    return folder


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.multiprocess
def test_an_altered_checkpoint_is_not_resumed(tmp_path: Path, plan: Path, trained: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    flip_a_bit(folder / "step-000002" / "__0_0.distcp")
    ending = run(
        plan, "--steps", "4", "--save", str(folder), "--resume",
        environment=as_a_rank(free_port()),
    )  # fmt: skip
    assert (ending.code, list(ending.faults())) == (4, []), ending
    assert "its file __0_0.distcp was altered" in ending.err
    assert "go back to step 1" in ending.err
    assert CheckpointStore(folder).steps() == [1, 2]


@pytest.mark.multiprocess
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, plan: Path, trained: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.glob("step-*/*")}
    ending = run(
        plan, "--steps", "3", "--save", str(folder), "--resume",
        environment=as_a_rank(free_port()), fill_disk=True,
    )  # fmt: skip
    assert (ending.code, list(ending.faults())) == (4, []), ending
    assert "cannot save the checkpoint of step 3" in ending.err
    assert "the one of step 2 is untouched" in ending.err
    assert {path: path.read_bytes() for path in folder.glob("step-*/*")} == before
    assert CheckpointStore(folder).latest_step() == 2


@pytest.mark.multiprocess
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "launched"])
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, joined: bool) -> None:
    rate = OptimizerSpec(learning_rate=1e38, clip_norm=None, warmup_steps=0)
    plan = tmp_path / "plan.json"
    plan_of(training=training_of(optimizer=rate), cluster=local_cluster(1)).save(plan)
    folder = tmp_path / "run"
    ending = run(
        plan, "--steps", "9", "--save", str(folder), "--save-every", "1",
        environment=as_a_rank(free_port()) if joined else {},
    )  # fmt: skip
    assert (ending.code, list(ending.faults())) == (4, []), ending
    assert "step 2 gave loss " in ending.err
    assert "lower the learning rate" in ending.err
    assert CheckpointStore(folder).latest_step() == 1


@pytest.mark.multiprocess
def test_a_port_in_use_is_named(plan: Path) -> None:
    with listening_port() as port:
        ending = run(plan, "--steps", "2", environment=as_a_rank(port, world=2))
    assert (ending.code, list(ending.faults())) == (4, []), ending
    assert f"127.0.0.1:{port} because that port is in use" in ending.err


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        pytest.param({"RANK": "first", "WORLD_SIZE": "2"}, "RANK is 'first'", id="rank-in-words"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR", id="no-address"),
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "SLURM_LOCALID", id="slurm-torn"),
    ],
)
def test_a_torn_launch_is_refused(
    plan: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    ending = end_of(["run", str(plan), "--data", "mock", "--steps", "2"])
    assert (ending.code, list(ending.faults())) == (2, []), ending
    assert said in ending.err
