"""The question that a user's own job asks: its model and batch, on its devices or others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.registry import NOTHING, Given, read_file
from shardwright.planner.question import (
    GRADIENT_DTYPES,
    SOFTWARE,
    Question,
    Training,
    completed,
    default_global_batch,
    sequence_length,
)
from shardwright.specs import InputError, ModelSpec, TrainingSpec


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user types beside the file; None where the file decides."""

    model: str | None = None
    cluster: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    training: Training = field(default_factory=Training)
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A user's job on a cluster, as a question to the planner."""

    question: Question
    reading: Reading
    """On the devices of the question."""
    notes: tuple[str, ...]
    """Where the cluster is another than the file's."""


def job_of(path: Path, target: str, asked: Asked, given: Given = NOTHING) -> Job:
    """The question of a file, with what the user says beside it.

    Raises:
        InputError: the file cannot be read, or leaves open what must be said: the model, the
            accelerator, or the number of devices.
    """
    if asked.model is not None:
        from shardwright.specs.sources import read_model

        given = replace(given, model=read_model(asked.model).spec)
    reading = read_file(path, target, given)
    named: dict[str, str] = {}
    if reading.model is None and given.model is None:
        only, named["model"] = _only_model_of_size(reading)
        given = replace(given, model=only)
    profile, source = _profile(reading, asked)
    world = profile.devices.num_devices
    given = replace(given, world=world)
    notes = _differences(reading, profile)
    model = given.model or reading.model
    assert model is not None
    given, assumed = _with_batch(path, target, given, model, asked.training)
    reading = read_file(path, target, given)
    question = _question(reading, model, profile, asked, source)
    typed = asked.training
    question.assumed.update(
        {
            name: value
            for name, value in {**named, **reading.assumed, **assumed}.items()
            if getattr(typed, name, None) is None
            and not (name == "vocab_size" and asked.model is not None)
        }
    )
    return Job(question, reading, notes)


def _only_model_of_size(reading: Reading) -> tuple[ModelSpec, str]:
    """The one known model with the layers and the width that a script states, and what is thereby
    assumed; raises `InputError` where there are none or several."""
    from shardwright.specs.sources import resolve_model

    layers, hidden = reading.stated.get("layers"), reading.stated.get("hidden")
    alike = _models_of_size(layers, hidden)
    if len(alike) != 1:
        raise _without_model(reading)
    words = (
        f"{alike[0]} (the only known one with {layers} layers x {hidden}; the rest is not given)"
    )
    return resolve_model(alike[0]), words


def _without_model(reading: Reading) -> InputError:
    lacking = next((text for text in reading.unread if text.startswith("the model: ")), None)
    detail = f" ({lacking.removeprefix('the model: ')})" if lacking else ""
    alike = _models_of_size(reading.stated.get("layers"), reading.stated.get("hidden"))
    example = "such as llama-3.1-70b"
    if alike:
        example = f"such as {' or '.join(alike[:3])}, of the same layers and width"
    return InputError(
        f"{reading.source} does not say what is trained{detail}",
        fix=f"name the model before the other options, {example}; or give the missing options"
        " with --add",
    )


def _models_of_size(layers: int | None, hidden: int | None) -> list[str]:
    """Presets with so many layers of such a width."""
    from shardwright.specs.sources.presets import list_presets, preset

    if layers is None or hidden is None:
        return []
    configs = {slug: preset(slug).config for slug in list_presets()}
    return [
        slug for slug, config in configs.items()
        if (config.get("num_hidden_layers"), config.get("hidden_size")) == (layers, hidden)
    ]  # fmt: skip


def _profile(reading: Reading, asked: Asked) -> tuple[HardwareProfile, str]:
    """The cluster: as typed, with the file's number of devices where the text has none."""
    from shardwright.hardware_profiles.catalogue import list_accelerators
    from shardwright.hardware_profiles.resolve import resolve_cluster

    text = asked.cluster if asked.cluster is not None else _stated_cluster(reading)
    counted = asked.gpus is not None or asked.nodes is not None
    if counted or text == "local" or "+" in text or text.endswith((".json", ".toml")):
        return resolve_cluster(text, gpus=asked.gpus, nodes=asked.nodes), text
    if text.lower() in list_accelerators():
        text = _inline(text, reading)
    if ":" in text:
        return resolve_cluster(text), text
    if reading.gpus is None and reading.nodes is None:
        raise InputError(
            f"{reading.source} does not state the number of devices",
            fix="give --gpus or --nodes",
        )
    if reading.gpus is None:
        return resolve_cluster(text, nodes=reading.nodes), text
    return resolve_cluster(text, gpus=reading.gpus), text


def _inline(accelerator: str, reading: Reading) -> str:
    """``h100-sxm5-80gb:8x16`` of an accelerator and the file's counts."""
    each, gpus = reading.gpus_per_node, reading.gpus
    if each is None or gpus is None or gpus % each:
        raise InputError(
            f"{reading.source} does not state how many devices a node has and how many there are",
            fix=f"write --cluster {accelerator}:8x16 for 16 nodes of 8",
        )
    return f"{accelerator}:{each}x{gpus // each}"


