"""The profile's file format."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Point
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import InputError


def profile() -> HardwareProfile:
    curve = Curve(
        quantity="bytes", op="all_reduce", dtype="fp32", group_shape=(2, 1), concurrency=2,
        points=(Point(1024, 1 / 3, 0.01, 9), Point(2048, 0.5, 0.02, 9)),
    )  # fmt: skip
    return resolve_cluster("dgx-h100").model_copy(update={"curves": (curve,), "num_ranks": 2})


def test_a_profile_comes_back_byte_for_byte() -> None:
    text = profile().to_json()
    assert HardwareProfile.from_json(text) == profile()
    assert HardwareProfile.from_json(text).to_json() == text


def test_parameters_are_read_by_name() -> None:
    assert profile().parameter("launch_overhead_s") == 5e-6
    with pytest.raises(KeyError, match="dgx-h100 has no parameter absent"):
        profile().parameter("absent")


def test_another_version_is_refused() -> None:
    text = profile().to_json().replace("shardwright.profile/1", "shardwright.profile/2")
    with pytest.raises(InputError, match="version"):
        HardwareProfile.from_json(text)
