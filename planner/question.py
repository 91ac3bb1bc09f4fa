"""From what a user names and types to our nouns, with defaults that are stated, never silent."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from typing import get_args

from shardwright.cost_models.blocks.support import OWN_LACKS
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import (
    InputError,
    ModelSpec,
    OptimizerSpec,
    Precision,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.ranges import MOST_ELEMENTS, MOST_SEQUENCES, MOST_TOKENS
from shardwright.specs.training import DType
from shardwright.specs.units import parse
from shardwright.specs.world import divisors

logger = logging.getLogger(__name__)

OPTIMIZERS: tuple[str, ...] = get_args(OptimizerSpec.model_fields["name"].annotation)
GRADIENT_DTYPES: dict[str, DType] = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}

DEFAULT_SEQ_LEN = 8192
DEFAULT_TOKENS_PER_STEP = 2**22
"""About 4 M, as recent large models are trained."""


HARDWARE = "hardware"
"""What is assumed of the hardware where nothing was measured on it."""
SOFTWARE = "software"
"""Which software is assumed to run it."""


@dataclass(frozen=True, slots=True)
class Training:
    """The options of ``plan`` and ``estimate`` that say how to train, as they were typed."""

    global_batch: str | None = None
    seq_len: str | None = None
    precision: str | None = None
    optimizer: str | None = None
    trainable: str = "full"
    tokens: str | None = None
    gradient_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What to train on what, and which of it the user did not say."""

    model: ModelSpec
    profile: HardwareProfile
    training: TrainingSpec
    software: SoftwareSpec
    assumed: dict[str, str]
    source: str
    """What the user wrote for the cluster."""


def question(
    model: str,
    cluster: str,
    *,
    gpus: int | None,
    nodes: int | None,
    training: Training,
    stack: str | None = None,
) -> Question:
    """Look up the model and the cluster and complete the training; raises `InputError`."""
    from shardwright.hardware_profiles.resolve import resolve_cluster
    from shardwright.specs.sources import read_model

    source = read_model(model)
    for note in source.notes:
        logger.warning("%s: %s", source.spec.name, note)
    profile = resolve_cluster(cluster, gpus=gpus, nodes=nodes)
    return completed(source.spec, profile, training=training, stack=stack, source=cluster)


def completed(
    model: ModelSpec,
    profile: HardwareProfile,
    *,
    training: Training,
    stack: str | None = None,
    source: str,
) -> Question:
    """The question about a model and a cluster that are known; raises `InputError`.

    ``source``: what the user wrote for the cluster.
    """
    from shardwright.hardware_profiles.resolve import evidence_in_words

    training_spec, assumed = complete_training(training, model, profile.devices.num_devices)
    evidence = evidence_in_words(profile)
    if evidence is not None:
        assumed[HARDWARE] = evidence
    software = software_named(stack, profile, assumed)
    training_spec = _with_customs(training_spec, software, assumed)
    return Question(model, profile, training_spec, software, assumed, source)


def software_named(
    stack: str | None, profile: HardwareProfile, assumed: dict[str, str]
) -> SoftwareSpec:
    """The software of ``--stack``, or what is customary on the profile, which is then assumed.

    Raises:
        InputError: the catalogue has no such stack, with the nearest.
    """
    from shardwright.hardware_profiles.stacks import list_stacks, stack_facts
    from shardwright.planner.engine import software_of

    own = SoftwareSpec().framework
    if stack == own:
        return SoftwareSpec(lacks=OWN_LACKS)
    calibrated = profile.software
    if stack is not None and (calibrated is None or stack != calibrated.framework):
        return stack_facts(one_of(stack, [*list_stacks(), own], "--stack")).software
    software = software_of(profile)
    if stack is None and software.framework != own:
        learned = " (as calibrated)" if calibrated is not None else ""
        assumed[SOFTWARE] = f"{software.framework}{learned}"
    return software


def _with_customs(
    training: TrainingSpec, software: SoftwareSpec, assumed: dict[str, str]
) -> TrainingSpec:
    """The dtype in which this software sums gradients, where it is not the precision's own."""
    from shardwright.hardware_profiles.stacks import list_stacks, stack_facts

    if training.gradient_dtype is not None or software.framework not in list_stacks():
        return training
    dtype = stack_facts(software.framework).defaults.gradient_dtype.get(training.precision)
    if dtype is None:
        return training
    assumed["gradient_dtype"] = dtype
    return training.model_copy(update={"gradient_dtype": dtype})


