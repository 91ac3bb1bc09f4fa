"""Generations by name."""

from __future__ import annotations

import pytest

from shardwright.planner.exporters.megatron.versions import VERSIONS, version_of
from shardwright.specs import InputError


def test_names_and_other_names() -> None:
    assert version_of(None).name == "main"
    assert version_of("0.9.0") is VERSIONS["core_r0.9.0"]
    assert version_of("Core_v0.15.0").name == "core_v0.15.0"


def test_an_unknown_version_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match=r"core_r0\.9\.0"):
        version_of("1.0")


def test_older_ones_have_less() -> None:
    old = VERSIONS["core_r0.9.0"]
    assert not old.rules.has_fsdp
    assert not old.rules.places_layers_freely
    assert not VERSIONS["core_v0.15.0"].rules.repeats_kv_heads
