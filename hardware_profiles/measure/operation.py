"""`TimedOperation`: what the runtime performs, so that it can be timed from this house below it.

The operations to measure are named, sized and called by a module of the runtime, which the plan
names (`MeasurePlan.operations`) and each rank imports: so the very code that trains is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from shardwright.hardware_profiles.measure.timing import Arena, Call, Timer
from shardwright.hardware_profiles.profile import Point
from shardwright.specs.training import DType


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """One operation of one size."""

    name: str
    """As in the books: ``rms_norm.forward``."""
    dtype: DType
    """As in the books, which is not always that of the operands."""
    x: float
    """As in the books: FLOPs, or bytes read plus written; 0 for what is only part of others and
    gets no curve."""
    make_call: Callable[[], Call]
    result_bytes: int
    parts: tuple[str, ...] = ()
    """Operations that run inside this one but are booked, and measured, by themselves."""


class RuntimeOperations(Protocol):
    """What a module must offer to be measured."""

    def elementwise_operations(
        self, arena: Arena, dtype: DType, numel: int, hidden: int
    ) -> Iterable[TimedOperation]:
        """Those whose main tensor has ``numel`` elements in rows of ``hidden``; those that are
        ``parts`` of others come before them."""

    def linear_operations(
        self, arena: Arena, dtype: DType, tokens: int, out: int, inner: int
    ) -> Iterable[TimedOperation]:
        """``weight_gradient``, ``forward`` and ``input_gradient`` of a layer from ``inner`` to
        ``out`` columns, named so, after their parts."""

    def attention_operations(
        self, arena: Arena, dtype: DType, heads: int, seq_len: int, head_dim: int
    ) -> Iterable[TimedOperation]:
        """``forward`` and ``backward`` of the core, named so, after their parts."""


def load_operations(module: str) -> RuntimeOperations:
    return cast(RuntimeOperations, importlib.import_module(module))


def time_operation(timer: Timer, operation: TimedOperation, known: dict[str, Point]) -> Point:
    """Its seconds without those of its parts, whose points of this size are in ``known``."""
    whole = timer.point(operation.x, operation.make_call, operation.result_bytes)
    if not operation.parts:
        return whole
    own_s = whole.median_s - sum(known[part].median_s for part in operation.parts)
    # Where noise hides what is left of it, it is at most as long as the noise.
    return whole._replace(median_s=own_s if own_s > 0 else whole.spread_s or whole.median_s)