def sequence_length(text: str | None, model: ModelSpec) -> int:
    """What was given, or the model's longest up to `DEFAULT_SEQ_LEN`; raises `InputError`."""
    if text is not None:
        return count(text, "--seq-len", most=MOST_ELEMENTS)
    if model.decoder.tokens_per_sample is not None:
        return model.decoder.tokens_per_sample
    return min(model.max_seq_len or DEFAULT_SEQ_LEN, DEFAULT_SEQ_LEN)


def complete_training(
    given: Training, model: ModelSpec, num_devices: int
) -> tuple[TrainingSpec, dict[str, str]]:
    """The training, and the defaults that it took by name; raises `InputError`."""
    seq_len = sequence_length(given.seq_len, model)
    batch = default_global_batch(seq_len, num_devices)
    precisions = [*map(str, Precision), "fp8"]
    optimizer = one_of(given.optimizer or "adamw", list(OPTIMIZERS), "--optimizer")
    spec = TrainingSpec(
        global_batch=batch
        if given.global_batch is None
        else count(given.global_batch, "--global-batch", most=MOST_SEQUENCES),
        seq_len=seq_len,
        precision=Precision(one_of(given.precision or "bf16", precisions, "--precision")),
        optimizer=OptimizerSpec.model_validate({"name": optimizer}),
        gradient_dtype=_dtype(given.gradient_dtype),
        trainable=trainable(given.trainable, model),
        token_budget=None
        if given.tokens is None
        else count(given.tokens, "--tokens", most=MOST_TOKENS),
    )
    values = {
        "seq_len": f"{spec.seq_len}",
        "global_batch": f"{spec.global_batch}",
        "precision": f"{spec.precision}",
        "optimizer": spec.optimizer.name,
    }
    return spec, {name: value for name, value in values.items() if getattr(given, name) is None}


def trainable(text: str, model: ModelSpec) -> str:
    """What is trained, if it can be; raises `InputError`."""
    kind, _, rest = text.partition(":")
    is_adapted = kind in ("lora", "qlora") and rest.isascii() and rest.isdigit()
    if text == "full" or (is_adapted and 0 < int(rest) < 100_000):
        return f"{kind}:{int(rest)}" if is_adapted else text
    towers = [tower.name for tower in model.towers]
    if kind == "frozen" and rest:
        for name in rest.split("+"):
            one_of(name, towers, "the tower of --trainable frozen:")
        return text
    raise InputError(
        f"--trainable cannot be {text!r}",
        fix=f"choose full, lora:RANK, qlora:RANK or frozen:TOWER ({', '.join(towers)})",
    )


def _dtype(text: str | None) -> DType | None:
    if text is None:
        return None
    one_of(text, list(GRADIENT_DTYPES), "--gradient-dtype")
    return GRADIENT_DTYPES[text]


def default_global_batch(seq_len: int, num_devices: int) -> int:
    """About 4 M tokens: the nearest multiple of as many devices as can share it evenly.

    The multiple is of the largest divisor of ``num_devices`` that is no more than the batch, so
    that odd GPU counts can be used in full.
    """
    wanted = max(1, round(DEFAULT_TOKENS_PER_STEP / seq_len))
    sharers = max(d for d in divisors(num_devices) if d <= wanted)
    return max(1, round(wanted / sharers)) * sharers


def count(text: str, option: str, *, most: int) -> int:
    """A whole number from 1 to ``most``, such as ``512``, ``8k`` (8192) or ``15T`` (tokens)."""
    value = parse(text, "count")
    if not 1 <= value <= most or value != int(value):
        raise InputError(
            f"{option} is {text}, not a whole number from 1 to {most:,}", fix=f"correct {option}"
        )
    return int(value)


def one_of(value: str, valid: list[str], option: str) -> str:
    """``value`` if it is valid; raises `InputError` with the nearest valid one."""
    if value in valid:
        return value
    near = difflib.get_close_matches(value, valid, n=3)
    raise InputError(
        f"{option} cannot be {value!r}", fix=f"choose one of {', '.join(near or valid)}"
    )
