"""Negative controls of `benchmarks.parity`: one fault each, which its errors must show."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from torch import Tensor

from shardwright.runtime.sharding import FlatUnit, ShardPlan

Fault = Callable[[], AbstractContextManager[Any]]


def _no_tp_sum() -> AbstractContextManager[Any]:
    return patch.object(FlatUnit, "_sum_over_tp", lambda self, gradients: None)


def _without(change: Callable[[ShardPlan], ShardPlan]) -> AbstractContextManager[Any]:
    make = ShardPlan.of
    return patch.object(ShardPlan, "of", lambda layout, groups: change(make(layout, groups)))


def _mean_over_dp() -> AbstractContextManager[Any]:
    reduce = FlatUnit.reduce

    def reduce_to_mean(unit: FlatUnit) -> None:
        reduce(unit)
        unit.gradients.div_(2)

    return patch.object(FlatUnit, "reduce", reduce_to_mean)


def _last_micro_batch_alone() -> AbstractContextManager[Any]:
    end = FlatUnit._end_backward

    def forget_then_end(unit: FlatUnit) -> None:
        unit.zero_gradients()
        end(unit)

    return patch.object(FlatUnit, "_end_backward", forget_then_end)


def _unpublished_weights() -> AbstractContextManager[Any]:
    return patch.object(FlatUnit, "publish_weights", lambda self: None)


def _norm_of_all_copies() -> AbstractContextManager[Any]:
    held = FlatUnit.held_parts

    def held_by_anyone(unit: FlatUnit, *, owned_only: bool = False) -> Any:
        return held(unit)

    return patch.object(FlatUnit, "held_parts", held_by_anyone)


def _stale_gathered_weights() -> AbstractContextManager[Any]:
    """The gather of ZeRO 3 fills its buffer with the own slice of every rank."""
    import shardwright.runtime.sharding as sharding

    def repeat_own(full: Tensor, own: Tensor, group: object) -> None:
        full.view(-1, own.numel()).copy_(own)

    return patch.object(sharding, "gather_flat", repeat_own)


def _second_half_lost() -> AbstractContextManager[Any]:
    """Gradients that were put off arrive empty."""
    import shardwright.runtime.parallel.deferred as deferred

    deliver = deferred._deliver
    return patch.object(deferred, "_deliver", lambda p, gradient: deliver(p, gradient * 0))


FAULTS: dict[str, Fault] = {
    "second-half-lost": _second_half_lost,
    "no-tp-sum": _no_tp_sum,
    "no-dp-sum": lambda: _without(lambda plan: replace(plan, replica_group=None)),
    "no-embedding-sum": lambda: _without(lambda plan: replace(plan, embedding_group=None)),
    "mean-over-dp": _mean_over_dp,
    "last-micro-batch-alone": _last_micro_batch_alone,
    "unpublished-weights": _unpublished_weights,
    "norm-of-all-copies": _norm_of_all_copies,
    "own-slice-everywhere": _stale_gathered_weights,
}
