"""Which matrix products are measured, and that each form is the product it is called."""

from __future__ import annotations

import pytest
import torch

from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.matmul import FORMS, choose_grid, matmul_curves
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.timing import Arena

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("budget_s", "extents"),
    [
        (1000.0, (32, 64, 128, 256, 512, 1024, 2048)),
        (4.0, (32, 128, 512, 2048)),
        (0.01, (32, 256, 2048)),
    ],
)
def test_the_grid_is_as_fine_as_there_is_time(budget_s: float, extents: tuple[int, ...]) -> None:
    grid = choose_grid(MeasurePlan(), most_flops=2e9, budget_s=budget_s)
    assert sorted({n for n, _ in grid}) == list(extents)
    assert sorted({k for _, k in grid}) == list(extents)


def test_no_product_larger_than_the_most_but_the_first_of_each_curve() -> None:
    grid = choose_grid(MeasurePlan(), most_flops=1e8, budget_s=1000.0)
    assert grid[32, 32][-1] == 2048
    assert grid[1024, 1024] == (32,)
    for (n, k), rows in grid.items():
        assert rows[0] == 32
        assert all(2 * m * n * k <= 1e8 for m in rows[1:])


@pytest.mark.parametrize("form", FORMS)
def test_a_form_multiplies_m_by_k_with_k_by_n(form: str) -> None:
    call = FORMS[form](Arena(2**20, torch.float32, CPU), 4, 6, 8)
    result = call.run()
    products = list(result) if isinstance(result, tuple) else [result]
    assert len(products) == call.count
    for each in products:
        assert isinstance(each, torch.Tensor)
        assert each.shape == (4, 6)


def test_curves_cover_every_form_and_extent() -> None:
    plan = MeasurePlan.quick().model_copy(update={"largest_extent": 128, "arena_bytes": 2**20})
    curves = list(matmul_curves(Bench(0, 1, CPU, plan, -1), budget_s=0.5))
    forms = {curve.op.partition("@")[0] for curve in curves}
    assert forms == {f"matmul/{form}" for form in FORMS}
    for curve in curves:
        assert all(point.median_s > 0 for point in curve.points)
