"""Numbers of files are bounded by what exists."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from shardwright.specs import ranges


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        pytest.param(ranges.Degree, 1, 2**20, id="degree"),
        pytest.param(ranges.Rank, 0, 2**20 - 1, id="rank"),
        pytest.param(ranges.LayerCount, 1, 512, id="layers"),
        pytest.param(ranges.LayerNumber, 0, 512, id="layer"),
        pytest.param(ranges.HeadCount, 1, 100_000, id="heads"),
        pytest.param(ranges.Extent, 1, 2**31, id="extent"),
        pytest.param(ranges.SequenceCount, 1, 2**20, id="sequences"),
        pytest.param(ranges.Bytes, 1, 2**60, id="bytes"),
        pytest.param(ranges.HeldBytes, 0, 10**60, id="held-bytes"),
        pytest.param(ranges.Seed, 0, 2**63 - 1, id="seed"),
    ],
)
def test_whole_numbers_have_a_least_and_a_most(kind: Any, least: int, most: int) -> None:
    adapter = TypeAdapter(kind)
    assert [adapter.validate_python(value) for value in (least, most)] == [least, most]
    for value in (least - 1, most + 1, 10**400, 1.5, "many", None):
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        pytest.param(ranges.Rate, 1.0, 1e24, id="rate"),
        pytest.param(ranges.Seconds, 0.0, 1e9, id="seconds"),
        pytest.param(ranges.PositiveSeconds, 1e-12, 1e9, id="positive-seconds"),
    ],
)
def test_measures_have_a_least_and_a_most(kind: Any, least: float, most: float) -> None:
    adapter = TypeAdapter(kind)
    assert [adapter.validate_python(value) for value in (least, most)] == [least, most]
    for value in (least - 1, most * 1.001, math.nan, math.inf, -math.inf):
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


def test_the_largest_model_on_the_slowest_device_takes_finite_time() -> None:
    tokens = ranges.MOST_SEQUENCES * ranges.MOST_ELEMENTS
    flops = 6 * tokens * ranges.MOST_LAYERS * ranges.MOST_ELEMENTS**2
    assert math.isfinite(flops / 1.0 * ranges.MOST_DEVICES)
