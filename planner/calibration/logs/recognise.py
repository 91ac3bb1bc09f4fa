"""Which software wrote a log, and all that it says: `read_log`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from shardwright.planner.calibration.logs import deepspeed, huggingface, megatron, others
from shardwright.planner.calibration.logs.configuration import configuration_of, read_configuration
from shardwright.planner.calibration.logs.reading import LogKind, LogReading, Notes
from shardwright.planner.calibration.logs.text import lines_of, lines_of_file
from shardwright.specs import InputError

KINDS = (
    "Megatron-LM (and forks that kept its lines), Megatron-DeepSpeed, Megatron-Bridge, GPT-NeoX,"
    " DeepSpeed, torchtitan, NeMo 2, Hugging Face Trainer, nanochat and shardwright run"
)
"""Whose logs are read, for people."""

FLOPS_CONVENTIONS: dict[LogKind, str] = {
    "megatron-lm": "Megatron-LM: model FLOPs of forward and backward, without recomputation; older"
    " releases count the masked half of attention, too",
    "megatron-bridge": "Megatron-Bridge: model FLOPs without recomputation",
    "megatron-deepspeed": "Megatron-DeepSpeed: 24 B s l h^2 (1 + s / 6h + V / 16 l h) x 3, or x 4"
    " where activations are computed again",
    "gpt-neox": "GPT-NeoX: 24 B s l h^2 (1 + s / 6h + V / 16 l h) x 3, or x 4 where activations are"
    " computed again",
    "torchtitan": "torchtitan: 6 N + 12 l h q s for each token, embeddings apart",
    "nemo": "NeMo: model FLOPs by its callback's formula for the model",
    "nanochat": "nanochat: 6 N + 12 l h q s for each token, embeddings apart",
}

_OWN_TRAINERS: tuple[tuple[str, LogKind], ...] = (
    (megatron.FAMILY, "megatron-lm"), ("torchtitan", "torchtitan"), ("nemo", "nemo"),
    (huggingface.FAMILY, "hf-trainer"), ("nanochat", "nanochat"), ("shardwright", "shardwright"),
)  # fmt: skip
"""Families of lines of which one log holds one."""
_BENEATH = (megatron.BRIDGE, deepspeed.PIPELINE, deepspeed.FAMILY)
"""Lines of what a trainer is built upon; they count where the trainer prints none."""


def read_log(path: Path) -> LogReading:
    """Everything that a log says.

    Raises:
        InputError: no such file, no text, empty, of no software that is known, or of several.
    """
    return _reading(_unfolded(lines_of_file(path)), str(path))


def read_log_text(text: str, *, source: str = "the log") -> LogReading:
    """As `read_log`, of a text."""
    if not text.strip():
        raise InputError(f"{source} is empty", fix="give the text that the training printed")
    return _reading(_unfolded(lines_of(text)), source)


def _unfolded(lines: Iterable[str]) -> Iterable[str]:
    """A Trainer's saved state (one JSON object over many lines) as the lines that it printed."""
    gathered: list[str] = []
    for line in lines:
        if not gathered and line.strip() != "{":
            yield line
            continue
        gathered.append(line)
        if line.startswith("}"):
            yield from _history(gathered)
            gathered = []
    yield from gathered


def _history(lines: list[str]) -> list[str]:
    try:
        found = json.loads("\n".join(lines))
    except ValueError:
        return lines
    history = found.get("log_history") if isinstance(found, dict) else None
    return [json.dumps(one) for one in history] if isinstance(history, list) else lines


def _reading(lines: Iterable[str], source: str) -> LogReading:
    notes = Notes()
    readers = (
        megatron.MegatronLines().read, deepspeed.DeepSpeedLines().read, others.torchtitan_line,
        others.nemo_line, huggingface.HuggingFaceLines().read, others.nanochat_line,
        others.own_line, read_configuration,
    )  # fmt: skip
    count = 0
    for line in lines:
        count += 1
        for read in readers:
            read(line, notes)
    kind = _kind(notes, source, count)
    has_rate = any(step.flops_per_s_per_gpu for steps in notes.steps.values() for step in steps)
    return LogReading(
        source=source,
        kind=kind,
        steps=tuple(next((notes.steps[f] for f in _families() if notes.steps.get(f)), ())),
        memory=tuple(notes.memory),
        timers=tuple(notes.timers),
        timers_are="of the longest" if "longest timers" in notes.marks else "of the last rank",
        runtimes_s=tuple(notes.runtimes_s),
        theoretical_bytes=notes.theoretical_bytes,
        flops_convention=FLOPS_CONVENTIONS.get(kind) if has_rate else None,
        stated=configuration_of(notes.stated),
    )


def _families() -> tuple[str, ...]:
    return (*(name for name, _ in _OWN_TRAINERS), *_BENEATH)


def _kind(notes: Notes, source: str, num_lines: int) -> LogKind:
    """The software; raises `InputError` where that is none or several."""
    own = [(name, kind) for name, kind in _OWN_TRAINERS if notes.steps.get(name)]
    if len(own) > 1:
        raise InputError(
            f"{source} holds lines of {len(own)} kinds: {', '.join(kind for _, kind in own)}",
            why="a log is of one training",
            fix="give each its own file",
        )
    if notes.measured_nothing():
        raise InputError(
            f"no line of {source} ({num_lines:,} lines) reports a training step, memory or a"
            " throughput in a form that is known",
            why=f"read are logs of {KINDS}",
            fix="give what the training printed on the rank that reports",
        )
    if own and own[0][0] != megatron.FAMILY:
        return own[0][1]
    if own or "megatron memory" in notes.marks or notes.steps.get(megatron.BRIDGE):
        return _megatron(notes)
    if notes.theoretical_bytes and not (notes.timers or notes.memory):
        return "theoretical-memory"
    if notes.runtimes_s:
        return "hf-trainer"
    if _is_deepspeed(notes):
        return "deepspeed"
    return _megatron(notes)


def _is_deepspeed(notes: Notes) -> bool:
    timed = any(
        deepspeed.MICRO_STEP in timers or "fwd_microstep" in timers for timers in notes.timers
    )
    return timed or "deepspeed" in notes.marks


def _megatron(notes: Notes) -> LogKind:
    """Which of those that print Megatron-LM's lines."""
    if "neox" in notes.marks:
        return "gpt-neox"
    if "bridge" in notes.marks or notes.steps.get(megatron.BRIDGE):
        return "megatron-bridge"
    return "megatron-deepspeed" if "deepspeed" in notes.marks else "megatron-lm"
