"""Targets by name."""

from __future__ import annotations

import pytest

from shardwright.planner.exporters.api import EXPORTERS, export_job
from shardwright.specs import InputError
from tests.planner.exporters.jobs import job_of


def test_other_names_and_the_versions_that_they_imply() -> None:
    assert export_job(job_of(dp=8), "Megatron").version == "main"
    assert export_job(job_of(dp=8), "mt-megatronlm").version == "core_r0.9.0"


def test_an_unknown_target_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InputError) as caught:
        export_job(job_of(dp=8), "abacus")
    assert caught.value.fix is not None
    assert all(name in caught.value.fix for name in EXPORTERS)
