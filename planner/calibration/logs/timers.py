"""Parts of a step from what the software timed within it: `part_times`.

Megatron-LM of 2021 prints the last rank's timers on one line, later releases a table of the
shortest and the longest rank; both are means per iteration, summed over micro-batches. DeepSpeed
and GPT-NeoX print each micro-step. Timers that wait for other ranks (receiving, the sum of a tied
table, barriers) measure no part and are left alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from shardwright.cost_models.stacks.parts import PartName, PartTime
from shardwright.planner.calibration.logs.deepspeed import MICRO_STEP
from shardwright.planner.calibration.logs.reading import LogReading

_NAMES: Mapping[PartName, tuple[str, ...]] = {
    "forward": ("forward-compute",),
    "backward": ("backward-compute",),
    "passes": ("forward-backward",),
    "reduction": ("backward-params-all-reduce", "grads-all-reduce", "grads-reduce-scatter",
                  "all-grads-sync"),
    "update": ("optimizer", "params-all-gather", "backward-gather-model-params"),
}  # fmt: skip
"""Timers that add up to a part; the names of one part were never printed twice for one thing."""
_INSIDE = "all-grads-sync"
"""Since it is printed, the sums of gradients are within ``forward-backward``; before, after it."""
LEAST_FRACTION = 0.01
"""Of the step: shorter parts are as much the timer's own cost."""
_MOST_FRACTION = 1.02
"""Parts that follow each other on one rank cannot take longer than the step."""


def part_times(log: LogReading, step_time_s: float, num_microbatches: int) -> tuple[PartTime, ...]:
    """The parts of a step that a log's timers measure; nothing where they contradict the step."""
    found = _microsteps(log.timers, num_microbatches) or _iterations(log.timers)
    kept = {name: s for name, s in found.items() if s >= LEAST_FRACTION * step_time_s}
    if sum(s for name, s in kept.items() if name != "passes") > _MOST_FRACTION * step_time_s:
        return ()
    if kept.get("passes", 0.0) > _MOST_FRACTION * step_time_s:
        return ()
    of_last = log.timers_are == "of the last rank"
    return tuple(PartTime(name, seconds, of_last) for name, seconds in kept.items())


def _iterations(timers: Sequence[Mapping[str, float]]) -> dict[PartName, float]:
    """Medians over the prints after the first, which holds the warm-up."""
    rows = timers[1:] if len(timers) > 2 else timers
    found: dict[PartName, float] = {}
    for part, names in _NAMES.items():
        known = [[row[name] for name in names if name in row] for row in rows]
        sums = [sum(row) for row in known if row]
        if sums:
            found[part] = statistics.median(sums)
    if "passes" in found and not any(_INSIDE in row for row in rows):
        found["passes"] += found.get("reduction", 0.0)
    return found


def _microsteps(timers: Sequence[Mapping[str, float]], count: int) -> dict[PartName, float]:
    """Of all micro-batches of a step; the backward pass without its sums of gradients."""
    forward = [row.get(MICRO_STEP, row.get("fwd_microstep")) for row in timers]
    backward = [
        row.get("backward_inner_microstep", row.get("bwd_inner_microstep")) for row in timers
    ]
    found: dict[PartName, float] = {}
    for part, values in (("forward", forward), ("backward", backward)):
        known = [value for value in values if value is not None]
        if known:
            found[part] = count * statistics.median(known)  # type: ignore[index]
    return found
