"""Exporting a job and looking at what came out."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.exporters.exported import Exported
from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.planner.exporters.megatron.export import to_megatron
from shardwright.specs import InputError
from tests.planner.exporters.jobs import job_of


def exported(kind: str = "llama", version: str | None = None, **given: Any) -> Exported:
    return to_megatron(job_of(kind, **given), version)


def arguments(kind: str = "llama", version: str | None = None, **given: Any) -> Arguments:
    return Arguments(exported(kind, version, **given).arguments)


def refusal(kind: str = "llama", version: str | None = None, **given: Any) -> str:
    """The words with which an export is refused."""
    with pytest.raises(InputError) as caught:
        exported(kind, version, **given)
    return str(caught.value)
