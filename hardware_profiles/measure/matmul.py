"""Matrix products by shape.

A layer multiplies in three forms, which differ in how their operands lie in memory, and a skinny
product can run at a tenth of a square one's rate; so each form gets a grid over m, n and k:

    forward           x[m, k] @ weight[n, k]^T    m = tokens
    input_gradient    dy[m, k] @ weight[k, n]     m = tokens
    weight_gradient   dy[k, m]^T @ x[k, n]        k = tokens
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product

from torch import Tensor

from shardwright.hardware_profiles.device import synchronize
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.operation import time_operation
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.profile import Curve, Point
from shardwright.specs.training import DType

FORMS = ("forward", "input_gradient", "weight_gradient")

Shape = tuple[int, int, int]
"""(tokens, columns out, columns in) of a linear layer."""


def matmul_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``matmul/{form}@n=..,k=..`` by FLOPs, for every dtype and form."""
    share_s = budget_s / len(bench.plan.dtypes)
    for dtype in bench.plan.dtypes:
        most_flops = bench.plan.longest_call_s * square_rate(bench, dtype)
        shapes = choose_shapes(bench.plan, most_flops, share_s)
        timer = bench.timer(share_s / len(shapes) / len(FORMS) / 2)
        found: dict[tuple[str, int, int], list[Point]] = defaultdict(list)
        for tokens, out, inner in shapes:
            points: dict[str, Point] = {}
            for operation in bench.runtime.linear_operations(
                bench.arena(dtype), dtype, tokens, out, inner
            ):
                points[operation.name] = time_operation(timer, operation, points)
            for form in FORMS:
                _, n, k = extents_of(form, (tokens, out, inner))
                found[form, n, k].append(points[form])
        for (form, n, k), row in found.items():
            yield Curve(
                quantity="flops", op=f"matmul/{form}@n={n},k={k}", dtype=dtype,
                points=tuple(sorted(row)),
            )  # fmt: skip


def extents_of(form: str, shape: Shape) -> tuple[int, int, int]:
    """(m, n, k) of a form's product."""
    tokens, out, inner = shape
    match form:
        case "forward":
            return tokens, out, inner
        case "input_gradient":
            return tokens, inner, out
        case _:
            return out, inner, tokens


def square_rate(bench: Bench, dtype: DType) -> float:
    """FLOP/s of a square product large enough to take some milliseconds."""
    extent, elapsed_s = bench.plan.smallest_extent, 0.0
    while elapsed_s < 2e-3 and 2 * extent <= bench.plan.largest_extent:
        extent *= 2
        a, b = (bench.arena(dtype).take(extent, extent) for _ in range(2))
        elapsed_s = min(_once(bench, a, b) for _ in range(3))
    return 2 * extent**3 / elapsed_s


def _once(bench: Bench, a: Tensor, b: Tensor) -> float:
    synchronize(bench.device)
    started = time.perf_counter()
    a @ b
    synchronize(bench.device)
    return time.perf_counter() - started


def choose_shapes(plan: MeasurePlan, most_flops: float, budget_s: float) -> list[Shape]:
    """The layers to measure: the finest grid of extents, by factors of 2, 4 or 8, that can be
    measured in ``budget_s``; else the coarsest.

    ``most_flops``: how much one call may compute, at ``plan.longest_call_s``; above it a product's
    rate changes no more.
    """
    grids = [_grid(plan, most_flops, factor_log2) for factor_log2 in (1, 2, 3)]
    calls = len(FORMS) * (plan.min_samples + 1)
    for shapes in grids:
        flops = sum(2 * math.prod(shape) for shape in shapes)
        if calls * flops / most_flops * plan.longest_call_s < budget_s / 2:
            return shapes
    return grids[-1]


def _grid(plan: MeasurePlan, most_flops: float, factor_log2: int) -> list[Shape]:
    steps = int(math.log2(plan.largest_extent / plan.smallest_extent)) // factor_log2
    extents = [plan.smallest_extent << factor_log2 * step for step in range(steps + 1)]
    shapes = list(product(extents, extents, extents))
    return [shape for shape in shapes if 2 * math.prod(shape) <= most_flops] or shapes[:1]
