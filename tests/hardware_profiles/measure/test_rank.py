"""A rank of a measurement as it is started: by its arguments, its pipe and its stdin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.ranks import RANK_MODULE
from tests.hardware_profiles.measure.stub_operations import tiny_plan

ROOT = Path(__file__).parents[3]
LIMIT_S = 30.0

pytestmark = pytest.mark.multiprocess


@contextmanager
def started(
    store: Path, plan: str, *, world: int = 1, messages_fd: int = 99
) -> Iterator[subprocess.Popen[bytes]]:
    """Rank 0; killed on leaving if it still runs."""
    arguments = [sys.executable, "-m", RANK_MODULE, "0", str(world), f"file://{store}",
                 str(messages_fd), plan, Party.local(world).to_json()]  # fmt: skip
    process = subprocess.Popen(
        arguments, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE,
        stderr=subprocess.PIPE, pass_fds=() if messages_fd == 99 else (messages_fd,),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def test_a_rank_measures_as_its_plan_says_and_ends_well(tmp_path: Path) -> None:
    receiving, sending = os.pipe()
    with started(tmp_path / "store", tiny_plan().to_json(), messages_fd=sending) as process:
        os.close(sending)
        assert process.wait(LIMIT_S) == 0  # the pipe holds all that it says
    with os.fdopen(receiving) as stream:
        messages = [json.loads(line) for line in stream]
    assert messages[-1] == {"progress": "done", "done": 1.0}
    curves = [message["curve"]["op"] for message in messages if "curve" in message]
    assert "elementwise/negate" in curves


def test_a_plan_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with started(tmp_path / "store", '{"budget_s": -1}') as process:
        assert process.wait(LIMIT_S) != 0
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert "the measurement's plan" in said
    assert "budget_s" in said
    assert not (tmp_path / "store").exists()


def test_a_rank_ends_once_its_stdin_closes(tmp_path: Path) -> None:
    """It waits for a second rank that never comes, for minutes, unless its starter is gone."""
    store = tmp_path / "store"
    with started(store, tiny_plan().to_json(), world=2) as process:
        deadline = time.monotonic() + LIMIT_S
        while not store.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert store.exists()
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        assert process.wait(5.0) == 1