def _stated_cluster(reading: Reading) -> str:
    """The one accelerator that the file names; raises `InputError` where it leaves a choice."""
    from shardwright.hardware_profiles.catalogue import list_accelerators

    named = (reading.accelerator or "").lower()
    found = [
        slug
        for slug in list_accelerators()
        if named and re.match(rf"{re.escape(named)}(-|$)", slug)
    ]
    if len(found) == 1:
        return found[0]
    nodes = _nodes_of(found) or ["dgx-h100"]
    said = f"says {named}, of which there are {len(found)}" if found else "does not say on what"
    raise InputError(
        f"{reading.source} {said}{'' if found else ' accelerator it runs'}",
        fix=f"give --cluster, such as {' or '.join(nodes[:3])}; the number of devices is taken from"
        " the script where it states it",
    )


def _nodes_of(accelerators: list[str]) -> list[str]:
    """Node types of the catalogue with one of these accelerators, makers' own before clouds'."""
    from shardwright.hardware_profiles.catalogue import list_nodes, node

    found = [slug for slug in list_nodes() if node(slug).accelerator.name in accelerators]
    return sorted(found, key=lambda slug: (not slug.startswith(("dgx", "hgx")), slug))


def _differences(reading: Reading, profile: HardwareProfile) -> tuple[str, ...]:
    """Where the cluster differs from what the file starts."""
    found = []
    devices = profile.devices
    if reading.gpus not in (None, devices.num_devices):
        found.append(
            f"the file starts {reading.gpus} devices, the cluster has {devices.num_devices}: dp"
            " follows"
        )
    each = {group.devices_per_node for group in devices.groups}
    if reading.gpus_per_node is not None and each != {reading.gpus_per_node}:
        sizes = " and ".join(map(str, sorted(each)))
        found.append(
            f"the file starts {reading.gpus_per_node} processes a node, a node of the cluster has"
            f" {sizes} devices"
        )
    return tuple(found)


def _with_batch(
    path: Path, target: str, given: Given, model: ModelSpec, training: Training
) -> tuple[Given, dict[str, str]]:
    """With sequence length and batch where the file states none, and what was assumed of them."""
    assumed: dict[str, str] = {}
    if target != "megatron-lm":
        return given, assumed
    assert given.world is not None
    stated = read_file(path, target, given).stated
    more: list[str] = []
    seq_len = stated["seq_len"]
    if seq_len is None:
        seq_len = sequence_length(training.seq_len, model)
        more += ["--seq-length", str(seq_len)]
        if training.seq_len is None:
            assumed["seq_len"] = f"{seq_len}"
    if stated["global_batch"] is None and stated["micro_batch"] is None:
        batch = default_global_batch(seq_len, given.world)
        more += ["--global-batch-size", str(batch)]
        if training.global_batch is None:
            assumed["global_batch"] = f"{batch}"
    if stated["micro_batch"] is None:
        assumed["micro_batch"] = "1"
    return replace(given, more=(*given.more, *more)), assumed


def _question(
    reading: Reading, model: ModelSpec, profile: HardwareProfile, asked: Asked, source: str
) -> Question:
    """The file's training with what the user types in its place."""
    own = reading.training
    typed = asked.training
    measured = bool(profile.curves) or profile.software is not None
    stack = asked.stack or (None if measured else reading.software)
    question = completed(model, profile, training=_typed(own, typed), stack=stack, source=source)
    if asked.stack is None and stack is not None:
        question.assumed[SOFTWARE] = stack
    if own is None:
        return question
    return replace(question, training=_kept(question.training, own, typed))


def _typed(own: TrainingSpec | None, typed: Training) -> Training:
    if own is None:
        return typed
    gradient = own.dtypes.gradient
    return replace(
        typed,
        global_batch=typed.global_batch or f"{own.global_batch}",
        seq_len=typed.seq_len or f"{own.seq_len}",
        precision=typed.precision or str(own.precision),
        optimizer=typed.optimizer or own.optimizer.name,
        tokens=typed.tokens or (None if own.token_budget is None else f"{own.token_budget}"),
        gradient_dtype=typed.gradient_dtype
        or (gradient if typed.precision is None and gradient in GRADIENT_DTYPES else None),
    )


def _kept(training: TrainingSpec, own: TrainingSpec, typed: Training) -> TrainingSpec:
    """With the file's own optimizer and moments, unless another optimizer was typed."""
    if typed.optimizer is not None:
        return training
    return training.model_copy(
        update={"optimizer": own.optimizer, "moment_dtype": own.moment_dtype, "seed": own.seed}
    )


def unknown_layout(reading: Reading) -> str | None:
    """Why the file's layout cannot be priced on these devices; None where it can."""
    return next((text for text in reading.conflicts if text.startswith("the grid")), None)


def choices_of(reading: Reading) -> Mapping[str, object]:
    """The file's layout as `estimate` takes it; raises `InputError` where it is not known."""
    problem = unknown_layout(reading)
    if problem is not None:
        raise InputError(
            f"{reading.source}: {problem}",
            fix="give a cluster that it fits, or --set the variables of the script",
        )
    return reading.choices
