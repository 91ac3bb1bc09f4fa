"""A bound from the few ways to split where ranks have several stages, for many states.

Where these are few, layers of each stage are known, and what a rank must give up so that it fits: N
bytes too many by the micro-batches in flight at its fullest moment. All stages of a rank recompute
alike, or each as many of its layers: a layer's recomputation frees rho times its bytes at the most,
rho the mean of a rank's flights over the layers that do so. Recomputation then costs what the hull
of the policies, the steepest part first, says of N.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.pipeline.fast import in_flight
from shardwright.cost_models.pipeline.orders import ranks_of_stages
from shardwright.planner.stacks.bounds import ShapeWork, StateRows
from shardwright.planner.stacks.choices import Leaf
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.rooms import SLACK, Floats
from shardwright.specs import ScheduleName
from shardwright.specs.layout import UNSPLIT

_MOST_WAYS = 2
"""Of more no bound is made."""


def quick_bounds_s(
    prices: StackPrices, leaf: Leaf, rows: StateRows, work: ShapeWork, most_ways: int = _MOST_WAYS
) -> Floats:
    """The longest of a rank's work after what its first stage waits for, the least over all ways to
    split: [n]. 0 where these are many, infinite where a rank does not fit, whatever the way.

    ``leaf``: under any state.
    """
    ways = prices.ways_to_split(leaf)
    if len(ways) > most_ways:
        return np.zeros(len(rows.first_bytes))
    bounds = [_Look(prices, leaf, rows, work, starts).bound_s() for starts in ways]
    return np.asarray(np.minimum.reduce(bounds) * (1 - SLACK))


@dataclass(frozen=True)
class _Look:
    """One way to split."""

    prices: StackPrices
    leaf: Leaf
    rows: StateRows
    work: ShapeWork
    starts: tuple[int, ...]

    def bound_s(self) -> Floats:
        """[n]."""
        grid, pipeline = self.leaf.grid, self.leaf.pipeline
        name = ScheduleName(pipeline.schedule)
        forward_s, backward_s = self.prices.least_stages_s(grid, self.leaf.cut, self._edges)
        stage_s = forward_s + backward_s
        ratio = self.work.overlap_ratio if name is ScheduleName.DUALPIPE_V else 1.0
        rank_s = np.bincount(self._ranks, stage_s)[:, None] + self._again_s()
        first_s = (stage_s if name in UNSPLIT else forward_s)[: grid.pp]
        passed_s = (np.cumsum(first_s) - first_s)[:, None]
        found = passed_s + grid.num_microbatches * ratio * rank_s
        return np.asarray(found.max(axis=0))

    @property
    def _edges(self) -> list[int]:
        return [0, *self.starts, len(self.prices.units.kind_of_unit)]

    @property
    def _ranks(self) -> tuple[int, ...]:
        grid, pipeline = self.leaf.grid, self.leaf.pipeline
        return ranks_of_stages(pipeline.schedule, grid.pp, pipeline.vpp)

    @cached_property
    def _layers(self) -> Floats:
        """Of each kind on each chunk of each rank: [kinds, ranks, chunks]."""
        grid, pipeline = self.leaf.grid, self.leaf.pipeline
        of_stage = np.diff(self.prices.layers_before[:, self._edges])
        found = np.zeros((len(of_stage), grid.pp, pipeline.vpp))
        stages = np.arange(of_stage.shape[1])
        found[:, self._ranks, stages // grid.pp] = of_stage
        return found

    @cached_property
    def _fullest(self) -> Floats:
        """Micro-batches that each rank holds of each of its chunks, at one moment when they need
        about the most: [ranks, chunks]."""
        grid, pipeline = self.leaf.grid, self.leaf.pipeline
        ranks = in_flight(
            pipeline.schedule, pp=grid.pp, vpp=pipeline.vpp,
            num_micro_batches=grid.num_microbatches,
        )  # fmt: skip
        kept = [float(hull[0][1].max()) for hull in self.rows.points]
        layer_bytes = np.einsum("krc,k->rc", self._layers, kept)
        return np.array([
            max(moments, key=lambda counts: float(np.dot(counts, own)))
            for moments, own in zip(ranks, layer_bytes, strict=True)
        ])  # fmt: skip

    @cached_property
    def _most_freed(self) -> Floats:
        """Micro-batches that a layer's recomputation frees at that moment, at the most: [ranks, 1].

        Where all layers are alike, stages recompute 1, 2, ... of theirs each; else any may.
        """
        layers, fullest = self._layers, self._fullest
        if len(layers) > 1 or "recompute" in self.prices.space.fixed:
            highest: Floats = (fullest * (layers.sum(axis=0) > 0.0)).max(axis=1)
            return np.maximum(highest, 1.0)[:, None]
        counts = np.arange(1.0, max(1.0, layers.max()) + 1.0)
        done = np.minimum(layers[0][:, :, None], counts)
        freed = (done * fullest[:, :, None]).sum(axis=1) / np.maximum(done.sum(axis=1), 1.0)
        return np.asarray(np.maximum(freed.max(axis=1), 1.0)[:, None])

    def _room(self) -> Floats:
        """For activations of layers: [ranks, n]."""
        grid, cut, rows = self.leaf.grid, self.leaf.cut, self.rows
        layer, head = self.prices.least_moments(grid, cut)
        live = self.prices.most_live_bytes(grid, cut)
        room: Floats = live - layer - np.einsum("krc,kn->rn", self._layers, rows.held)
        room[0] -= rows.first_bytes
        room[self._ranks[-1]] -= rows.last_bytes + max(0.0, head - layer)
        return room

    def _again_s(self) -> Floats:
        """What each rank's micro-batch adds by gathering, moving and computing again: [ranks, n];
        infinite where it does not fit."""
        points, layers = self.rows.points, self._layers.sum(axis=2)
        seconds = np.einsum("kr,kn->rn", layers, np.array([hull[0][0] for hull in points]))
        flights = np.einsum("krc,rc->kr", self._layers, self._fullest)
        kept = np.einsum("kr,kn->rn", flights, np.array([hull[0][1] for hull in points]))
        over = np.where(layers.any(axis=0)[:, None], kept * (1 - SLACK) - self._room(), 0.0)
        over = np.maximum(over, 0.0)
        for kind, freed, slope in self._segments():
            taken = np.minimum(over, flights[kind].T * freed)
            seconds = seconds + taken * slope / self._most_freed
            over = over - taken
        return np.asarray(np.where(over > 0.0, math.inf, seconds))

    def _segments(self) -> Iterator[tuple[NDArray[np.int_], Floats, Floats]]:
        """Steps from one policy to the next, the cheapest first: (kind, bytes that a layer frees,
        seconds for each byte), of every state: [n] each."""
        kinds, freed, slopes = [], [], []
        for kind, hull in enumerate(self.rows.points):
            for (before_s, before), (after_s, after) in itertools.pairwise(hull):
                kinds.append(kind)
                freed.append(before - after)
                slopes.append((after_s - before_s) / np.maximum(before - after, 1e-300))
        if not kinds:
            return
        of_kind, all_freed, all_slopes = np.array(kinds), np.array(freed), np.array(slopes)
        all_slopes[all_freed <= 0.0] = 0.0
        columns = np.arange(all_freed.shape[1])
        for row in np.argsort(all_slopes, axis=0, kind="stable"):
            yield of_kind[row], all_freed[row, columns], all_slopes[row, columns]
