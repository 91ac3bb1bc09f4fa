"""Dictionaries that the Hugging Face Trainer prints, and what ms-swift adds to them.

``{'loss': 2.93, 'learning_rate': 1e-05, 'epoch': 0.65}`` every few steps, and once at the end
``{'train_runtime': 896.0, 'train_samples_per_second': 1.149, 'train_steps_per_second': 0.032}``.
ms-swift adds ``'global_step/max_steps': '5/16'``, ``'memory(GiB)'`` (the most that the allocator
reserved) and ``'train_speed(iter/s)'``, the mean since the training's begin. Progress bars say
which step a dictionary follows.
"""

from __future__ import annotations

import re

from shardwright.planner.calibration.logs.reading import LoggedMemory, LoggedStep, Notes
from shardwright.planner.calibration.logs.text import GIB, NUMBER, leading_number, printer_of

_DICTIONARY = re.compile(r"\{\s*['\"][^{}]*\}")
_PAIR = re.compile(r"(['\"])([^'\"]+)\1\s*:\s*(?:(['\"])(.*?)\3|([^,}]+))")
_BAR = re.compile(r"\|\s*(\d+)/(\d+) \[")
FAMILY = "hf-trainer"
_OF_A_STEP = ("learning_rate", "epoch", "grad_norm", "iteration", "global_step/max_steps")
_SPEEDS = (("train_speed(iter/s)", False), ("train_speed(s/it)", True))


class HuggingFaceLines:
    """Reads line by line into `Notes`."""

    def __init__(self) -> None:
        self._step: int | None = None

    def read(self, line: str, notes: Notes) -> bool:
        """Whether the line was one of these."""
        for bar in _BAR.finditer(line):
            self._step = int(bar[1])
            notes.stated["total_steps"] = int(bar[2])
        found = False
        for text in _DICTIONARY.findall(line) if "{" in line else ():
            fields = {pair[1]: (pair[3] or pair[4]).strip() for pair in _PAIR.findall(text)}
            if "train_runtime" in fields:
                found |= self._summary(fields, notes)
            elif "step_time_s" in fields:
                continue  # a record of our own runtime
            elif "loss" in fields and any(name in fields for name in _OF_A_STEP):
                found |= self._one(fields, line, notes)
        return found

    def _one(self, fields: dict[str, str], line: str, notes: Notes) -> bool:
        step = LoggedStep(
            iteration=_iteration(fields, self._step),
            loss=leading_number(fields["loss"]),
            mean_time_s=_mean_time_s(fields),
            printer=printer_of(line),
        )
        _memory(fields, step.iteration, notes)
        return notes.add(FAMILY, step)

    def _summary(self, fields: dict[str, str], notes: Notes) -> bool:
        runtime_s = leading_number(fields["train_runtime"])
        if runtime_s is None:
            return False
        notes.runtimes_s.append(runtime_s)
        _memory(fields, None, notes)
        rate = leading_number(fields.get("train_samples_per_second"))
        step = LoggedStep(
            order=_iteration(fields, None), samples_per_s=rate, is_mean=True,
            mean_time_s=_mean_time_s(fields),
        )  # fmt: skip
        return notes.add(FAMILY, step)


def _iteration(fields: dict[str, str], shown: int | None) -> int | None:
    """As the dictionary says, else as the bar above it."""
    said = fields.get("global_step/max_steps") or fields.get("iteration") or fields.get("step")
    number = leading_number(said)
    return shown if number is None else round(number)


def _mean_time_s(fields: dict[str, str]) -> float | None:
    for name, is_time in _SPEEDS:
        value = leading_number(fields.get(name))
        if value:
            return value if is_time else 1.0 / value
    return None


def _memory(fields: dict[str, str], iteration: int | None, notes: Notes) -> None:
    text = re.match(NUMBER, fields.get("memory(GiB)", ""))
    if text is not None:
        size = float(text[0].replace(",", "")) * GIB
        notes.memory.append(
            LoggedMemory("max_reserved", size, iteration=iteration, text=text[0])
        )  # fmt: skip
