"""`Plan`: one versioned, diffable file with all that it takes to run, re-price and explain."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from shardwright.specs._base import Spec
from shardwright.specs.cluster import ClusterSpec
from shardwright.specs.errors import InputError
from shardwright.specs.layout import Layout
from shardwright.specs.model import ModelSpec
from shardwright.specs.prediction import Baseline, Candidate, Certificate, Prediction
from shardwright.specs.schedule import Schedule
from shardwright.specs.software import SoftwareSpec
from shardwright.specs.training import TrainingSpec

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariableValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]

PLAN_SCHEMA: Final = "shardwright.plan/1"


class PlanProvenance(Spec):
    """Who made the plan, from what, and the hashes that let a reader check it."""

    shardwright_version: str
    created_at: str
    """UTC, ISO 8601."""
    command: str | None = None
    model_hash: str
    cluster_hash: str
    profile_hash: str | None = None
    """Of the hardware profile that priced it."""
    profile_source: str
    """Catalogue slug or file name."""


class Plan(Spec):
    """The specs, the layout with its schedule, the prediction, and how it was found."""

    schema_version: Literal["shardwright.plan/1"] = PLAN_SCHEMA
    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    software: SoftwareSpec
    layout: Layout
    schedule: Schedule | None
    """Null when pp = 1: forward and backward of each micro-batch in turn. Null too where sets of
    replicas differ: each has 1f1b of its own length."""
    environment: dict[VariableName, VariableValue]
    """Variables that must be set before any process starts."""
    prediction: Prediction
    certificate: Certificate
    ties: tuple[Candidate, ...] = ()
    """Layouts whose predictions the model cannot tell apart from the best; a trial can."""
    alternatives: tuple[Candidate, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    """Simpler uses of a cluster of several node groups."""
    assumed: dict[str, str] = Field(default_factory=dict)
    """Defaults that the user did not state, with their values."""
    asked: dict[str, str] = Field(default_factory=dict)
    """What the user ruled out or wanted best, as it is typed: fix, forbid, bound, objective, ..."""
    provenance: PlanProvenance

    @model_validator(mode="after")
    def _parts_belong_together(self) -> Plan:
        layout, schedule = self.layout, self.schedule
        if len(self.prediction.memory) != layout.num_pipeline_ranks:
            raise ValueError(
                f"the prediction is of {len(self.prediction.memory)} pipeline ranks, but the layout"
                f" has {layout.num_pipeline_ranks}"
            )
        if schedule is not None and len(schedule.ranks) != layout.pp:
            raise ValueError(
                f"the schedule is for {len(schedule.ranks)} pipeline ranks, but the layout has"
                f" pp = {layout.pp}"
            )
        return self

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a plan file; raises `InputError` with one clear line for any unusable file."""
        return cls.from_json(read_text(path, what="plan"), source=str(path))

    def save(self, path: Path) -> None:
        """Write the canonical text, complete or not at all."""
        write_text(path, self.to_json())


def read_text(path: Path, *, what: str) -> str:
    """The text of a user's file; raises `InputError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no {what} file {path}", fix="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(
            f"cannot read the {what} file {path}: {reason}",
            fix="check the path, and that the file is whole and yours to read",
        ) from None


def check_folder(folder: Path) -> None:
    """Make sure, before any work is done, that files can be written to a folder; makes nothing.

    Raises:
        InputError: something on the way to it is no folder, or may not be written to.
    """
    above = (folder.absolute(), *folder.absolute().parents)
    nearest = next(path for path in above if os.path.lexists(path))
    fix = "choose another folder"
    if not nearest.is_dir():
        raise InputError(f"cannot write to {folder}: {nearest} is no folder", fix=fix)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to {folder}: {nearest} is not yours to write to", fix=fix)


def write_text(path: Path, text: str) -> None:
    """Write through a temporary neighbour and rename, so that no reader sees half a file."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise InputError(
            f"cannot write {path}: {error.strerror}", fix="free space or choose another path"
        ) from None
