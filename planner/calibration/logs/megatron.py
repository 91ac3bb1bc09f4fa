"""Lines of Megatron-LM and of what grew from it.

One line every ``--log-interval`` iterations, whose elapsed time is the mean since the line before:
``iteration 10/ 1000 | consumed samples: 40 | elapsed time per iteration (ms): 2153.5 | ... |``.
Forks and years differ in the rest: Megatron-DeepSpeed adds samples per second and TFLOPs, GPT-NeoX
puts ``samples/sec`` in front, Megatron-Core ``throughput per GPU (TFLOP/s/GPU)``. Memory is counted
in MiB under the name MB (``torch.cuda.memory_allocated() / 1024**2``); Megatron-Bridge counts in
10^9 bytes under the name gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from shardwright.planner.calibration.logs.reading import (
    LoggedMemory,
    LoggedStep,
    MemoryKind,
    Notes,
)
from shardwright.planner.calibration.logs.text import (
    MIB,
    NUMBER,
    fields_of,
    leading_number,
    printer_of,
)

_HEADER = re.compile(r"\biteration:?\s+(\d+)\s*/\s*\d+\s*\|", re.IGNORECASE)
_ELAPSED = re.compile(
    rf"elapsed time per (?:iteration|step) \((ms|s)\)\s*:\s*({NUMBER})\s*\|", re.IGNORECASE
)
_SAMPLES_IN_FRONT = re.compile(rf"samples/sec: ({NUMBER}) \|\s*$")
_MEMORY = re.compile(
    r"(?:\[(?:stage \d+, virtual \d+, )?rank (\d+)\])?\s*"
    r"(?:\(?after (\d+) iterations?\)?\s*)?memory \((MB|GB)\)\s*\|\s*((?:[^|\[]+\|\s*)*[^|\[]*)",
    re.IGNORECASE,
)
_TIMERS = re.compile(r"\btime \(ms\) \|(.*)")
_TIMER_TABLE = re.compile(r"(?:\(min, max\)|max|min|all) ?(?:time|times) across ranks \(ms\)")
_TIMER_ROW = re.compile(
    rf"^\s+([a-z][\w/-]*(?: [a-z][\w/-]*)*) \.*: ?\(?({NUMBER})(?:, ({NUMBER}))?\)?\s*$"
)
_THEORETICAL = re.compile(r"[Tt]heoretical memory footprints:(.*)")
_EFFECTIVE = re.compile(rf"Effective Tera Flops per GPU:\s*({NUMBER})")
_BRIDGE_STEP = re.compile(rf"Step Time ?: ({NUMBER})s GPU utilization: ({NUMBER})")

_MEMORY_KINDS: dict[str, MemoryKind] = {
    "allocated": "allocated",
    "max allocated": "max_allocated",
    "reserved": "reserved",
    "max reserved": "max_reserved",
    "mem-allocated-gigabytes": "allocated",
    "mem-max-allocated-gigabytes": "max_allocated",
    "mem-reserved-gigabytes": "reserved",
    "mem-max-reserved-gigabytes": "max_reserved",
    "mem-allocated-bytes": "allocated",
    "mem-max-allocated-bytes": "max_allocated",
    "mem-reserved-bytes": "reserved",
    "mem-max-reserved-bytes": "max_reserved",
}
_MARKS = (
    ("deepspeed", re.compile(r"samples per second|lm-loss:|Effective Tera Flops|deepspeed",
                             re.IGNORECASE)),
    ("neox", re.compile(r"samples/sec: .*\| iteration|approx flops per GPU|NeoXArgs")),
    ("bridge", re.compile(r"mem-[a-z-]*-(?:giga)?bytes:|megatron[-_.]bridge|MODEL_TFLOP/s/GPU",
                          re.IGNORECASE)),
)  # fmt: skip
FAMILY = "megatron"
BRIDGE = "megatron-bridge"
"""Megatron-Bridge prints its own line beside Megatron-LM's."""


