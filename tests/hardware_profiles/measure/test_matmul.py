"""Which matrix products are measured, and that each form is the product it is called."""

from __future__ import annotations

import pytest
import torch

from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.matmul import (
    FORMS,
    choose_shapes,
    extents_of,
    matmul_curves,
)
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.plan import MeasurePlan

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("budget_s", "extents"),
    [
        (1000.0, (32, 64, 128, 256, 512, 1024, 2048)),
        (12.0, (32, 128, 512, 2048)),
        (0.01, (32, 256, 2048)),
    ],
)
def test_the_grid_is_as_fine_as_there_is_time(budget_s: float, extents: tuple[int, ...]) -> None:
    shapes = choose_shapes(MeasurePlan(), most_flops=2e9, budget_s=budget_s)
    for axis in range(3):
        assert sorted({shape[axis] for shape in shapes}) == list(extents)


def test_no_product_is_larger_than_the_most() -> None:
    shapes = choose_shapes(MeasurePlan(), most_flops=1e8, budget_s=1000.0)
    assert (32, 1024, 1024) in shapes
    assert max(2 * tokens * out * inner for tokens, out, inner in shapes) <= 1e8
    assert choose_shapes(MeasurePlan(), most_flops=1.0, budget_s=1000.0) == [(32, 32, 32)]


@pytest.mark.parametrize(
    ("form", "expected"),
    [("forward", (4, 6, 8)), ("input_gradient", (4, 8, 6)), ("weight_gradient", (6, 8, 4))],
)
def test_a_form_is_the_product_of_its_extents(form: str, expected: tuple[int, int, int]) -> None:
    """What is timed for a layer of 4 tokens from 8 to 6 columns makes an [m, n] tensor."""
    assert extents_of(form, (4, 6, 8)) == expected
    bench = Bench(0, Party.local(1), CPU, MeasurePlan.quick())
    operations = {
        op.name: op for op in bench.runtime.linear_operations(bench.arena("fp32"), "fp32", 4, 6, 8)
    }
    result = operations[form].make_call().run()
    made = result[0] if isinstance(result, tuple) else result
    assert isinstance(made, torch.Tensor)
    assert made.shape[-2:] == expected[:2]
    assert operations[form].x == 2 * 4 * 6 * 8


def test_curves_cover_every_form_and_extent_and_ascend() -> None:
    plan = MeasurePlan.quick().model_copy(update={"largest_extent": 128, "arena_bytes": 2**20})
    curves = list(matmul_curves(Bench(0, Party.local(1), CPU, plan), budget_s=0.5))
    assert {curve.op.partition("@")[0] for curve in curves} == {f"matmul/{f}" for f in FORMS}
    for curve in curves:
        sizes = [point.x for point in curve.points]
        assert sizes == sorted(set(sizes)), curve.op
        assert all(point.median_s > 0 for point in curve.points)
