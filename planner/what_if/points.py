"""One point: a question in text, and what planning it found, as data that can be kept on disk."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from shardwright.planner.what_if.axes import CHOICES, SCALED, factor_of
from shardwright.specs import InputError, ModelSpec, NodeGroup
from shardwright.specs.units import parse

if TYPE_CHECKING:
    from shardwright.cost_models.money import Rates
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.planner.api import PlanAnswer
    from shardwright.planner.question import Question
    from shardwright.specs.sources import ModelSource

Verdict = Literal["planned", "infeasible", "invalid"]

_TRAINING = ("global_batch", "seq_len", "precision", "optimizer", "trainable", "gradient_dtype")


@dataclass(frozen=True)
class Point:
    """What is asked of one point; everything but a model or a profile given as such is text."""

    model: str | ModelSpec
    cluster: str | HardwareProfile
    settings: Mapping[str, str] = field(default_factory=dict)
    """Values of `axes.PARAMETERS` other than model, cluster and tokens."""
    fix: str = ""
    """Choices to keep, as `parse_choices` reads them."""
    forbid: tuple[str, ...] = ()
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What planning a point found; every field is plain JSON."""

    verdict: Verdict
    reason: str | None = None
    """Why there is no plan."""
    asked: dict[str, Any] = field(default_factory=dict)
    """The question with its defaults: model, cluster, gpus, seq_len, ...; empty where invalid."""
    layout: dict[str, Any] | None = None
    layout_text: str | None = None
    """As ``estimate --layout`` takes it."""
    prediction: dict[str, Any] | None = None
    certificate: dict[str, Any] | None = None
    assumed: dict[str, str] = field(default_factory=dict)
    rates: dict[str, Any] = field(default_factory=dict)
    """`cost_models.money.Rates` of the cluster."""
    sources: dict[str, str] = field(default_factory=dict)
    """What prices and powers rest on."""
    notes: list[str] = field(default_factory=list)
    """What the model's source says and its spec does not hold."""

    @property
    def is_proven(self) -> bool:
        """Whether the answer would be the same with more time; then it may be kept."""
        return self.certificate is None or bool(self.certificate["optimal"])

    def to_json_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

    @classmethod
    def from_json_dict(cls, value: Any) -> Self:
        """What `to_json_dict` wrote; raises `ValueError` for anything else."""
        names = {one.name for one in fields(cls)}
        if not isinstance(value, dict) or set(value) != names:
            raise ValueError("not an outcome")
        if value["verdict"] not in get_args(Verdict):
            raise ValueError(f"verdict {value['verdict']!r}")
        if value["verdict"] == "planned" and not (value["prediction"] and value["rates"]):
            raise ValueError("planned, but without a prediction")
        return cls(**value)


def evaluate(point: Point) -> Outcome:
    """Plan one point to the certified optimum; what cannot be planned is an outcome, too."""
    from shardwright.planner import api

    try:
        asked = question_of(point)
        answer = api.plan(
            model=asked.model,
            profile=asked.profile,
            training=asked.training,
            software=asked.software,
            fix=fixed_of(point),
            forbid=point.forbid,
            top=1,
            assumed=asked.assumed,
            time_limit_s=point.time_limit_s,
            suggest=False,
        )
    except InputError as error:
        return Outcome("invalid", reason=str(error))
    notes = list(_source(point.model).notes) if isinstance(point.model, str) else []
    return _outcome(asked, answer, notes)


def question_of(point: Point) -> Question:
    """The question with its defaults, as `plan` completes it; raises `InputError`."""
    from shardwright.planner.question import Training, completed

    settings = point.settings
    model = _source(point.model).spec if isinstance(point.model, str) else point.model
    if "layers" in settings:
        model = with_layers(model, int(parse(settings["layers"], "count")))
    profile = _sized(point)
    for quantity in SCALED:
        if quantity in settings:
            profile = _scaled(profile, quantity, settings[quantity])
    training = Training(**{name: settings[name] for name in _TRAINING if name in settings})
    source = point.cluster if isinstance(point.cluster, str) else profile.devices.name
    return completed(model, profile, training=training, stack=settings.get("stack"), source=source)


def fixed_of(point: Point) -> str:
    """The choices that the point keeps, its own values of them last.

    Raises:
        InputError: a choice varies that is also fixed.
    """
    varied = {name: value for name, value in point.settings.items() if name in CHOICES}
    return ",".join(filter(None, [point.fix, *(f"{name}={text}" for name, text in varied.items())]))