class MegatronLines:
    """Reads line by line into `Notes`."""

    def __init__(self) -> None:
        self._in_table = False

    def read(self, line: str, notes: Notes) -> bool:
        """Whether the line was one of these."""
        for name, pattern in _MARKS:
            if name not in notes.marks and pattern.search(line):
                notes.marks.add(name)
        found = [self._steps(line, notes), self._memory(line, notes), self._times(line, notes)]
        return any(found) or self._rest(line, notes)

    def _steps(self, line: str, notes: Notes) -> bool:
        if "iteration" not in line.lower():
            return False
        headers = list(_HEADER.finditer(line))
        if not headers:
            return False
        ends = [*(one.start() for one in headers[1:]), len(line)]
        found: list[LoggedStep] = []
        for header, end in zip(headers, ends, strict=True):
            found += _step(header, line[header.end() : end], line[: header.start()])
        return bool(found) and notes.add(FAMILY, *found)

    def _memory(self, line: str, notes: Notes) -> bool:
        if "memory (" not in line:
            return False
        known = len(notes.memory)
        for found in _MEMORY.finditer(line):
            notes.memory += _memory(found)
        if len(notes.memory) > known:
            notes.marks.add("megatron memory")
            return True
        return False

    def _times(self, line: str, notes: Notes) -> bool:
        found = _TIMERS.search(line)
        if found:
            fields = {name: leading_number(value) for name, value in fields_of(found[1]).items()}
            notes.timers.append({n: v / 1e3 for n, v in fields.items() if v is not None})
            return True
        if _TIMER_TABLE.search(line):
            self._in_table = True
            notes.marks.add("longest timers")
            notes.timers.append({})
            return True
        row = _TIMER_ROW.match(line) if self._in_table else None
        self._in_table = row is not None
        if row is not None:
            notes.timers[-1][row[1]] = float(row[3] or row[2]) / 1e3
        return row is not None

    def _rest(self, line: str, notes: Notes) -> bool:
        theory = _THEORETICAL.search(line)
        if theory:
            for name, value in re.findall(rf"([a-z][a-z ]*)=({NUMBER}) ?MB", theory[1]):
                notes.theoretical_bytes[name.strip()] = float(value) * MIB
            return True
        effective = _EFFECTIVE.search(line)
        if effective and notes.steps.get(FAMILY):
            last = notes.steps[FAMILY][-1]
            notes.steps[FAMILY][-1] = replace(last, flops_per_s_per_gpu=float(effective[1]) * 1e12)
            return True
        found = _BRIDGE_STEP.search(line)
        if found is None:
            return False
        step = LoggedStep(
            time_s=float(found[1]), printed=found[1], flops_per_s_per_gpu=float(found[2]) * 1e12
        )
        return notes.add(BRIDGE, step)


def _step(header: re.Match[str], rest: str, before: str) -> Iterator[LoggedStep]:
    """What follows one header; nothing where the line was cut before its time."""
    elapsed = _ELAPSED.search(rest)
    if elapsed is None:
        return
    fields = fields_of(rest)
    in_front = _SAMPLES_IN_FRONT.search(before)
    flops = _value(fields, r"tflop(?!.*mfu)|approx flops")
    batch = _value(fields, r"^global[ _]batch[ _]size$")
    samples = _value(fields, r"samples (?:per|/) ?sec|samples/s")
    yield LoggedStep(
        iteration=int(header[1]),
        time_s=_seconds(elapsed[2], elapsed[1]),
        printed=elapsed[2],
        global_batch=None if batch is None else round(batch),
        samples_per_s=float(in_front[1]) if in_front else samples,
        tokens_per_s_per_gpu=_value(
            fields, r"tokens[ /](?:per )?(?:gpu|npu|device)[ /](?:per )?s|\(tgs\)"
            r"|tokens/s(?:ec)?/gpu|tokens per sec(?:ond)?(?: per |/)gpu"
        ),
        flops_per_s_per_gpu=None if flops is None else flops * 1e12,
        loss=_value(fields, r"^lm[ -]loss$|^lm_loss$|^loss$"),
        skipped=round(_value(fields, r"^number of skipped iterations$") or 0),
        printer=printer_of(before + header[0]),
    )  # fmt: skip


def _seconds(text: str, unit: str) -> float:
    """To the digit: milliseconds become seconds by a decimal shift, not by a product."""
    value = text.replace(",", "")
    return float(f"{value}e-3") if unit.lower() == "ms" and "e" not in value.lower() else (
        float(value) * (1e-3 if unit.lower() == "ms" else 1.0)
    )  # fmt: skip


def _value(fields: dict[str, str], pattern: str) -> float | None:
    for name, value in fields.items():
        if re.search(pattern, name):
            return leading_number(value)
    return None


def _memory(found: re.Match[str]) -> Iterator[LoggedMemory]:
    """The readings of one report."""
    rank, iteration = (None if text is None else int(text) for text in (found[1], found[2]))
    for name, value in fields_of(found[4]).items():
        kind = _MEMORY_KINDS.get(name)
        number = leading_number(value)
        if kind is None or number is None:
            continue
        unit = 1e9 if name.endswith("gigabytes") else 1 if name.endswith("-bytes") else MIB
        text = re.match(NUMBER, value)
        yield LoggedMemory(kind, number * unit, rank, iteration, text=text[0] if text else None)
