"""Starting the ranks that measure, following their progress and ending them in every case."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import shardwright
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.rank_environment import rank_environment
from shardwright.specs import RunError

logger = logging.getLogger(__name__)

RANK_MODULE = "shardwright.hardware_profiles.measure.rank"
POLL_S = 0.2
GRACE_S = 5.0
"""How long a rank may take to end by itself once all results are in."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A started rank and the file that holds what it says on stderr."""

    rank: int
    process: subprocess.Popen[bytes]
    log: Path

    def ending(self) -> str:
        """``was killed by signal 9`` or ``ended with exit code 1``."""
        status = self.process.returncode
        return f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"

    def last_words(self, most: int = 400) -> str:
        """The end of its stderr, on one line."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-3:])[-most:] or "it said nothing"


def measure_on_ranks(
    party: Party,
    device_type: str,
    plan: MeasurePlan,
    on_message: Callable[[Message], None],
    *,
    timeout_s: float,
    module: str = RANK_MODULE,
) -> None:
    """Run ``module`` as the party's processes of this machine, and hand on every message that rank
    0 sends, where it is one of them.

    Raises:
        RunError: a rank ended early, or all of them took longer than ``timeout_s``. No process is
            left behind, also when ``on_message`` raises or the user interrupts.
    """
    with _started(party, device_type, plan, module) as (ranks, messages):
        deadline = time.monotonic() + timeout_s
        for message in _messages(messages, ranks, deadline, timeout_s):
            on_message(message)
        if party.leads:
            deadline = min(deadline, time.monotonic() + GRACE_S)
        _wait_for_all(ranks, deadline, timeout_s)


@contextmanager
def _started(
    party: Party, device_type: str, plan: MeasurePlan, module: str
) -> Iterator[tuple[list[RankProcess], IO[bytes]]]:
    """Start the ranks; on leaving, whatever still runs is killed and reaped."""
    receiving, sending = os.pipe()
    ranks: list[RankProcess] = []
    with tempfile.TemporaryDirectory(prefix="shardwright-profile-") as folder, \
            os.fdopen(receiving, "rb", buffering=0) as messages:  # fmt: skip
        try:
            meeting = party.meeting or f"file://{Path(folder) / 'store'}"
            for rank in party.here:
                arguments = [sys.executable, "-m", module, str(rank), str(party.world), meeting,
                             str(sending), plan.to_json(), party.to_json()]  # fmt: skip
                log = Path(folder) / f"rank-{rank}.log"
                ranks.append(_start(rank, arguments, device_type, sending, log))
            os.close(sending)
            sending = -1
            yield ranks, messages
        finally:
            if sending != -1:
                os.close(sending)
            _end(ranks)


def _start(
    rank: int, arguments: list[str], device_type: str, sending: int, log: Path
) -> RankProcess:
    """Only rank 0 may send, so that the pipe closes when it ends.

    A rank's stdin is a pipe whose other end only this process holds: it closes when this process
    dies in whatever way, and the rank then ends itself.
    """
    root = str(Path(shardwright.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        **rank_environment(device_type),
        "PYTHONPATH": os.pathsep.join(paths),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 of these ranks keeps the store itself
    }
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr,
            env=environment, pass_fds=(sending,) if rank == 0 else (),
        )  # fmt: skip
    return RankProcess(rank, process, log)


def _messages(
    stream: IO[bytes], ranks: list[RankProcess], deadline: float, timeout_s: float
) -> Iterator[Message]:
    """Every message until rank 0 closes the pipe, watching all ranks meanwhile."""
    pending = b""
    while True:
        readable, _, _ = select.select([stream], [], [], POLL_S)
        if readable:
            chunk = stream.read(65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            yield from (json.loads(line) for line in lines)
        _check(ranks, deadline, timeout_s)


def _check(ranks: list[RankProcess], deadline: float, timeout_s: float) -> None:
    if any(rank.process.poll() for rank in ranks):
        raise _failure(ranks)
    if time.monotonic() > deadline:
        raise RunError(
            f"measuring on {len(ranks)} ranks was not done after {timeout_s:.0f} s",
            why="a rank hangs, or the machine is busy with other work",
            fix="end other programs that compute, then run `shardwright profile` again",
        )


def _wait_for_all(ranks: list[RankProcess], deadline: float, timeout_s: float) -> None:
    """Every rank must end by itself and well."""
    while any(rank.process.poll() is None for rank in ranks):
        _check(ranks, deadline, timeout_s)
        time.sleep(POLL_S / 10)
    _check(ranks, deadline=float("inf"), timeout_s=timeout_s)


def _failure(ranks: list[RankProcess]) -> RunError:
    """Names the ranks that failed; those that were killed first, since others fail with them.

    The others get a moment to fail too: which of them was the cause, their last words tell.
    """
    deadline = time.monotonic() + GRACE_S
    while any(rank.process.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(POLL_S / 10)
    failed = sorted(
        (rank for rank in ranks if rank.process.poll()),
        key=lambda rank: (rank.process.returncode > 0, rank.rank),
    )
    endings = [f"rank {rank.rank} {rank.ending()}: {rank.last_words()}" for rank in failed]
    return RunError(
        f"measuring on {len(ranks)} ranks failed: {'; '.join(endings)}",
        why="every rank must take part in a measurement",
        fix="check the memory and device that the rank uses, then run `shardwright profile` again",
    )


def _end(ranks: list[RankProcess]) -> None:
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.kill()
    for rank in ranks:
        rank.process.wait()
        assert rank.process.stdin is not None
        rank.process.stdin.close()
