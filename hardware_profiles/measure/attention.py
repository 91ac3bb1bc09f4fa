"""The attention core, by direction, head dim and sequence length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.operation import time_operation
from shardwright.hardware_profiles.profile import Curve, Point

HEAD_COUNTS = (1, 4, 16)
"""Heads times sequences of a micro-batch; the cost is in proportion beyond."""


def attention_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``attention/{forward,backward}@head_dim=..,seq=..`` by FLOPs, causal, by number of heads."""
    plan = bench.plan
    shapes = list(product(plan.dtypes, plan.head_dims, plan.sequences))
    timer = bench.timer(budget_s / len(shapes) / len(HEAD_COUNTS) / 4)
    for dtype, head_dim, seq_len in shapes:
        found: dict[str, list[Point]] = defaultdict(list)
        for heads in HEAD_COUNTS:
            points: dict[str, Point] = {}
            for operation in bench.runtime.attention_operations(
                bench.arena(dtype), dtype, heads, seq_len, head_dim
            ):
                points[operation.name] = time_operation(timer, operation, points)
                found[operation.name].append(points[operation.name])
            if max(point.median_s for point in points.values()) > plan.longest_call_s:
                break
        for direction in ("forward", "backward"):
            yield Curve(
                quantity="flops", op=f"attention/{direction}@head_dim={head_dim},seq={seq_len}",
                dtype=dtype, points=tuple(found[direction]),
            )  # fmt: skip
