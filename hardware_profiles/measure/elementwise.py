"""Operations bound by memory, under the names that the books give them.

Each is called as the runtime's layers call it, through autograd where they do, so that the host's
work per call is in the figures: for small tensors it is most of them. ``num_bytes`` counts as in
the books: what is read plus what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.timing import Arena, Call
from shardwright.hardware_profiles.profile import Curve
from shardwright.specs.training import DType


@dataclass(frozen=True, slots=True)
class Case:
    """An operation by name."""

    op: str
    """``elementwise/{name}``; ``elementwise`` alone prices what has no curve of its own."""
    make: Callable[[Arena, int, int], Call]
    """From an arena, rows and hidden size."""
    tensors: float
    """Bytes read and written, over those of one [rows, hidden] tensor."""


def _add(arena: Arena, rows: int, hidden: int) -> Call:
    a, b = arena.take(rows, hidden), arena.take(rows, hidden)
    return Call(lambda: a + b, warm=(a,))


CASES = (Case("elementwise", _add, 3),)


def elementwise_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``elementwise/{name}`` by bytes, for every dtype."""
    plan = bench.plan
    point_s = budget_s / len(CASES) / len(plan.dtypes) / len(plan.elementwise_bytes) / 2
    for case in CASES:
        for dtype in plan.dtypes:
            yield _curve(bench, case, dtype, point_s)


def _curve(bench: Bench, case: Case, dtype: DType, point_s: float) -> Curve:
    arena, timer, hidden = bench.arena(dtype), bench.timer(point_s), bench.plan.hidden
    points = []
    for num_bytes in bench.plan.elementwise_bytes:
        rows = num_bytes // arena.element_bytes // hidden
        points.append(
            timer.point(
                case.tensors * num_bytes,
                lambda rows=rows: case.make(arena, rows, hidden),  # type: ignore[misc]
                num_bytes,
            )
        )
    return Curve(quantity="bytes", op=case.op, dtype=dtype, points=tuple(points))


def launch_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``launch``: the least that any operation costs, on a tensor of one element."""
    for dtype in bench.plan.dtypes:
        one = bench.arena(dtype).take(1)
        timer = bench.timer(budget_s / len(bench.plan.dtypes))
        point = timer.point(1, lambda one=one: Call(one.neg), 1)  # type: ignore[misc]
        yield Curve(quantity="launches", op="launch", dtype=dtype, points=(point,))
