"""Interpolation of measured points."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost_models.curves import CurveGrid, SizeCurve, monotone, shape_class
from shardwright.hardware_profiles.profile import Curve, Point

seconds = st.floats(1e-7, 10.0)
samples = st.lists(st.tuples(st.integers(1, 10**9), seconds), min_size=1, max_size=12)


def points(*pairs: tuple[float, float]) -> list[Point]:
    return [Point(x, median_s, 0.0, 5) for x, median_s in pairs]


def test_measured_points_are_returned_as_measured() -> None:
    measured = points((10, 1e-5), (100, 2e-5), (1000, 9e-5))
    curve = SizeCurve.of(measured)
    assert [curve.seconds(p.x) for p in measured] == pytest.approx([1e-5, 2e-5, 9e-5], rel=1e-12)


def test_between_points_along_a_power_law() -> None:
    curve = SizeCurve.of(points((10, 1e-5), (1000, 1e-3)))
    assert curve.seconds(100) == pytest.approx(1e-4)


def test_beyond_the_last_point_at_its_rate_and_below_the_first_at_its_time() -> None:
    curve = SizeCurve.of(points((10, 3e-5), (1000, 1e-3)))
    assert curve.seconds(5000) == pytest.approx(5e-3)
    assert curve.seconds(1) == pytest.approx(3e-5)
    assert curve.seconds(0) == pytest.approx(3e-5)


def test_a_larger_size_that_was_measured_faster_is_averaged_with_its_neighbour() -> None:
    curve = SizeCurve.of(points((10, 4e-5), (20, 1e-5), (40, 8e-5)))
    assert curve.seconds(10) == pytest.approx(2e-5)  # geometric mean of 4 and 1
    assert curve.seconds(20) == pytest.approx(2e-5)
    assert curve.seconds(40) == pytest.approx(8e-5)


@given(samples, st.floats(0, 2e9), st.floats(0, 2e9))
def test_no_size_costs_less_than_a_smaller_one(
    pairs: list[tuple[int, float]], one: float, other: float
) -> None:
    curve = SizeCurve.of(points(*pairs))
    small, large = sorted((one, other))
    assert curve.seconds(small) <= curve.seconds(large) * (1 + 1e-9)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20))
def test_monotone_regression_keeps_the_mean_and_sorted_input(values: list[float]) -> None:
    pooled = monotone(values)
    assert all(a <= b for a, b in itertools.pairwise(pooled))
    assert math.fsum(pooled) == pytest.approx(math.fsum(values), abs=1e-6)
    assert monotone(sorted(values)) == sorted(values)


def grid_of(rate: float, overhead_s: float = 0.0, missing: tuple[int, int] = (0, 0)) -> CurveGrid:
    """A device that multiplies at ``rate``, measured at powers of four."""
    extents = (16, 64, 256)
    curves = {
        (n, k): SizeCurve.of(
            points(*((2 * m * n * k, overhead_s + 2 * m * n * k / rate) for m in extents))
        )
        for n in extents
        for k in extents
        if (n, k) != missing
    }
    return CurveGrid.of(curves, lambda n, k: 2 * n * k)


@given(st.integers(16, 256), st.integers(16, 2048), st.integers(16, 2048))
def test_a_constant_rate_is_recovered_everywhere(m: int, n: int, k: int) -> None:
    assert grid_of(1e9).seconds(n, k, m) == pytest.approx(2 * m * n * k / 1e9, rel=1e-6)


@given(st.integers(1, 256), st.integers(1, 256), st.integers(1, 256))
def test_a_grid_stays_between_its_neighbours(m: int, n: int, k: int) -> None:
    grid = grid_of(1e9, overhead_s=1e-5)
    assert grid.seconds(16, 16, 16) * (1 - 1e-9) <= grid.seconds(n, k, m)
    assert grid.seconds(n, k, m) <= grid.seconds(n * 2, k * 2, m * 2) * (1 + 1e-9)


def test_a_missing_grid_point_is_scaled_from_the_nearest() -> None:
    whole, holed = grid_of(1e9), grid_of(1e9, missing=(64, 64))
    assert holed.seconds(64, 64, 64) == pytest.approx(whole.seconds(64, 64, 64))


def test_shape_class_reads_extents() -> None:
    curve = Curve(
        quantity="flops",
        op="matmul/forward@n=8,k=4",
        dtype="fp32",
        points=(Point(1.0, 1.0, 0.0, 1),),
    )
    assert shape_class(curve) == ("matmul/forward", {"n": 8, "k": 4})
    plain = Curve(
        quantity="bytes", op="all_reduce", dtype="fp32", points=(Point(1.0, 1.0, 0.0, 1),)
    )
    assert shape_class(plain) == ("all_reduce", {})
