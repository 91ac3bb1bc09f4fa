"""The exact books of one training job: of its stages on each rank, and of its units under ZeRO.

Books are kept by the identity of a unit's blocks, which equal layers share.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from shardwright.cost_models.blocks.operations import ParameterBooks
from shardwright.cost_models.blocks.splits import attention_split, kv_heads_are_shared
from shardwright.cost_models.blocks.stage import StageBooks, UnitBooks, stage_books
from shardwright.cost_models.shards import UnitShards
from shardwright.specs import (
    AttentionBlock,
    LayerBlock,
    Layout,
    ModelSpec,
    SoftwareSpec,
    TrainingSpec,
)

TIED_UNIT = "tied_embedding"
"""The unit of a weight that embedding and head share."""


class JobBooks:
    """Stages and units of one training job; no prices."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, software: SoftwareSpec) -> None:
        self._model, self._training, self._software = model, training, software
        self._kv_rows = _kv_rows(model)
        self._books: dict[Hashable, tuple[StageBooks, ...]] = {}
        self._tp_ranks: dict[int, tuple[int, ...]] = {}
        self._units: dict[tuple[int, ...], tuple[UnitBooks, ...]] = {}
        self._replicated: dict[tuple[int, ...], int] = {}

    def books(self, layout: Layout, stage: int) -> tuple[StageBooks, ...]:
        """The stage's books on each tensor-parallel rank that differs from those before it."""
        key = (
            layout.stages[stage], layout.recompute[stage], layout.tp, layout.sequence_parallel,
            layout.micro_batch,
        )  # fmt: skip
        found = self._books.get(key)
        if found is None:
            found = self._books[key] = tuple(
                self.books_of_rank(layout, stage, tp_rank)
                for tp_rank in self._distinct_tp_ranks(layout.tp)
            )
        return found

    def books_of_rank(self, layout: Layout, stage: int, tp_rank: int) -> StageBooks:
        """The stage's books on one tensor-parallel rank."""
        return stage_books(self._model, self._training, self._software, layout, stage, tp_rank)

    def _distinct_tp_ranks(self, tp: int) -> tuple[int, ...]:
        if tp not in self._tp_ranks:
            self._tp_ranks[tp] = distinct_tp_ranks(self._model, tp)
        return self._tp_ranks[tp]

    def shards(self, layout: Layout, unit: UnitBooks) -> UnitShards:
        """What ZeRO makes of a unit."""
        key = self._identity((unit,))
        replicated = self._replicated.get(key)
        if replicated is None:
            replicated = self._replicated[key] = sum(
                self._replicated_numel(parameter)
                for block in unit.blocks
                for parameter in block.parameters
                if parameter.tp_replicated
            )
        return UnitShards.of(layout, self._training.dtypes, unit.num_parameters, replicated)

    def _identity(self, unit: tuple[UnitBooks, ...]) -> tuple[int, ...]:
        """By what a unit is known: its blocks, kept so that no others can take their place."""
        key = tuple(id(block) for one in unit for block in one.blocks)
        self._units.setdefault(key, unit)
        return key

    def _replicated_numel(self, parameter: ParameterBooks) -> int:
        """Its whole, or where key and value heads are shared, their rows of the whole model."""
        rows, *columns = parameter.global_shape
        if parameter.local_shape != parameter.global_shape:
            rows = self._kv_rows[rows]
        return rows * math.prod(columns)


def distinct_tp_ranks(model: ModelSpec, tp: int) -> tuple[int, ...]:
    """The tensor-parallel ranks on which a layer may cost most.

    Parts come larger first, so the first rank has the most of everything, unless kv heads are
    shared: then how many of them a rank holds follows its query heads.
    """
    bodies = {
        branch.body
        for block in model.decoder.blocks
        if isinstance(block, LayerBlock)
        for branch in block.branches
        if isinstance(branch.body, AttentionBlock)
    }
    shared = [body for body in bodies if kv_heads_are_shared(body, tp)]
    ranks: dict[Hashable, int] = {}
    for rank in range(tp if shared else 1):
        splits = [attention_split(body, tp, rank) for body in shared]
        kind = tuple((len(split.query), len(split.kv), split.is_grouped) for split in splits)
        ranks.setdefault(kind, rank)
    return tuple(ranks.values())


def _kv_rows(model: ModelSpec) -> dict[int, int]:
    """Rows of keys and values in a fused projection, by its rows in all."""
    return {
        branch.body.query_size + 2 * branch.body.kv_size: 2 * branch.body.kv_size
        for layer in model.decoder.layers()
        for branch in layer.branches
        if isinstance(branch.body, AttentionBlock)
    }
