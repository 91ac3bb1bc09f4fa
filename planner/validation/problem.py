"""A row as a job that can be priced: model, training, cluster and software.

What a row does not state is, in this order, what its stack is known to do (``defaults``), what is
customary, or left open for `choose`. Every value that was assumed is kept in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.validation.clusters import profile_of
from shardwright.planner.validation.rows import Row
from shardwright.planner.validation.shapes import (
    Assumptions,
    Configs,
    model_of,
    with_capacity,
    without_prediction,
)
from shardwright.specs import (
    InputError,
    ModelSpec,
    OptimizerSpec,
    Precision,
    ShardwrightError,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs._base import describe_misfits

RunDefaults = Callable[[Row], Mapping[str, Any]]
"""What a row's software does where the row says nothing: values by name of a field of
`RowParallel`, `Layout`, `SoftwareSpec` or `TrainingSpec` (``optimizer``: its name). A list leaves a
choice of several. ``framework`` is the row's stack where it is not given."""

Clusters = Callable[[Row, Assumptions], HardwareProfile]
"""The cluster of a row; raises `InputError` where there is none."""

UNKNOWN_STACK = "unknown"
"""The framework of a row that does not name its stack."""
DEFAULT_ADAPTER_RANK = 16
"""Of LoRA, where it is said that adapters were trained, but not how large."""
_LISTS = ("lacks", "overlap_tensor_parallel_except")
"""Fields of software that are lists themselves, not a choice of several."""
_FORGOTTEN_BATCHES = 2
"""Micro-batches per pipeline rank where memory alone is asked for and the batch is not stated: the
pipeline is then full, and no further batch adds memory."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row as a job that can be priced."""

    row: Row
    model: ModelSpec
    training: TrainingSpec
    profile: HardwareProfile
    software: SoftwareSpec
    defaults: Mapping[str, Any]
    """What the row's stack does where the row says nothing."""
    assumed: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        return self.profile.devices.num_devices

    @property
    def accelerator(self) -> str:
        return self.profile.devices.accelerator.name


class CaseMaker:
    """Makes cases of rows; rows with equal parts share them, so that prices can be kept."""

    def __init__(
        self,
        *,
        defaults: RunDefaults,
        configs: Configs | None = None,
        clusters: Clusters = profile_of,
    ) -> None:
        self._defaults, self._configs = defaults, configs or {}
        self._clusters = clusters
        self._models: dict[str, tuple[ModelSpec, tuple[str, ...]]] = {}

    def case_of(self, row: Row) -> Case | str:
        """The job of a row, or why there is none."""
        reason = row.why_not_scored
        if reason is not None:
            return reason
        assumed = Assumptions()
        try:
            profile = self._clusters(row, assumed)
            model = self._model(row, assumed)
            defaults = self._defaults(row)
            training = _training(row, defaults, assumed)
            software = _software(row, defaults)
        except InputError as error:
            return reason_of(error)
        except ValidationError as error:
            return f"the row makes no job: {describe_misfits(error, most=2)}"
        return Case(row, model, training, profile, software, defaults, tuple(assumed.notes))

    def _model(self, row: Row, assumed: Assumptions) -> ModelSpec:
        plain, capacity = "w/o mtp" in remarks_of(row), _capacity(row)
        key = f"{plain} {capacity} {row.model.model_dump_json()}"
        if key not in self._models:
            own = Assumptions()
            model = model_of(row.model, configs=self._configs, assumed=own)
            model = without_prediction(model) if plain else model
            model = model if capacity is None else with_capacity(model, capacity)
            self._models[key] = (model, tuple(own.notes))
        model, notes = self._models[key]
        assumed.notes.extend(notes)
        return model


def reason_of(error: ShardwrightError) -> str:
    """What is wrong and why, without what a user could do about it."""
    return f"{error.problem} because {error.why}" if error.why else error.problem


def first_of(value: Any) -> Any:
    """A default, or the first of several."""
    return value[0] if isinstance(value, (list, tuple)) and value else value


