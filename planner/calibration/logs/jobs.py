"""A log as a job that `learn` reads. What it does not state must be given, and is asked for.

What is typed wins over what a launch script says, and that over what the log states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.cost_models.pricing import step_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resized
from shardwright.planner.calibration.logs.reading import LogKind, LogReading
from shardwright.planner.calibration.logs.steady import Steady, steady_step
from shardwright.planner.calibration.logs.timers import part_times
from shardwright.planner.calibration.logs.times import Size
from shardwright.planner.calibration.runs import is_measured, job_of_step
from shardwright.planner.layout_text import normalise_choices
from shardwright.planner.layouts import layout_of
from shardwright.planner.problem import ChoiceValue, Problem
from shardwright.planner.question import SOFTWARE, Training, complete_training, software_named
from shardwright.planner.validation.results import Job
from shardwright.planner.validation.rows import RowModel
from shardwright.planner.validation.shapes import Assumptions, model_of
from shardwright.specs import InputError, Layout, ModelSpec, SoftwareSpec
from shardwright.specs.units import parse

STACKS: Mapping[LogKind, str] = {
    "megatron-deepspeed": "megatron-deepspeed", "megatron-bridge": "megatron-bridge",
    "gpt-neox": "gpt-neox", "torchtitan": "torchtitan", "nemo": "megatron-bridge",
    "shardwright": SoftwareSpec().framework,
}  # fmt: skip
"""The stack of the catalogue that prints a kind of log. NeMo 2 runs Megatron-Core as
Megatron-Bridge does; lines of Megatron-LM and DeepSpeed alone do not tell the year."""

_CHOICES = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "zero", "zero_shard_degree",
            "sequence_parallel", "recompute")  # fmt: skip
_TELL_LAYOUT = ("tp", "pp", "dp", "zero")
"""With one of these stated, a log says how it was spread; the rest then has its plainest value."""


@dataclass(frozen=True, slots=True)
class Given:
    """What is known of the training beside the log."""

    profile: HardwareProfile | None = None
    model: ModelSpec | None = None
    training: Training = field(default_factory=Training)
    """As typed."""
    choices: Mapping[str, ChoiceValue] | None = None
    """Of the layout."""
    stack: str | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)
    """What a launch script says, under the names of `logs.configuration`."""


@dataclass(frozen=True, slots=True)
class LogJob:
    """A log beside the job that it is of."""

    log: LogReading
    job: Job
    steady: Steady
    assumed: Mapping[str, str]

    def in_words(self) -> str:
        """``run.log: megatron-lm, 5.41 s (median of 42 of 50 prints)``"""
        return f"{self.log.source}: {self.log.kind}, {self.steady.in_words()}"


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """The most that a log reports of one kind of memory, beside the prediction."""

    what: str
    measured_bytes: float
    predicted_bytes: float


def memory_checks(found: LogJob) -> tuple[MemoryCheck, ...]:
    """What the log reports of memory beside what is predicted; memory is not calibrated."""
    case = found.job.case
    model = step_model(case.model, case.training, case.profile, case.software)
    if not isinstance(model, StackModel):
        return ()
    (layout,) = found.job.layouts
    live = [rank.total_bytes - rank.fixed for rank in model.memory(layout)]
    checks = []
    allocated = found.log.memory_bytes("max_allocated")
    reserved = found.log.memory_bytes("max_reserved")
    if allocated:
        checks.append(MemoryCheck("allocated", max(allocated), float(max(live))))
    if reserved:
        most = max(model.memory_of_kind(layout, "reserved"))
        checks.append(MemoryCheck("reserved", max(reserved), float(most)))
    return tuple(checks)


def log_job(log: LogReading, given: Given) -> LogJob:
    """The job of a log.

    Raises:
        InputError: something of the job is neither stated nor given (all of it is named), the
            layout is impossible, or the log has no steady step.
    """
    stated = {**log.stated, **given.stated}
    if not log.steps and not log.timers and not log.runtimes_s:
        steady_step(log)  # says what the log has in place of steps
    training = _training(log, stated, given)
    assumptions = Assumptions()
    model = given.model or _model_of(stated, training, assumptions)
    _require_all(log, stated, given, model, training)
    assert model is not None
    assert given.profile is not None
    if is_measured(given.profile) and log.kind != "shardwright":
        raise InputError(
            f"{log.source} is a log of {log.kind}, and {given.profile.devices.name} was measured"
            " with operations of our own runtime",
            why="steps of other software say nothing of these",
            fix="give a cluster known by its data sheet, with --cluster",
        )
    world = stated.get("gpus")
    profile = given.profile if world is None else resized(given.profile, gpus=world)
    spec, assumed = complete_training(training, model, profile.devices.num_devices)
    assumed |= dict(note.split(" = ", 1) for note in assumptions.notes)
    software = software_named(given.stack or _stack_of(log), profile, assumed)
    if given.stack is None and SOFTWARE not in assumed and software.framework != "shardwright":
        assumed[SOFTWARE] = f"{software.framework} (the log's kind)"
    if world is None:
        assumed["gpus"] = str(profile.devices.num_devices)
    problem = Problem(model, spec, profile, software)
    layout = _layout(problem, stated, given, is_own=log.kind == "shardwright")
    steady = steady_step(log, _size(spec.global_batch, spec.seq_len, layout))
    job = job_of_step(
        name=log.source, model=model, training=spec, profile=profile, software=software,
        layout=layout, step_time_s=steady.step_time_s,
    )  # fmt: skip
    parts = part_times(log, steady.step_time_s, layout.micro_batches)
    return LogJob(log, replace(job, parts=parts), steady, assumed)


def _size(global_batch: int, seq_len: int, layout: Layout) -> Size:
    return Size(global_batch, seq_len, layout.world, layout.micro_batches)


def _stack_of(log: LogReading) -> str | None:
    """The stack of a log's kind; of Megatron-LM's that of the year that its arguments tell."""
    arguments = log.stated.get("arguments", {})
    if log.kind == "megatron-lm" and "checkpoint_activations" in arguments:
        return "megatron-lm-2021"
    if log.kind == "megatron-lm" and "activations_checkpoint_method" in arguments:
        return "megatron-lm-2021"
    return STACKS.get(log.kind)


def _training(log: LogReading, stated: Mapping[str, Any], given: Given) -> Training:
    """The typed options, and for those that were not typed what is stated."""
    typed = given.training
    found = {
        "global_batch": _global_batch(log, stated),
        "seq_len": stated.get("seq_len"),
        "precision": stated.get("precision"),
        "optimizer": {"adam": "adamw"}.get(str(stated.get("optimizer")), stated.get("optimizer")),
    }
    missing = {
        name: str(value)
        for name, value in found.items()
        if value is not None and getattr(typed, name) is None
    }
    return replace(typed, **missing)


def _global_batch(log: LogReading, stated: Mapping[str, Any]) -> int | None:
    """That of most steps, else as stated, else what the layout multiplies to."""
    batches = [step.global_batch for step in log.steps if step.global_batch]
    if batches:
        return max(set(batches), key=batches.count)
    if "global_batch" in stated:
        return int(stated["global_batch"])
    if "tokens_per_step" in stated and "seq_len" in stated:
        return int(stated["tokens_per_step"]) // int(stated["seq_len"])
    parts = [stated.get(name) for name in ("micro_batch", "num_microbatches", "dp")]
    product = 1
    for part in parts:
        if part is None:
            return None
        product *= int(part)
    return product


def _model_of(
    stated: Mapping[str, Any], training: Training, assumptions: Assumptions
) -> ModelSpec | None:
    """A model of the sizes that are stated; None where these are too few."""
    if not {"layers", "hidden", "heads"} <= stated.keys():
        return None
    remarks = [
        text
        for text, said in (
            ("untied embeddings", stated.get("tied") is False),
            ("no bias", stated.get("bias") is False),
            ("rotary", stated.get("rotary") is True),
            (f"head_dim {stated.get('head_dim')}", "head_dim" in stated),
            (f"moe_ffn {stated.get('expert_size')}", "expert_size" in stated),
        )
        if said
    ]
    names = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "gated_mlp", "experts",
             "topk")  # fmt: skip
    sizes = {name: stated[name] for name in names if stated.get(name) is not None}
    row = RowModel(name="the log's model", other=", ".join(remarks) or None, **sizes)
    if training.seq_len is not None:
        row = row.model_copy(update={"seq_len": round(parse(training.seq_len, "count"))})
    return model_of(row, configs={}, assumed=assumptions)


def _require_all(
    log: LogReading,
    stated: Mapping[str, Any],
    given: Given,
    model: ModelSpec | None,
    training: Training,
) -> None:
    """One message for all that is missing."""
    has_layout = given.choices is not None or any(name in stated for name in _TELL_LAYOUT)
    missing = [
        (words, option)
        for words, option, is_known in (
            ("where it ran", "--cluster C", given.profile is not None),
            ("the model", "--model M", model is not None),
            ("the global batch", "--global-batch N", training.global_batch is not None),
            ("the sequence length", "--seq-len N", training.seq_len is not None),
            ("the layout", "--layout tp=..,pp=..,zero=..", has_layout),
        )
        if not is_known
    ]
    if missing:
        raise InputError(
            f"{log.source} (a log of {log.kind}) does not state"
            f" {_listed([words for words, _ in missing])}",
            why="a step time teaches nothing without the job that took it",
            fix=f"add {' '.join(option for _, option in missing)}",
        )


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _layout(problem: Problem, stated: Mapping[str, Any], given: Given, *, is_own: bool) -> Layout:
    """The stated choices under the given ones; raises `InputError`.

    Where no stages are given, those of other software hold equally many layers each, if these
    divide; the ends come on top.
    """
    said = {name: stated[name] for name in _CHOICES if stated.get(name) is not None}
    choices = dict(normalise_choices({**said, **(given.choices or {})}))
    degrees = [int(str(choices.get(name, 1))) for name in ("tp", "cp", "pp")]
    replicas = problem.world // max(1, degrees[0] * degrees[1] * degrees[2])
    if degrees[0] == 1 and "sequence_parallel" not in (given.choices or {}):
        choices.pop("sequence_parallel", None)
    if replicas * degrees[1] <= 1 and "zero" not in (given.choices or {}):
        choices.pop("zero", None)
    count = degrees[2] * int(str(choices.get("vpp", 1)))
    if "stages" not in choices and not is_own and count > 1 and problem.num_layers % count == 0:
        each = problem.num_layers // count
        choices["stages"] = tuple(each * (stage + 1) for stage in range(count))
    return layout_of(problem, choices)
