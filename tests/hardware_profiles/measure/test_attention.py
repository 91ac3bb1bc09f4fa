"""The attention core's curves, from operations of known length."""

from __future__ import annotations

import torch

from shardwright.cost_models.curves import shape_class
from shardwright.hardware_profiles.measure.attention import HEAD_COUNTS, attention_curves
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.profile import Curve
from shardwright.specs.training import DType
from tests.hardware_profiles.measure.stub_operations import HEAD_S, tiny_plan

Key = tuple[str, DType, int, int]


def measure(**changes: object) -> dict[Key, Curve]:
    bench = Bench(0, Party.local(1), torch.device("cpu"), tiny_plan(**changes))
    curves = {}
    for curve in attention_curves(bench, budget_s=0.01):
        op, extents = shape_class(curve)
        assert curve.quantity == "flops"
        curves[op, curve.dtype, extents["head_dim"], extents["seq"]] = curve
    return curves


def test_every_direction_dtype_head_dim_and_length_has_a_curve() -> None:
    curves = measure(dtypes=("fp32", "bf16"), head_dims=(8, 16))
    assert set(curves) == {
        (f"attention/{direction}", dtype, head_dim, seq_len)
        for direction in ("forward", "backward")
        for dtype in ("fp32", "bf16")
        for head_dim in (8, 16)
        for seq_len in (16, 32)
    }


def test_points_are_the_flops_and_seconds_of_growing_numbers_of_heads() -> None:
    curve = measure(sequences=(32,), longest_call_s=1.0)["attention/forward", "fp32", 8, 32]
    assert [point.x for point in curve.points] == [heads * 32**2 * 8 for heads in HEAD_COUNTS]
    for heads, point in zip(HEAD_COUNTS, curve.points, strict=True):
        assert point.median_s >= heads * HEAD_S


def test_once_a_call_takes_too_long_no_more_heads_are_measured() -> None:
    """The slower direction counts: backward of 4 heads is the first above the limit."""
    curves = measure(sequences=(16,), longest_call_s=7.5 * HEAD_S)
    assert [len(curve.points) for curve in curves.values()] == [2, 2]
