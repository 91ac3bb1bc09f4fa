"""Curves of operations bound by memory, and of a launch, from operations of known names."""

from __future__ import annotations

import torch

from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.elementwise import elementwise_curves, launch_curves
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.profile import Curve
from shardwright.specs.training import DType
from tests.hardware_profiles.measure.stub_operations import tiny_plan

CPU = torch.device("cpu")


def measure(**changes: object) -> dict[tuple[str, DType], Curve]:
    bench = Bench(0, Party.local(1), CPU, tiny_plan(**changes))
    curves = list(elementwise_curves(bench, budget_s=0.01))
    found = {(curve.op, curve.dtype): curve for curve in curves}
    assert len(found) == len(curves), "a curve came twice"
    assert all(curve.quantity == "bytes" for curve in curves)
    return found


def sizes(curve: Curve) -> list[float]:
    return [point.x for point in curve.points]


def test_operations_have_curves_under_their_names_and_parts_have_none() -> None:
    curves = measure()
    assert {op for op, _ in curves} == {"elementwise", "elementwise/negate", "elementwise/wide"}


def test_points_are_the_bytes_read_and_written() -> None:
    curves = measure()
    assert sizes(curves["elementwise", "fp32"]) == [3 * 2**10, 3 * 2**12]
    assert sizes(curves["elementwise/negate", "fp32"]) == [2 * 2**10, 2 * 2**12]
    assert all(point.median_s > 0 for curve in curves.values() for point in curve.points)


def test_what_is_booked_in_a_wider_dtype_is_measured_once() -> None:
    """Of both dtypes ``wide`` is booked in fp32: its curve has one point for each size."""
    curves = measure(dtypes=("fp32", "bf16"))
    assert ("elementwise/negate", "bf16") in curves
    assert ("elementwise/wide", "bf16") not in curves
    assert sizes(curves["elementwise/wide", "fp32"]) == [2 * 2**10, 2 * 2**12]


def test_no_tensor_is_shorter_than_a_row() -> None:
    assert sizes(measure(elementwise_bytes=(4,), hidden=64)["elementwise", "fp32"]) == [3 * 64 * 4]


def test_a_launch_is_measured_in_each_dtype_and_costs_less_than_much_work() -> None:
    bench = Bench(
        0, Party.local(1), CPU, tiny_plan(dtypes=("fp32", "bf16"), elementwise_bytes=(2**23,))
    )
    launches = list(launch_curves(bench, budget_s=0.01))
    assert [(curve.quantity, curve.dtype) for curve in launches] == [
        ("launches", "fp32"),
        ("launches", "bf16"),
    ]
    large = next(elementwise_curves(bench, budget_s=0.01)).points[0].median_s
    for curve in launches:
        (point,) = curve.points
        assert point.x == 1
        assert 0 < point.median_s < large
