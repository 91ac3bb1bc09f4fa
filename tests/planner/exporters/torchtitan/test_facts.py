"""Flavors name presets that exist."""

from __future__ import annotations

from shardwright.planner.exporters.torchtitan.facts import CP_METHODS, FLAVORS, SCHEDULES
from shardwright.specs.sources.presets import list_presets


def test_every_flavor_is_a_preset() -> None:
    assert set(FLAVORS.values()) <= set(list_presets())


def test_names_are_told_apart() -> None:
    assert len(set(SCHEDULES.values())) == len(SCHEDULES)
    assert len(set(CP_METHODS.values())) == len(CP_METHODS)
