"""Timing calls so that the figures hold in training: on data that is where training finds it.

In training an operation rarely meets the weights that it used last: a whole model passes through
the caches in between. So operands come from an `Arena` larger than the caches, each call a fresh
place in it, and results are kept for a while so that new ones land in other memory. What the
operation before it has just written (`warm`) is touched again just before the clock starts.

Neither does an operation follow itself: the processor has other code in its caches, which doubles
the cost of small calls. So a few other operations run (`between`) before each timed one.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from shardwright.hardware_profiles.device import synchronize
from shardwright.hardware_profiles.profile import Point

LONG_CALL_S = 2e-3
"""Beside a call this long it does not matter what ran before."""

ALIGNMENT_BYTES = 64
"""Of every tensor in an arena: a cache line, and what torch's own allocator grants."""


class Arena:
    """A large buffer of ordinary numbers, handed out in slices one after the other, round and
    round."""

    def __init__(self, num_bytes: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = _numbers(num_bytes // dtype.itemsize, dtype, device)
        self._next = 0

    @property
    def element_bytes(self) -> int:
        return self._buffer.element_size()

    def take(self, *shape: int) -> torch.Tensor:
        """A contiguous tensor in the next free place; wraps around, so contents may be shared.

        A shape larger than the arena makes the arena grow.
        """
        numel = math.prod(shape)
        if numel > self._buffer.numel():
            self._buffer = _numbers(numel, self._buffer.dtype, self._buffer.device)
        if self._next + numel > self._buffer.numel():
            self._next = 0
        # `data`: a version counter of its own, so that writing to one tensor of the arena is not
        # taken for a change of another that autograd saved.
        tensor = self._buffer[self._next : self._next + numel].view(shape).data
        step = ALIGNMENT_BYTES // self._buffer.element_size()
        self._next += -(-numel // step) * step
        return tensor


def _numbers(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Small and varied: no zeros or denormals, which some units handle faster or slower."""
    return torch.empty(numel, dtype=dtype, device=device).uniform_(-0.5, 0.5)


@dataclass(frozen=True, slots=True)
class Call:
    """One timed call: what runs, and which operands were just written by what ran before."""

    run: Callable[[], object]
    warm: Sequence[torch.Tensor] = ()


@dataclass(frozen=True, slots=True)
class Timer:
    """Times a function that makes calls on fresh operands."""

    device: torch.device
    point_s: float
    """About how long to spend on one point beyond the fewest samples."""
    min_samples: int
    kept_bytes: int
    """How much of past results stays alive."""

    max_samples: int = 50
    between: Callable[[], object] | None = None
    """What runs, untimed, before each timed call on a CPU."""
    finished: Callable[[], object] | None = None
    """Called after each point."""

    def point(self, x: float, make_call: Callable[[], Call], result_bytes: int) -> Point:
        """The median and interquartile range of the seconds of one call.

        On an accelerator calls are queued in batches, as training queues them, and a sample is
        their mean; on a CPU each call is a sample.
        """
        kept: deque[object] = deque(maxlen=max(1, min(64, self.kept_bytes // max(1, result_bytes))))
        first_s = self._sample(make_call, kept, 1, None)  # also makes kernels, where they are made
        between = self.between if first_s < LONG_CALL_S else None
        batch = 1 if self.device.type == "cpu" else max(1, min(64, round(1e-3 / first_s)))
        samples: list[float] = []
        with collector_off():
            started = time.perf_counter()
            while len(samples) < self.min_samples or (
                len(samples) < self.max_samples and time.perf_counter() - started < self.point_s
            ):
                samples.append(self._sample(make_call, kept, batch, between))
        if self.finished is not None:
            self.finished()
        return summarise(x, samples)

    def _sample(
        self,
        make_call: Callable[[], Call],
        kept: deque[object],
        batch: int,
        between: Callable[[], object] | None,
    ) -> float:
        calls = [make_call() for _ in range(batch)]
        if self.device.type == "cpu":
            if between is not None:
                between()
            for tensor in calls[0].warm:
                tensor.mul_(1.0)
        synchronize(self.device)
        started = time.perf_counter()
        results = [call.run() for call in calls]
        synchronize(self.device)
        elapsed_s = time.perf_counter() - started
        kept.extend(results)
        return elapsed_s / batch


def summarise(x: float, samples: Sequence[float]) -> Point:
    """Median and interquartile range as a `Point`."""
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    spread_s = ordered[-1 - quarter] - ordered[quarter]
    return Point(x, statistics.median(ordered), spread_s, len(ordered))


def grow_heap(num_bytes: int) -> None:
    """Make the process own memory that results will land in, as it does after a training step.

    Otherwise the first results, which stay alive for a while, would each fault new pages in, which
    takes several times as long as writing them.
    """
    block_bytes = 2**23
    blocks = [
        torch.ones(block_bytes, dtype=torch.uint8) for _ in range(-(-num_bytes // block_bytes))
    ]
    blocks.clear()


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep Python's cycle collector out of what is timed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
