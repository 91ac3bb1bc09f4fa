"""Trials with real ranks, and what happens where a layout brings one down."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest
from torch._C._distributed_c10d import HashStore

from shardwright.runtime import sessions
from shardwright.runtime.job import Failure as Word
from shardwright.runtime.seats import Seats
from shardwright.runtime.sessions import TRIAL_WORKER, Ending, call_off, job_after, run_trial
from shardwright.runtime.trial import VISITS_FILE, Failure
from shardwright.specs import InputError, RunError
from tests.runtime.test_trial import job, visit

CHAOS = """
import os, signal, time
from shardwright.runtime import trial
from shardwright.runtime.trial import _Visitor
real = _Visitor._build
def build(self, index):
    rank = int(os.environ["RANK"])
    what = dict(part.split(":") for part in os.environ["CHAOS"].split(","))
    how = what.get(f"{index}/{rank}")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)
    return real(self, index)
_Visitor._build = build
"""
"""Makes a rank misbehave at a layout: ``CHAOS=layout/rank:how``."""


@pytest.fixture
def chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    code = (
        CHAOS
        + "import sys; from pathlib import Path\n"
        + ("from shardwright.runtime.trial_worker import main\nsys.exit(main(Path(sys.argv[1])))\n")
    )
    (tmp_path / "chaos_worker.py").write_text(code)
    monkeypatch.setattr(sessions, "TRIAL_WORKER", "chaos_worker")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return monkeypatch


def _no_process_is_left() -> None:
    own = psutil.Process().children(recursive=True)
    left = [p for p in own if {TRIAL_WORKER, "chaos_worker"} & set(p.cmdline())]
    assert left == []


@pytest.mark.multiprocess
def test_layouts_are_timed_term_by_term() -> None:
    said: list[tuple[str, float]] = []
    done = run_trial(job(num_rounds=3), Seats.here(2), lambda *words: said.append(words))
    assert done is not None
    assert done.failures == ()
    assert len(done.visits) == 9
    assert [one.index for one in done.visits] == [0, 1, 2, 1, 2, 0, 2, 0, 1]
    for one in done.visits:
        assert len(one.step_times_s) == done.steps_per_visit
        assert len(one.terms_s) == 2
        mean_s = sum(one.step_times_s) / len(one.step_times_s)
        for row in one.terms_s:
            assert sum(row.values()) <= 1.05 * mean_s
        communicates = {0: "tp_comm", 1: "waiting", 2: "dp_comm"}[one.index]
        assert one.terms_s[0][communicates] > 0
    assert said[-1][1] > 0
    _no_process_is_left()


@pytest.mark.multiprocess
def test_a_layout_that_kills_a_rank_is_set_aside(chaos: pytest.MonkeyPatch) -> None:
    chaos.setenv("CHAOS", "1/1:kill")
    done = run_trial(job(num_rounds=3, timeout_s=30.0), Seats.here(2))
    assert done is not None
    (failure,) = done.failures
    assert failure.index == 1
    assert "rank 1 was killed by signal 9" in failure.reason
    assert {one.index for one in done.race().standings()} == {0, 2}
    _no_process_is_left()


@pytest.mark.multiprocess
def test_a_layout_that_hangs_is_given_up(chaos: pytest.MonkeyPatch) -> None:
    chaos.setenv("CHAOS", "2/1:hang")
    chaos.setattr(sessions, "_GRACE_S", 0.5)
    done = run_trial(job(num_rounds=3, timeout_s=3.0), Seats.here(2))
    assert done is not None
    (failure,) = done.failures
    assert failure.index == 2
    assert "in vain" in failure.reason
    _no_process_is_left()


@pytest.mark.multiprocess
def test_what_the_ranks_refuse_is_the_user_s() -> None:
    with pytest.raises(InputError, match="no-such-file"):
        run_trial(job(data="/no-such-file"), Seats.here(2))


def _ending(code: int, *, rank: int = 0, word: Word | None = None, at: int | None = 1) -> Ending:
    return Ending(
        exit_codes={rank: code},
        words={} if word is None else {rank: word},
        visiting={} if at is None else {rank: at},
        last_lines={rank: "Boom: it broke"},
    )


def test_the_cause_is_found_among_those_that_lost_a_peer(tmp_path: Path) -> None:
    lost = Word(exit_code=4, problem="lost", why="reset", lost_peer=True)
    after = job_after(
        job(), tmp_path, [_ending(4, word=lost, at=0), _ending(-9, rank=1, word=None, at=2)]
    )
    assert [(one.index, one.reason) for one in after.failures] == [
        (2, "rank 1 was killed by signal 9 (out of memory?)")
    ]


def test_where_no_layout_runs_the_trial_failed(tmp_path: Path) -> None:
    word = Word(exit_code=4, problem="rank 0 ran out of memory", why="in a trial")
    failed = tuple(Failure(index=index, reason="hung") for index in (0, 2))
    with pytest.raises(RunError, match="none of the 3 layouts could be run; the last: rank 0 ran"):
        job_after(job(failures=failed), tmp_path, [_ending(4, word=word)])


def test_a_rank_without_a_word_is_quoted(tmp_path: Path) -> None:
    after = job_after(job(), tmp_path, [_ending(1)])
    assert after.failures[0].reason == "rank 0 ended with exit code 1: Boom: it broke"


def test_what_was_timed_before_is_kept(tmp_path: Path) -> None:
    (tmp_path / VISITS_FILE).write_text(visit(0, 1.0).model_dump_json() + "\n")
    after = job_after(job(visits=(visit(1, 2.0),)), tmp_path, [_ending(-9)])
    assert [one.index for one in after.visits] == [1, 0]


def test_before_the_first_layout_nothing_is_to_blame_but_the_trial(tmp_path: Path) -> None:
    word = Word(exit_code=4, problem="rank 0 cannot meet the others")
    with pytest.raises(RunError, match="cannot meet"):
        job_after(job(), tmp_path, [_ending(4, word=word, at=None)])


def test_the_others_end_as_the_leader_does() -> None:
    store = HashStore()
    leader, other = (Seats(2, (rank,), (rank,), 2, "here", store) for rank in (0, 1))
    ended: list[int] = []

    def follow() -> None:
        try:
            run_trial(None, other)
        except SystemExit as stop:
            ended.append(int(str(stop.code)))

    thread = threading.Thread(target=follow)
    thread.start()
    call_off(leader, InputError("wrong"))
    thread.join(10)
    assert ended == [2]
