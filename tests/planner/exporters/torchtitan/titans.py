"""Exporting to torchtitan and reading its TOML."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from shardwright.planner.exporters.exported import Exported
from shardwright.planner.exporters.torchtitan.export import to_torchtitan
from shardwright.specs import InputError
from tests.planner.exporters.jobs import job_of


def exported(kind: str = "llama", version: str | None = None, **given: Any) -> Exported:
    return to_torchtitan(job_of(kind, **given), version)


def config(kind: str = "llama", version: str | None = None, **given: Any) -> dict[str, Any]:
    return tomllib.loads(exported(kind, version, **given).files["train.toml"])


def refusal(kind: str = "llama", version: str | None = None, **given: Any) -> str:
    with pytest.raises(InputError) as caught:
        exported(kind, version, **given)
    return str(caught.value)
