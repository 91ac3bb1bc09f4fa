"""Many points at once: what is kept comes from disk, the rest from as many processes as asked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from shardwright.planner.what_if.cache import Cache, Keys
from shardwright.planner.what_if.points import Outcome, Point, evaluate
from shardwright.specs import InputError

Watch = Callable[[int, int], None]
"""Called with how many points are done, and of how many."""


class Runner:
    """Plans points; each question once, however often it is asked."""

    def __init__(self, cache: Cache, *, jobs: int | None = None) -> None:
        """``jobs``: processes at once; None takes as many as there are cores for this process.

        Raises:
            InputError: no process at all is asked for.
        """
        if jobs is not None and jobs < 1:
            raise InputError(f"jobs = {jobs} is no number of processes", fix="use 1 or more")
        self._cache = cache
        self._jobs = jobs or available_cores()
        self.num_planned = 0
        """How many points were planned and not found on disk."""

    def run(self, points: Sequence[Point], watch: Watch | None = None) -> list[Outcome]:
        """The outcome of each point, in their order."""
        known = Keys()
        keys = [known.of(point) or f"unkeyed {place}" for place, point in enumerate(points)]
        times = Counter(keys)
        found: dict[str, Outcome] = {}
        missing: dict[str, Point] = {}
        for key, point in zip(keys, points, strict=True):
            if key in found or key in missing:
                continue
            kept = self._cache.load(_kept(key))
            if kept is None:
                missing[key] = point
            else:
                found[key] = kept
        done = sum(times[key] for key in found)
        if watch is not None:
            watch(done, len(points))
        for key, outcome in self._planned(missing):
            self._cache.save(_kept(key), outcome)
            found[key] = outcome
            done += times[key]
            if watch is not None:
                watch(done, len(points))
        self.num_planned += len(missing)
        return [found[key] for key in keys]

    def _planned(self, missing: dict[str, Point]) -> Iterator[tuple[str, Outcome]]:
        """Outcomes as they are done. One point needs no other process."""
        jobs = min(self._jobs, len(missing))
        if jobs <= 1:
            for key, point in missing.items():
                yield key, evaluate(point)
            return
        import shardwright.planner.api  # noqa: F401 - so that forked processes have it already

        method = "fork" if sys.platform == "linux" else "spawn"
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_at_once) as pool:
            try:
                yield from _finished(pool, missing)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _finished(
    pool: ProcessPoolExecutor, missing: dict[str, Point]
) -> Iterator[tuple[str, Outcome]]:
    waiting: dict[Future[Outcome], str] = {
        pool.submit(evaluate, point): key for key, point in missing.items()
    }
    while waiting:
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            yield waiting.pop(future), future.result()


def _end_at_once() -> None:
    """Ctrl-C reaches every process of a terminal: planners end without a word, and the parent does
    not wait for their points."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kept(key: str) -> str | None:
    return None if key.startswith("unkeyed") else key
