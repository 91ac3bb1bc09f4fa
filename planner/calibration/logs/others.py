"""Lines of torchtitan, NeMo 2, nanochat and our own runtime: one regular expression each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from shardwright.planner.calibration.logs.reading import (
    LoggedMemory,
    LoggedStep,
    MemoryKind,
    Notes,
)
from shardwright.planner.calibration.logs.text import (
    GIB,
    NUMBER,
    fields_of,
    leading_number,
    number_of,
    printer_of,
)

_TITAN = re.compile(rf"\bstep:\s*(\d+)\s+loss:\s*({NUMBER}|nan)")
_TITAN_FIELDS = {
    name: re.compile(pattern)
    for name, pattern in {
        "memory": rf"\bmemory:\s*({NUMBER})GiB\(({NUMBER})%\)",
        "tps": rf"\b(?:tps|wps):\s*({NUMBER})(?=\s)",
        "tflops": rf"\btflops:\s*({NUMBER})",
        "mfu": rf"\bmfu:\s*({NUMBER})%",
    }.items()
}
_NEMO = re.compile(r"\b(?:epoch (\d+), )?iteration (\d+)/\d+ \|(.*train_step_timing in s:.*)")
_NEMO_MEMORY: tuple[tuple[str, MemoryKind], ...] = (
    ("memory_allocated", "allocated"), ("peak_memory_usage", "max_allocated"),
)  # fmt: skip
_NANOCHAT = re.compile(r"\bstep (\d+)/\d+ \([\d.]+%\) \|(.*\bdt:.*)")
_OWN = re.compile(
    rf"\bstep (\d+): loss ({NUMBER}|nan), gradient norm {NUMBER}, learning rate {NUMBER},"
    rf" ({NUMBER}) ?(ns|us|µs|ms|s|min|h) a step, ({NUMBER}) tokens/s"
)
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def torchtitan_line(line: str, notes: Notes) -> bool:
    """``step: 10  loss: 3.43  memory: 68.57GiB(86.92%)  tps: 6,785  tflops: 397.4  mfu: 40.18%``

    ``tps`` counts tokens of the whole job over time and devices; the memory is the most that the
    allocator reserved.
    """
    found = _TITAN.search(line) if "step:" in line else None
    if found is None or "|" in line:
        return False
    fields = {name: pattern.search(line) for name, pattern in _TITAN_FIELDS.items()}
    rate, flops, mfu = (_first(fields[name]) for name in ("tps", "tflops", "mfu"))
    if rate is None and fields["memory"] is None:
        return False
    step = LoggedStep(
        iteration=int(found[1]),
        loss=number_of(found[2]),
        tokens_per_s_per_gpu=rate,
        flops_per_s_per_gpu=None if flops is None else flops * 1e12,
        mfu_fraction=None if mfu is None else mfu / 100,
        printer=printer_of(line),
    )
    notes.memory += _titan_memory(fields["memory"], int(found[1]))
    return notes.add("torchtitan", step)


def _titan_memory(found: re.Match[str] | None, step: int) -> Iterator[LoggedMemory]:
    if found is None:
        return
    size, share = (number_of(text) for text in found.groups())
    yield LoggedMemory(
        "max_reserved", (size or 0.0) * GIB, iteration=step,
        device_fraction=None if share is None else share / 100, text=found[1],
    )  # fmt: skip


def _first(found: re.Match[str] | None) -> float | None:
    return None if found is None else number_of(found[1])


def nemo_line(line: str, notes: Notes) -> bool:
    """``Training epoch 0, iteration 1/19 | ... | train_step_timing in s: 7.572 | ...``"""
    found = _NEMO.search(line) if "train_step_timing" in line else None
    if found is None:
        return False
    fields = fields_of(found[3])
    printed = re.match(NUMBER, fields.get("train_step_timing in s", ""))
    if printed is None:
        return False
    order, batch = (leading_number(fields.get(n)) for n in ("global_step", "global_batch_size"))
    flops = leading_number(fields.get("tflops_per_sec_per_gpu") or fields.get("tflops_per_gpu"))
    step = LoggedStep(
        iteration=int(found[2]),
        order=None if order is None else round(order),
        time_s=number_of(printed[0]),
        printed=printed[0],
        global_batch=None if batch is None else round(batch),
        flops_per_s_per_gpu=None if flops is None else flops * 1e12,
        loss=leading_number(fields.get("reduced_train_loss")),
        printer=printer_of(line),
    )
    notes.memory += _nemo_memory(fields)
    return notes.add("nemo", step)


def _nemo_memory(fields: dict[str, str]) -> Iterator[LoggedMemory]:
    """In bytes, where ``log_memory_usage`` is on."""
    for name, kind in _NEMO_MEMORY:
        size = leading_number(fields.get(name))
        if size is not None:
            yield LoggedMemory(kind, size, text=fields[name])


def nanochat_line(line: str, notes: Notes) -> bool:
    """``step 00004/21400 (0.35%) | loss: 8.89 | dt: 989.44ms | tok/sec: 529,882 | mfu: 74.46``"""
    found = _NANOCHAT.search(line) if "tok/sec" in line else None
    if found is None:
        return False
    fields = fields_of(found[2])
    printed = re.match(rf"({NUMBER})(ms|s)", fields.get("dt", ""))
    if printed is None:
        return False
    mfu = leading_number(fields.get("mfu") or fields.get("bf16_mfu"))
    step = LoggedStep(
        iteration=int(found[1]),
        time_s=float(printed[1].replace(",", "") + ("e-3" if printed[2] == "ms" else "")),
        printed=printed[1],
        tokens_per_s=leading_number(fields.get("tok/sec")),
        mfu_fraction=None if mfu is None else mfu / 100,
        loss=leading_number(fields.get("loss")),
        printer=printer_of(line),
    )
    return notes.add("nanochat", step)


def own_line(line: str, notes: Notes) -> bool:
    """What `shardwright run` says of a step, and the lines of its metrics file."""
    step = _own_record(line) if '"step_time_s"' in line else _own_words(line)
    return step is not None and notes.add("shardwright", step)


def _own_record(line: str) -> LoggedStep | None:
    try:
        record = json.loads(line)
        return LoggedStep(
            iteration=int(record["step"]), time_s=float(record["step_time_s"]),
            printed=str(record["step_time_s"]), tokens_per_s=float(record["tokens_per_s"]),
            loss=float(record["loss"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None


def _own_words(line: str) -> LoggedStep | None:
    found = _OWN.search(line) if "tokens/s" in line else None
    if found is None:
        return None
    time_s = number_of(found[3])
    return LoggedStep(
        iteration=int(found[1]), loss=number_of(found[2]), printed=found[3],
        time_s=None if time_s is None else time_s * _UNIT_S[found[4]],
        tokens_per_s=number_of(found[5]),
    )  # fmt: skip
