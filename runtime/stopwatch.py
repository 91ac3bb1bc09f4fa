"""Where the seconds of a step go, by the terms of a predicted breakdown.

    with watching(device) as watch:
        step.run(...)
    watch.seconds()

The runtime says what it does with `during`; inside another term the inner one counts alone, so
terms never overlap and sum to the time that was watched. Nothing is measured unless a rank watches.
On a device with a stream of its own the moments are events of that stream: a term is what the
device spends on it, and a collective is the stream's waiting for it.

Autograd may run a backward on a thread of its own; the thread that called it waits meanwhile, so
one stack of terms serves both.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal

import torch

Term = Literal[
    "compute_forward", "compute_backward", "recompute", "tp_comm", "dp_comm", "waiting",
    "optimizer", "data", "other",
]  # fmt: skip
"""As in `shardwright.specs.Breakdown`. ``waiting``: for messages of the pipeline, and at the end of
the step for the slowest rank, which is pp_comm and bubble together."""

TERMS: tuple[Term, ...] = (
    "compute_forward", "compute_backward", "recompute", "tp_comm", "dp_comm", "waiting",
    "optimizer", "data", "other",
)  # fmt: skip


class Stopwatch:
    """Collects the moments at which one term gave way to another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._moments: list[tuple[Term, Any]] = []
        self._terms: list[Term] = ["other"]

    def start(self) -> None:
        """From now on; what was collected is dropped."""
        self._terms = ["other"]
        self._moments = [("other", self._now())]

    def enter(self, term: Term) -> None:
        """``term`` begins."""
        self._terms.append(term)
        self._moments.append((term, self._now()))

    def leave(self) -> None:
        """The innermost term is over; the one around it goes on."""
        self._terms.pop()
        self._moments.append((self._terms[-1], self._now()))

    def seconds(self) -> dict[Term, float]:
        """Of each term from the start until now; sums to the time between."""
        moments = [*self._moments, ("other", self._now())]
        if self._device.type != "cpu":
            moments[-1][1].synchronize()
        found: dict[Term, float] = defaultdict(float)
        for (term, start), (_, end) in pairwise(moments):
            found[term] += end - start if self._device.type == "cpu" else (
                start.elapsed_time(end) / 1e3)  # fmt: skip
        return dict(found)

    def _now(self) -> Any:
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event


_WATCHES: list[Stopwatch] = []


@contextmanager
def watching(device: torch.device) -> Iterator[Stopwatch]:
    """Watch what this process does in the body."""
    watch = Stopwatch(device)
    watch.start()
    _WATCHES.append(watch)
    try:
        yield watch
    finally:
        _WATCHES.remove(watch)


class during:  # noqa: N801 - reads as the context manager that it is
    """``with during("tp_comm"):`` the body's time is that term's, where a rank watches."""

    __slots__ = ("_term",)

    def __init__(self, term: Term) -> None:
        self._term: Term = term

    def __enter__(self) -> None:
        for watch in _WATCHES:
            watch.enter(self._term)

    def __exit__(self, *_: object) -> None:
        for watch in _WATCHES:
            watch.leave()
