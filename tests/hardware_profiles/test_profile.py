"""The profile's file format."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Parameter, Point
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"op": "matmul/forward@n=big"}, "op: ", id="shape-in-words"),
        pytest.param({"op": "matmul/forward@n=0,k=1"}, "op: ", id="shape-of-nothing"),
        pytest.param({"points": []}, "points: ", id="no-points"),
        pytest.param({"points": [[0, 1.0, 0.0, 1]]}, "points.0.0: ", id="no-size"),
        pytest.param({"points": [[1, 0.0, 0.0, 1]]}, "points.0.1: ", id="no-time"),
        pytest.param(
            {"op": "shared/matmul", "group_shape": [1, 1]}, "none for one alone", id="no-base"
        ),
    ],
)
def test_curves_that_cannot_be_read_are_refused(changes: dict[str, Any], message: str) -> None:
    value = profile().model_dump(mode="json")
    value["curves"][0] |= changes
    with pytest.raises(InputError, match=message):
        HardwareProfile.from_value(value)


@pytest.mark.parametrize("name", ["matmul_efficiency.bf16", "num_sm", "matmul_tile_m"])
def test_parameters_that_divide_are_not_zero(name: str) -> None:
    fact = {"name": name, "unit": "1", "kind": "user", "fitted_from": "a test"}
    assert Parameter.model_validate(fact | {"value": 0.5}).value == 0.5
    with pytest.raises(InputError, match=f"{name} = 0 is too small"):
        Parameter.from_value(fact | {"value": 0})
    assert Parameter.model_validate(fact | {"name": "launch_overhead_s", "value": 0}).value == 0
