"""``import shardwright`` is cheap, and its public names lead to what does the work."""

from __future__ import annotations

import pytest

import shardwright
from shardwright.hardware_profiles import measure
from shardwright.planner import api as planner_api


def test_public_names_are_the_functions_themselves() -> None:
    assert shardwright.plan is planner_api.plan
    assert shardwright.estimate is planner_api.estimate
    assert shardwright.profile is measure.profile


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(shardwright, name) is not None for name in shardwright.__all__)
    assert list(shardwright.__all__) == ["__version__", *sorted(shardwright.__all__[1:])]


def test_other_names_are_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        _ = shardwright.plam
