"""Seconds of single steps from whatever a log prints of its speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardwright.planner.calibration.logs.deepspeed import MICRO_STEP
from shardwright.planner.calibration.logs.reading import LoggedStep, LogReading
from shardwright.specs import InputError

_UNTIMED_STEPS = 2
"""DeepSpeed's throughput timer starts after the second step (``start_step=2``)."""


@dataclass(frozen=True, slots=True)
class Size:
    """What turns rates into times; None where it is not known."""

    global_batch: int | None = None
    seq_len: int | None = None
    world: int | None = None
    num_microbatches: int | None = None

    @property
    def tokens_per_step(self) -> int | None:
        if self.global_batch is None or self.seq_len is None:
            return None
        return self.global_batch * self.seq_len


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps with their times, and what these were read from."""

    steps: tuple[LoggedStep, ...]
    basis: str


def timed_steps(log: LogReading, size: Size) -> Timed:
    """Every step of a log with its time.

    Raises:
        InputError: the log says nothing of speed, or of a rate that needs what is not known.
    """
    wanted = ""
    for has, needs, read, basis in _WAYS:
        if not has(log):
            continue
        if any(getattr(size, name) is None for name in needs):
            wanted = wanted or f"{basis} and needs {' and '.join(map(_WORDS.__getitem__, needs))}"
            continue
        steps = [step for step in read(log, size) if step.time_s is not None and step.time_s > 0]
        if steps:
            return Timed(tuple(steps), basis)
    if wanted:
        raise InputError(
            f"{log.source} gives no step time: it prints {wanted}", fix="give what is missing"
        )
    raise InputError(
        f"{log.source} says nothing of how long a step took",
        why="it reports " + _reported(log),
        fix="give the part of the log that prints steps, or the step as --step-time",
    )


def _reported(log: LogReading) -> str:
    parts = (("memory", log.memory), ("theoretical memory", log.theoretical_bytes),
             ("times within steps", log.timers), ("losses", log.losses))  # fmt: skip
    return " and ".join(name for name, found in parts if found) or "nothing else"


_WORDS = {
    "global_batch": "the global batch",
    "tokens_per_step": "the global batch and the sequence length",
    "world": "the number of GPUs",
    "num_microbatches": "the layout",
}

Read = Callable[[LogReading, Size], Sequence[LoggedStep]]


def _printed(log: LogReading, size: Size) -> Sequence[LoggedStep]:
    return log.steps


def _from_means(log: LogReading, size: Size) -> list[LoggedStep]:
    """The time between two lines that print the mean since the begin: differences of its total."""
    totals = [
        (step, step.number, step.mean_time_s)
        for step in log.steps
        if step.number is not None and step.mean_time_s is not None
    ]
    return _differences([(step, n, n * mean) for step, n, mean in totals])


def _differences(totals: Sequence[tuple[LoggedStep, int, float]]) -> list[LoggedStep]:
    """Of (step, its number, seconds up to it); a run that starts anew starts from nothing."""
    found = []
    last, last_s = 0, 0.0
    for step, number, total_s in totals:
        if number < last:
            last, last_s = 0, 0.0
        if number > last:
            found.append(replace(step, time_s=(total_s - last_s) / (number - last)))
        last, last_s = number, total_s
    return found


def _from_samples(log: LogReading, size: Size) -> list[LoggedStep]:
    batch = size.global_batch
    assert batch is not None
    rated = [(step, step.samples_per_s) for step in log.steps if step.samples_per_s]
    means = [
        (step, step.number, batch * max(0, step.number - _UNTIMED_STEPS) / rate)
        for step, rate in rated
        if step.is_mean and step.number is not None and rate
    ]
    if len(means) > 1 and len(means) == len(rated):
        return _differences(means)
    return [replace(step, time_s=batch / rate) for step, rate in rated if rate]


def _from_tokens(log: LogReading, size: Size) -> list[LoggedStep]:
    tokens, found = size.tokens_per_step, []
    assert tokens is not None
    for step in log.steps:
        if step.tokens_per_s:
            found.append(replace(step, time_s=tokens / step.tokens_per_s))
    return found


def _from_tokens_per_gpu(log: LogReading, size: Size) -> list[LoggedStep]:
    tokens, world, found = size.tokens_per_step, size.world, []
    assert tokens is not None
    assert world is not None
    for step in log.steps:
        if step.tokens_per_s_per_gpu:
            time_s = tokens / (step.tokens_per_s_per_gpu * world)
            found.append(replace(step, time_s=time_s))
    return found


def _from_runtime(log: LogReading, size: Size) -> list[LoggedStep]:
    steps = log.stated["total_steps"]
    return [LoggedStep(order=steps, time_s=seconds / steps) for seconds in log.runtimes_s[:1]]


def _from_microsteps(log: LogReading, size: Size) -> list[LoggedStep]:
    """Micro-steps of one step, one after the other, and the step's update."""
    count = size.num_microbatches
    assert count is not None
    found: list[LoggedStep] = []
    for timers in log.timers:
        parts = [timers.get(name, 0.0) for name in (MICRO_STEP, "backward_microstep")]
        parts[0] = parts[0] or timers.get("fwd_microstep", 0.0)
        parts[1] = parts[1] or timers.get("bwd_microstep", 0.0)
        if all(parts):
            update_s = timers.get("step_microstep", 0.0)
            found.append(LoggedStep(order=len(found) + 1, time_s=count * sum(parts) + update_s))
    return found


def _has(field: str) -> Callable[[LogReading], bool]:
    return lambda log: any(getattr(step, field) for step in log.steps)


_WAYS: tuple[tuple[Callable[[LogReading], bool], tuple[str, ...], Read, str], ...] = (
    (_has("time_s"), (), _printed, "the times of steps"),
    (_has("mean_time_s"), (), _from_means, "the mean time of steps so far"),
    (_has("tokens_per_s"), ("tokens_per_step",), _from_tokens, "tokens per second"),
    (
        _has("tokens_per_s_per_gpu"), ("tokens_per_step", "world"), _from_tokens_per_gpu,
        "tokens per second and GPU",
    ),
    (_has("samples_per_s"), ("global_batch",), _from_samples, "samples per second"),
    (
        lambda log: bool(log.runtimes_s) and "total_steps" in log.stated, (), _from_runtime,
        "the run's whole time",
    ),
    (lambda log: bool(log.timers), ("num_microbatches",), _from_microsteps, "timed micro-steps"),
)  # fmt: skip
"""(whether a log has it, what it needs, how it is read, in words), the most exact first."""