def remarks_of(row: Row) -> str:
    """What a row says in words on how it was run, in lower case; its notes speak of many rows."""
    said = (row.id, row.parallel.other, row.model.other, row.model.name)
    return " ".join(text for text in said if text).lower()


def _capacity(row: Row) -> float | None:
    """Tokens that an expert takes over its even share, where more are dropped."""
    found = re.search(r"capacity factor (\d+(?:\.\d+)?)", remarks_of(row))
    if found:
        return float(found[1])
    return 1.0 if re.search(r"token.?drop", remarks_of(row)) else None


def _training(row: Row, defaults: Mapping[str, Any], assumed: Assumptions) -> TrainingSpec:
    if row.model.seq_len is None:
        raise InputError("the sequence length is not stated")
    return TrainingSpec(
        global_batch=_global_batch(row, assumed),
        seq_len=row.model.seq_len,
        precision=_precision(row, defaults, assumed),
        optimizer=OptimizerSpec(name=_optimizer(row, defaults)),
        gradient_dtype=first_of(defaults.get("gradient_dtype")),
        moment_dtype=first_of(defaults.get("moment_dtype")),
        trainable=_trainable(row, assumed),
    )


def _global_batch(row: Row, assumed: Assumptions) -> int:
    """As stated, else what the layout multiplies to; enough to fill the pipeline for memory."""
    parallel = row.parallel
    if parallel.global_batch is not None:
        return parallel.global_batch
    replicas = parallel.dp or _replicas(row)
    if parallel.num_microbatches is not None and replicas is not None:
        return assumed.take(
            None, parallel.num_microbatches * replicas * (parallel.micro_batch or 1), "global_batch"
        )
    if row.step_time_s is not None or replicas is None:
        raise InputError("the global batch is not stated")
    full = (parallel.pp or 1) * _FORGOTTEN_BATCHES
    return assumed.take(None, replicas * (parallel.micro_batch or 1) * full, "global_batch")


def _replicas(row: Row) -> int | None:
    parallel, gpus = row.parallel, row.num_gpus
    if gpus is None or parallel.tp is None or parallel.pp is None:
        return None
    return max(1, gpus // (parallel.tp * parallel.pp * (parallel.cp or 1)))


def _precision(row: Row, defaults: Mapping[str, Any], assumed: Assumptions) -> Precision:
    stated = row.precision
    if stated is None:
        usual = str(first_of(defaults.get("precision")) or "bf16")
        assumed.notes.append(f"precision = {usual}")
        stated = usual
    try:
        return Precision(stated.strip().lower())
    except ValueError:
        raise InputError(f"the precision {stated!r} is not known") from None


def _optimizer(row: Row, defaults: Mapping[str, Any]) -> Any:
    if "muon" in remarks_of(row):
        return "muon"
    return first_of(defaults.get("optimizer")) or "adamw"


def _trainable(row: Row, assumed: Assumptions) -> str:
    remarks = remarks_of(row)
    found = re.search(r"\b(q?lora)\b", remarks)
    if found is None:
        return "full"
    rank = re.search(r"(?:rank|\br) ?[= ] ?([1-9]\d*)", remarks)
    size = assumed.take(int(rank[1]) if rank else None, DEFAULT_ADAPTER_RANK, "adapter rank")
    return f"{found[1]}:{size}"


def _software(row: Row, defaults: Mapping[str, Any]) -> SoftwareSpec:
    given = {name: defaults[name] for name in SoftwareSpec.model_fields if name in defaults}
    known = {name: value if name in _LISTS else first_of(value) for name, value in given.items()}
    if "expandable_segments" in remarks_of(row):
        known["allocator"] = "expandable_segments"
    if re.search(r"async(?:hronous)? ?tp", remarks_of(row)):
        known["overlap_tensor_parallel"] = True
    if "cuda graph" in remarks_of(row):
        known["cuda_graphs"] = True
    if row.parallel.compile is not None:
        known["compile"] = row.parallel.compile
    known.setdefault("framework", row.stack or UNKNOWN_STACK)
    return SoftwareSpec.model_validate(known)
