"""`run_trial`: ranks that time layouts, started anew without the layout that brought them down.

One set of ranks, a session, goes through all rounds (`shardwright.runtime.trial`). Where a rank
dies, runs out of memory or hangs, the session ends, the layout that it was at is set aside with the
reason, and new ranks go on with the others and with the times that are known already.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import shardwright
from shardwright.hardware_profiles.device import current_device_type
from shardwright.hardware_profiles.rank_environment import rank_environment
from shardwright.runtime.job import JOB_FILE, failure_file
from shardwright.runtime.job import Failure as Word
from shardwright.runtime.seats import Seats
from shardwright.runtime.trial import Failure, TrialJob, read_visits, visited_last
from shardwright.specs import InputError, RunError, ShardwrightError, Spec
from shardwright.specs.plan import read_text, write_text

TRIAL_WORKER = "shardwright.runtime.trial_worker"

Report = Callable[[str, float], None]
"""Called with what is being done and the share of all visits that is done."""

_POLL_S = 0.1
_GRACE_S = 10.0
"""How long the other ranks may take to end by themselves after one failed."""


class Ending(Spec):
    """How the ranks that one process holds ended."""

    exit_codes: dict[int, int]
    """By global rank; negative = killed by that signal. None of ranks that were ended from here."""
    words: dict[int, Word]
    """What they said of it."""
    visiting: dict[int, int]
    """The layout that they were at."""
    last_lines: dict[int, str]
    """Of stderr, where they said nothing else."""


class _Turn(Spec):
    """What the leader hands out before each session."""

    job: TrialJob | None
    """Null: it is over."""
    port: int
    exit_code: int = 0


def run_trial(job: TrialJob | None, seats: Seats, report: Report | None = None) -> TrialJob | None:
    """Time the layouts of a job; the job with its visits and failures on the leader, else None.

    Only the leader needs the ``job``.

    Raises:
        InputError: the ranks refuse the plan, the data or the hardware.
        RunError: no layout could be timed, or the ranks cannot be started or meet.
        SystemExit: on processes that do not lead, where the leader raises.
    """
    session, done = 0, None
    while True:
        with seats.meeting_point() as port:
            turn = _share(seats, session, _Turn(job=job, port=port))
            if turn.job is None:
                if turn.exit_code:
                    raise SystemExit(turn.exit_code)
                return done
            done = _take_turn(turn, turn.job, seats, session, report)
        session += 1
        if done is not None:
            job = done if done.running() else None


def _take_turn(
    turn: _Turn, job: TrialJob, seats: Seats, session: int, report: Report | None
) -> TrialJob | None:
    """One session; on the leader the job with what it found."""
    with tempfile.TemporaryDirectory(prefix="shardwright-trial-") as name:
        folder = Path(name)
        ending = _run_session(job, turn.port, seats, session, folder, report)
        endings = seats.gather(f"ending-{session}", ending.to_json())
        if not seats.leads:
            return None
        try:
            return job_after(job, folder, list(map(Ending.from_json, endings)))
        except ShardwrightError as error:
            call_off(seats, error, session + 1)
            raise


def call_off(seats: Seats, error: ShardwrightError, session: int = 0) -> None:
    """Let the processes that wait for the leader's next turn end as it does."""
    _share(seats, session, _Turn(job=None, port=0, exit_code=error.exit_code))


def _share(seats: Seats, session: int, turn: _Turn) -> _Turn:
    return _Turn.from_json(seats.share(f"turn-{session}", turn.to_json() if seats.leads else None))


def job_after(job: TrialJob, folder: Path, endings: Sequence[Ending]) -> TrialJob:
    """The job with what a session found, and with the layout set aside that ended it early.

    Raises:
        InputError, RunError: it ended before the first layout; or the last layout failed.
    """
    visits = tuple(read_visits(folder))
    job = job.model_copy(update={"visits": (*job.visits, *visits)})
    codes = {rank: code for ending in endings for rank, code in ending.exit_codes.items()}
    if not any(codes.values()):
        assert not job.running(), "a session that ends well has timed everything"
        return job
    culprit = _culprit(endings)
    error = _explain(culprit, endings)
    at = {rank: index for ending in endings for rank, index in ending.visiting.items()}
    if culprit not in at or (isinstance(error, InputError) and not job.visits):
        raise error
    failure = Failure(index=at[culprit], reason=_in_words(error))
    job = job.model_copy(update={"failures": (*job.failures, failure)})
    if len(job.failures) == len(job.entries):
        raise RunError(
            f"none of the {len(job.entries)} layouts could be run; the last: {failure.reason}",
            fix="plan with more memory headroom, or run one layout with `shardwright run` to see"
            " more",
        )
    return job