def with_layers(model: ModelSpec, num_layers: int) -> ModelSpec:
    """The model with another number of layers: more or fewer of those that repeat most.

    Raises:
        InputError: fewer than its other layers leave, or more than any model has.
    """
    tower = model.decoder
    repeats = [(getattr(block, "repeat", 0), -place) for place, block in enumerate(tower.blocks)]
    most, place = max(repeats)
    repeat = most + num_layers - tower.num_layers
    if repeat < 1:
        raise InputError(
            f"{model.name} cannot have {num_layers} layers",
            why=f"{tower.num_layers - most} of its {tower.num_layers} differ from the rest",
            fix=f"use {tower.num_layers - most + 1} or more",
        )
    blocks = list(tower.blocks)
    blocks[-place] = blocks[-place].model_copy(update={"repeat": repeat})
    changed = tower.model_dump() | {"blocks": [block.model_dump() for block in blocks]}
    towers = [one.model_dump() for one in model.towers[:-1]] + [changed]
    return ModelSpec.from_value(
        model.model_dump() | {"towers": towers}, source=f"{model.name} with {num_layers} layers"
    )


@functools.lru_cache(maxsize=32)
def _source(text: str) -> ModelSource:
    from shardwright.specs.sources import read_model

    return read_model(text)


@functools.lru_cache(maxsize=256)
def _cluster(text: str, gpus: int | None, nodes: int | None) -> HardwareProfile:
    from shardwright.hardware_profiles.resolve import resolve_cluster

    return resolve_cluster(text, gpus=gpus, nodes=nodes)


def _sized(point: Point) -> HardwareProfile:
    from shardwright.hardware_profiles.resolve import resized

    counts = [
        None if text is None else int(parse(text, "count"))
        for text in (point.settings.get("gpus"), point.settings.get("nodes"))
    ]
    if isinstance(point.cluster, str):
        return _cluster(point.cluster, *counts)
    return resized(point.cluster, gpus=counts[0], nodes=counts[1])


def _scaled(profile: HardwareProfile, quantity: str, text: str) -> HardwareProfile:
    """The profile with a part, a multiple, or a stated amount of one quantity."""
    from shardwright.hardware_profiles.scaled import QUANTITIES, is_used, scaled

    known = next(one for one in QUANTITIES if one.removesuffix("_per_s") == quantity)
    if not is_used(profile.devices, known):
        return profile  # links that one device or one node lacks change nothing
    factor = factor_of(text)
    if factor is None:
        factor = parse(text, SCALED[quantity]) / _own(profile, quantity)
    return scaled(profile, known, factor)


def _own(profile: HardwareProfile, quantity: str) -> float:
    """How much of a quantity one device has by itself.

    Raises:
        InputError: groups of nodes differ in it, or dtypes do, so that an amount says too little.
    """
    found = {_amount(group, quantity) for group in profile.devices.groups}
    if quantity == "flops" or len(found) > 1:
        raise InputError(
            f"{quantity} cannot be set to one amount",
            why="it differs between dtypes" if quantity == "flops" else "node groups differ in it",
            fix=f"write a part of what is there, such as {quantity}=50%",
        )
    amount = found.pop()
    assert amount is not None, quantity  # `is_used` looked
    return amount


def _amount(group: NodeGroup, quantity: str) -> float | None:
    device = group.accelerator
    if quantity == "memory":
        return device.memory_bytes
    if quantity == "memory_bandwidth":
        return device.memory_bandwidth_bytes_per_s
    tier = group.intra_node if quantity == "intra_node_bandwidth" else group.inter_node
    return None if tier is None else tier.bandwidth_bytes_per_s


def _outcome(asked: Question, answer: PlanAnswer, notes: list[str]) -> Outcome:
    from shardwright.cost_models.money import rates_of, sources_in_words
    from shardwright.planner.layouts import layout_in_words

    cluster = asked.profile.devices
    found = answer.to_json_dict()
    sources = sources_in_words(cluster)
    return Outcome(
        "planned" if answer.feasible else "infeasible",
        reason=None if answer.feasible else "; ".join(answer.reasons),
        asked=_asked(asked),
        layout=found["layout"],
        layout_text=None if answer.plan is None else layout_in_words(answer.plan.layout),
        prediction=found["prediction"],
        certificate=found["certificate"],
        assumed=answer.assumed,
        rates=_rates_json(rates_of(cluster)),
        sources={name: sources[name] for name in ("price", "power")},
        notes=notes,
    )


def _rates_json(rates: Rates) -> dict[str, Any]:
    found = asdict(rates)
    return found | {"usd_per_s": None if rates.usd_per_s is None else list(rates.usd_per_s)}


def _asked(asked: Question) -> dict[str, Any]:
    model, training, cluster = asked.model, asked.training, asked.profile.devices
    return {
        "model": model.name,
        "num_parameters": model.num_parameters,
        "layers": model.decoder.num_layers,
        "cluster": asked.source,
        "cluster_in_words": cluster.in_words(),
        "gpus": cluster.num_devices,
        "nodes": sum(group.num_nodes for group in cluster.groups),
        "seq_len": training.seq_len,
        "global_batch": training.global_batch,
        "tokens_per_step": training.tokens_per_step,
        "precision": str(training.precision),
        "optimizer": training.optimizer.name,
        "trainable": training.trainable,
        "software": asked.software.framework,
    }
