"""Lines of DeepSpeed's engine: throughput timer, pipeline engine, timed micro-steps.

``SamplesPerSec`` of old releases, and ``RunningAvgSamplesPerSec`` of new ones, is the mean since
the second step; ``CurrSamplesPerSec`` is that of the last. Memory is in GiB under the name GB.
"""

from __future__ import annotations

import re

from shardwright.planner.calibration.logs.reading import LoggedMemory, LoggedStep, Notes
from shardwright.planner.calibration.logs.text import GIB, NUMBER, number_of, printer_of

_TIMER = re.compile(
    rf"(\d+)/(?:micro_step=\d+/global_step=)?(\d+), (RunningAvg)?SamplesPerSec=({NUMBER})"
    rf"(?:,\s*CurrSamplesPerSec=({NUMBER}))?"
)
_MEMORY = re.compile(rf"MemAllocated=({NUMBER})GB, MaxMemAllocated=({NUMBER})GB")
_SEEN_MEMORY = re.compile(
    rf"\bMA ({NUMBER}) GB\s+Max_MA ({NUMBER}) GB\s+CA ({NUMBER}) GB\s+Max_CA ({NUMBER}) GB"
)
_PIPELINE = re.compile(
    rf"steps: (\d+) loss: ({NUMBER}|nan) iter time \(s\): ({NUMBER}) samples/sec: ({NUMBER})"
)
FAMILY = "deepspeed"
PIPELINE = "deepspeed pipeline"
MICRO_STEP = "forward_microstep"
"""The timer that tells micro-steps from whole steps."""


class DeepSpeedLines:
    """Reads line by line into `Notes`."""

    def read(self, line: str, notes: Notes) -> bool:
        """Whether the line was one of these."""
        if "[deepspeed" in line.lower() or "MemAllocated=" in line or "Max_MA" in line:
            notes.marks.add("deepspeed")
        found = [_throughput(line, notes), _pipeline(line, notes), _memory(line, notes)]
        return any(found)


def _throughput(line: str, notes: Notes) -> bool:
    found = _TIMER.search(line) if "SamplesPerSec=" in line else None
    if found is None:
        return False
    step = LoggedStep(
        order=int(found[2]), samples_per_s=number_of(found[5] or found[4]),
        is_mean=found[5] is None, printer=printer_of(line),
    )  # fmt: skip
    return notes.add(FAMILY, step)


def _pipeline(line: str, notes: Notes) -> bool:
    found = _PIPELINE.search(line) if "iter time (s)" in line else None
    if found is None:
        return False
    step = LoggedStep(
        iteration=int(found[1]), loss=number_of(found[2]), time_s=number_of(found[3]),
        printed=found[3], samples_per_s=number_of(found[4]), printer=printer_of(line),
    )  # fmt: skip
    return notes.add(PIPELINE, step)


def _memory(line: str, notes: Notes) -> bool:
    kinds = ("allocated", "max_allocated", "reserved", "max_reserved")
    found = _MEMORY.search(line) or _SEEN_MEMORY.search(line)
    if found is None:
        return False
    for kind, text in zip(kinds, found.groups(), strict=False):
        notes.memory.append(LoggedMemory(kind, float(text.replace(",", "")) * GIB, text=text))  # type: ignore[arg-type]
    return True