def _culprit(endings: Sequence[Ending]) -> int:
    """The rank that failed by itself: killed, else one with a reason of its own, else the first."""
    codes = {rank: code for ending in endings for rank, code in ending.exit_codes.items() if code}
    words = {rank: word for ending in endings for rank, word in ending.words.items()}

    def order(rank: int) -> tuple[bool, bool, int]:
        lost_peer = rank in words and words[rank].lost_peer
        return (not _was_killed(codes[rank]), lost_peer, rank)

    return min(codes, key=order)


def _was_killed(code: int) -> bool:
    return code < 0 and -code not in (signal.SIGTERM, signal.SIGINT)


def _explain(rank: int, endings: Sequence[Ending]) -> ShardwrightError:
    ending = next(one for one in endings if rank in one.exit_codes)
    code = ending.exit_codes[rank]
    if _was_killed(code):
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return RunError(f"rank {rank} was killed by signal {-code}{hint}")
    if rank in ending.words:
        word = ending.words[rank]
        if word.lost_peer:
            return RunError(
                f"rank {rank} waited in vain for another rank", why=word.why or word.problem
            )
        return word.as_error()
    said = ending.last_lines.get(rank) or "it said nothing"
    return RunError(f"rank {rank} ended with exit code {code}", why=said)


def _in_words(error: ShardwrightError) -> str:
    return error.problem if error.why is None else f"{error.problem}: {error.why}"


def _run_session(
    job: TrialJob, port: int, seats: Seats, session: int, folder: Path, report: Report | None
) -> Ending:
    """Start this process's ranks, wait until they are done or one of all failed."""
    with _started(job, port, seats, folder) as ranks:
        failed_since: float | None = None
        ended: dict[int, int] = {}
        while len(ended) < len(ranks):
            time.sleep(_POLL_S)
            _report(job, seats, folder, report)
            ended |= {r: code for r, p in ranks.items() if (code := p.poll()) is not None}
            if any(ended.values()):
                seats.announce(f"failed-{session}")
            if failed_since is None and (
                any(ended.values()) or seats.is_announced(f"failed-{session}")
            ):
                failed_since = time.monotonic()
            if failed_since is not None and time.monotonic() > failed_since + _GRACE_S:
                break
    return Ending(
        exit_codes=ended,
        words={rank: word for rank in ranks if (word := _word_of(folder, rank)) is not None},
        visiting={rank: at for rank in ranks if (at := visited_last(folder, rank)) is not None},
        last_lines={rank: _last_line(_log(folder, rank)) for rank in ranks},
    )


def _report(job: TrialJob, seats: Seats, folder: Path, report: Report | None) -> None:
    if report is None or not seats.leads:
        return
    done = len(job.visits) + len(list(read_visits(folder)))
    at = visited_last(folder, 0)
    doing = "starting ranks" if at is None else f"layout {at + 1} of {len(job.entries)}"
    report(doing, min(1.0, done / (job.num_rounds * len(job.entries))))


@contextmanager
def _started(
    job: TrialJob, port: int, seats: Seats, folder: Path
) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """This process's ranks; on leaving, whatever still runs is killed and reaped."""
    write_text(folder / JOB_FILE, job.to_json())
    ranks: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for place, rank in enumerate(seats.ranks):
            environment = os.environ | environment_of(job) | seats.environment(place, port)
            with _log(folder, rank).open("wb") as log:
                ranks[rank] = subprocess.Popen(
                    [sys.executable, "-m", TRIAL_WORKER, str(folder)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                )  # fmt: skip
        yield ranks
    finally:
        for process in ranks.values():
            if process.poll() is None:
                process.kill()
        for process in ranks.values():
            process.wait()


def environment_of(job: TrialJob) -> dict[str, str]:
    """Variables that every rank must start with; the plan's own win. The ranks import what this
    process does."""
    root = str(Path(shardwright.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return (
        rank_environment(current_device_type())
        | {"PYTHONPATH": os.pathsep.join(paths)}
        | job.plan.environment
    )


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _word_of(folder: Path, rank: int) -> Word | None:
    path = failure_file(folder, rank)
    return Word.from_json(read_text(path, what="failure")) if path.exists() else None


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip()[-300:] if lines else ""
