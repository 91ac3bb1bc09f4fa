"""Operations bound by memory, under the names that the books give them."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.operation import (
    TimedOperation,
    time_operation,
)
from shardwright.hardware_profiles.measure.timing import Arena, Call
from shardwright.hardware_profiles.profile import Curve, Point
from shardwright.specs.training import DType

GENERIC = "elementwise"
"""The curve that prices, by its bytes, what has none of its own."""


def elementwise_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``elementwise/{name}`` by bytes for every operation of the runtime, and ``elementwise``."""
    sizes = bench.plan.elementwise_bytes
    share_s = budget_s / len(bench.plan.dtypes) / len(sizes)
    found: dict[tuple[str, DType], list[Point]] = {}
    for dtype in bench.plan.dtypes:
        known = set(found)
        for num_bytes in sizes:
            for key, point in _points(bench, dtype, num_bytes, share_s, known).items():
                found.setdefault(key, []).append(point)
    for (op, dtype), points in found.items():
        yield Curve(quantity="bytes", op=op, dtype=dtype, points=tuple(points))


def _points(
    bench: Bench, dtype: DType, num_bytes: int, budget_s: float, known: set[tuple[str, DType]]
) -> dict[tuple[str, DType], Point]:
    """Every operation at one size but those that are ``known`` already: what is booked in a wider
    dtype than that of its operands is measured once."""
    arena, hidden = bench.arena(dtype), bench.plan.hidden
    numel = max(hidden, num_bytes // arena.element_bytes)
    operations = [_stream(arena, dtype, numel)]
    operations += bench.runtime.elementwise_operations(arena, dtype, numel, hidden)
    timer = bench.timer(budget_s / len(operations) / 2)
    points: dict[str, Point] = {}
    kept: dict[tuple[str, DType], Point] = {}
    for operation in operations:
        op = GENERIC if operation.name == GENERIC else f"{GENERIC}/{operation.name}"
        if (op, operation.dtype) not in known:
            point = time_operation(timer, operation, points)
            points[operation.name] = point
            if operation.x > 0:
                kept[op, operation.dtype] = point
    return kept


def _stream(arena: Arena, dtype: DType, numel: int) -> TimedOperation:
    """Two tensors added into a third: the plainest operation."""

    def make_call() -> Call:
        a, b = arena.take(numel), arena.take(numel)
        return Call(lambda: a + b, warm=(a,))

    num_bytes = numel * arena.element_bytes
    return TimedOperation(GENERIC, dtype, 3 * num_bytes, make_call, num_bytes)


def launch_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``launch``: the least that any operation costs, on a tensor of one element."""
    for dtype in bench.plan.dtypes:
        one = bench.arena(dtype).take(1)
        timer = bench.timer(budget_s / len(bench.plan.dtypes))
        point = timer.point(1, lambda one=one: Call(one.neg), 1)  # type: ignore[misc]
        yield Curve(quantity="launches", op="launch", dtype=dtype, points=(point,))
