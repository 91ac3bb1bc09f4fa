"""Matrix products by shape.

A layer multiplies in three forms, which differ in how their operands lie in memory, and a skinny
product can run at a tenth of a square one's rate; so each form gets a grid over m, n and k.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shardwright.hardware_profiles.device import synchronize
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.timing import Arena, Call
from shardwright.hardware_profiles.profile import Curve
from shardwright.specs.training import DType

Grid = dict[tuple[int, int], tuple[int, ...]]
"""The rows m by (n, k)."""


class _Product(torch.autograd.Function):
    """``x @ weight^T`` as layers perform it: a node of the graph in Python, its input gradient in
    backward. (The weight gradient, in the same node, is measured by itself.)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(x, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _, weight = ctx.saved_tensors
        return torch.mm(gradient, weight), None


def _product(x: Tensor, weight: Tensor) -> Tensor:
    y: Tensor = _Product.apply(x, weight)  # type: ignore[no-untyped-call]
    return y


def _forward(arena: Arena, m: int, n: int, k: int) -> Call:
    """``x[m, k] @ weight[n, k]^T``."""
    x, weight = arena.take(m, k).requires_grad_(), arena.take(n, k)
    return Call(lambda: _product(x, weight), warm=(x.detach(),))


def _input_gradient(arena: Arena, m: int, n: int, k: int) -> Call:
    """``dy[m, k] @ weight[k, n]``, as nodes of one graph where the products are small."""
    count = max(1, min(NODES, NODES_FLOPS // (2 * m * n * k)))
    x = [arena.take(m, n).requires_grad_() for _ in range(count)]
    y = [_product(each, arena.take(k, n)) for each in x]
    dy = [arena.take(m, k) for _ in range(count)]
    return Call(lambda: torch.autograd.grad(y, x, dy), warm=(dy[0],), count=count)


def _weight_gradient(arena: Arena, m: int, n: int, k: int) -> Call:
    """``dy[k, m]^T @ x[k, n]``: k counts tokens."""
    dy, x = arena.take(k, m), arena.take(k, n)
    return Call(lambda: torch.mm(dy.t(), x), warm=(dy,))


NODES = 8
"""Backward starts up once per micro-batch: many nodes in one call, so that this hardly counts."""
NODES_FLOPS = 2**27
"""Not beyond this much work, beside which it hardly counts anyway."""

FORMS: dict[str, Callable[[Arena, int, int, int], Call]] = {
    "forward": _forward,
    "input_gradient": _input_gradient,
    "weight_gradient": _weight_gradient,
}


def matmul_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``matmul/{form}@n=..,k=..`` by FLOPs, for every dtype and form."""
    share_s = budget_s / len(bench.plan.dtypes) / len(FORMS)
    for dtype in bench.plan.dtypes:
        most_flops = bench.plan.longest_call_s * square_rate(bench, dtype)
        grid = choose_grid(bench.plan, most_flops, share_s)
        point_s = share_s / sum(len(rows) for rows in grid.values()) / 2
        for form in FORMS:
            yield from _form_curves(bench, dtype, form, grid, point_s)


def _form_curves(
    bench: Bench, dtype: DType, form: str, grid: Grid, point_s: float
) -> Iterator[Curve]:
    arena, timer = bench.arena(dtype), bench.timer(point_s)
    for (n, k), rows in grid.items():
        points = []
        for m in rows:
            make_call = partial(FORMS[form], arena, m, n, k)
            points.append(timer.point(2 * m * n * k, make_call, m * n * arena.element_bytes))
        op = f"matmul/{form}@n={n},k={k}"
        yield Curve(quantity="flops", op=op, dtype=dtype, points=tuple(points))


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


def choose_grid(plan: MeasurePlan, most_flops: float, budget_s: float) -> Grid:
    """The rows m to measure for each (n, k): the finest grid, by factors of 2, 4 or 8, that can be
    measured in ``budget_s``.

    ``most_flops``: how much one call may compute, at ``plan.longest_call_s``; above it a product's
    rate changes no more. The coarsest grid is taken where none is fast enough.
    """
    grids = [_grid(plan, most_flops, factor_log2) for factor_log2 in (1, 2, 3)]
    calls = plan.min_samples + 1
    for grid in grids:
        flops = sum(2 * m * n * k for (n, k), rows in grid.items() for m in rows)
        if calls * flops / most_flops * plan.longest_call_s < budget_s / 2:
            return grid
    return grids[-1]


def _grid(plan: MeasurePlan, most_flops: float, factor_log2: int) -> Grid:
    steps = int(math.log2(plan.largest_extent / plan.smallest_extent)) // factor_log2
    extents = [plan.smallest_extent << factor_log2 * step for step in range(steps + 1)]
    return {
        (n, k): tuple(m for m in extents if m == extents[0] or 2 * m * n * k <= most_flops)
        for n, k in product(extents, extents)
    }
