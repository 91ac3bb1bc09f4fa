"""What a rank holds of a model: `StageModule` for one virtual stage, `RankModule` for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from shardwright.cost_models.blocks.splits import attention_split, sequence_shard_len
from shardwright.cost_models.blocks.support import check_supported
from shardwright.runtime.models.attention import AttentionTables, rotary_tables, window_mask
from shardwright.runtime.models.initialize import initialize_
from shardwright.runtime.models.parameters import ParameterMaker
from shardwright.runtime.models.units import (
    EmbeddingUnit,
    HeadUnit,
    LayerUnit,
    TiedEmbeddingUnit,
    Unit,
)
from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.dtypes import torch_dtype
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.specs.layout import Layout, Stage
from shardwright.specs.model import AttentionBlock, LayerBlock, ModelSpec
from shardwright.specs.training import TrainingSpec


class StageModule(nn.Module):
    """The units of one virtual stage, in order.

    Attributes:
        units: those with parameters, each an `nn.Module` with a ``unit_name``, in the order in
            which they are first read.
        stage: which layers and blocks it holds.
    """

    def __init__(
        self,
        stage: Stage,
        embedding: EmbeddingUnit | None,
        layers: list[LayerUnit],
        head: HeadUnit | None,
        tied: TiedEmbeddingUnit | None,
        hidden_like: Tensor,
        tp: TensorParallel,
    ) -> None:
        super().__init__()
        self.stage = stage
        self.tied_embedding = tied
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.head = head
        self.tensor_parallel = tp
        self.register_buffer("_hidden_like", hidden_like, persistent=False)
        if tied is not None:
            readers = tuple(unit for unit in (embedding, head) if unit is not None)
            tied.set_readers(*tied.readers, readers)
        self.__dict__["units"] = tuple(self._units_with_parameters())

    units: tuple[Unit, ...]

    def _units_with_parameters(self) -> Iterator[Unit]:
        children = (self.tied_embedding, self.embedding, *self.layers, self.head)
        if self.embedding is None:  # the tied weight is first read by the head
            children = (*self.layers, self.tied_embedding, self.head)
        for unit in children:
            if isinstance(unit, Unit) and any(True for _ in unit.parameters()):
                yield unit

    def new_hidden(self, batch: int, seq_len: int) -> Tensor:
        """An empty tensor of the shape and dtype that this stage receives: [B, t, D]."""
        tp = self.tensor_parallel
        local_len = sequence_shard_len(seq_len, tp.size) if tp.shards_sequence else seq_len
        like: Tensor = self.get_buffer("_hidden_like")
        return like.new_empty(batch, local_len, like.shape[-1])

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """One micro-batch.

        Args:
            x: tokens [B, T] int64 for the first stage, else hidden states [B, t, D].
            labels: [B, T] int64, -100 where a token has none; read by the last stage only.

        Returns:
            Hidden states [B, t, D]; of the last stage the loss summed over its valid tokens, or
            without labels this rank's logits [B, T, rows].
        """
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x, labels)


class RankModule(nn.Module):
    """The virtual stages of one rank.

    Attributes:
        stages: by their number in the model, ascending.
        units: those of all stages, in their order; a weight that two stages share comes once.
    """

    def __init__(self, stages: Mapping[int, StageModule]) -> None:
        super().__init__()
        self.stages = dict(stages)
        for number, stage in self.stages.items():
            self.add_module(str(number), stage)
        self.units = tuple(
            dict.fromkeys(unit for stage in self.stages.values() for unit in stage.units)
        )

    @property
    def hidden_like(self) -> Tensor:
        """Without elements, on the device and in the dtype of hidden states."""
        return next(iter(self.stages.values())).new_hidden(0, 0)


def build_rank(
    model: ModelSpec,
    layout: Layout,
    training: TrainingSpec,
    groups: ParallelGroups,
    *,
    device: torch.device | str = "cpu",
    draws_weights: bool = True,
) -> RankModule:
    """This rank's part of each virtual stage that its pipeline rank holds.

    Where the first and the last stage sit on one rank, a tied weight is one for both.

    ``draws_weights``: false leaves them as memory came, where nothing reads them.

    Raises:
        InputError: the model or layout asks for something that the runtime does not build.
    """
    stages: dict[int, StageModule] = {}
    for stage in layout.stages:
        if stage.rank == groups.coordinates.pp:
            tied = stages[0].tied_embedding if 0 in stages and "head" in stage.holds else None
            stages[stage.stage] = build_stage(
                model, layout, training, stage.stage, groups,
                device=device, tied=tied, draws_weights=draws_weights,
            )  # fmt: skip
    return RankModule(stages)


def build_stage(
    model: ModelSpec,
    layout: Layout,
    training: TrainingSpec,
    stage_index: int,
    groups: ParallelGroups,
    *,
    device: torch.device | str = "cpu",
    tied: TiedEmbeddingUnit | None = None,
    draws_weights: bool = True,
) -> StageModule:
    """This rank's part of a virtual stage, initialised from ``training.seed``.

    Args:
        tied: the tied weight, where the first stage on this rank has made it already.
        draws_weights: false leaves them as memory came, where nothing reads them.

    Raises:
        InputError: the model or layout asks for something that the runtime does not build.
    """
    check_supported(model, layout)
    device = torch.device(device)
    dtype = torch_dtype(training.dtypes.parameter)
    tp_rank = groups.coordinates.tp
    make = ParameterMaker(dtype, device, layout.tp, tp_rank, layout.sequence_parallel)
    tp = TensorParallel(groups.tp, layout.tp, tp_rank, layout.sequence_parallel, training.seq_len)
    stage = layout.stages[stage_index]
    tied, embedding, head = _make_ends(model, layout, training, stage, make, tp, tied)
    module = StageModule(
        stage, embedding, _make_layers(model, layout, training, stage_index, make, tp), head, tied,
        torch.empty(0, model.embedding.hidden_size, dtype=dtype, device=device), tp,
    )  # fmt: skip
    if draws_weights:
        initialize_(module.parameters(), model, training.seed)
    return module


def _make_ends(
    model: ModelSpec,
    layout: Layout,
    training: TrainingSpec,
    stage: Stage,
    make: ParameterMaker,
    tp: TensorParallel,
    tied: TiedEmbeddingUnit | None,
) -> tuple[TiedEmbeddingUnit | None, EmbeddingUnit | None, HeadUnit | None]:
    first, last = "embedding" in stage.holds, "head" in stage.holds
    embedding = head = None
    if model.head.tied and (first or last) and tied is None:
        shared = layout.stages[0].rank != layout.stages[-1].rank
        tied = TiedEmbeddingUnit(model.embedding, make, shared=shared)
    if first:
        embedding = EmbeddingUnit(model.embedding, make, tp, tied)
    if last:
        head = HeadUnit(model.final_norm, model.head, make, tp, tied, training.label_smoothing)
    return tied, embedding, head


def _make_layers(
    model: ModelSpec,
    layout: Layout,
    training: TrainingSpec,
    stage_index: int,
    make: ParameterMaker,
    tp: TensorParallel,
) -> list[LayerUnit]:
    stage, recompute = layout.stages[stage_index], layout.recompute[stage_index]
    tables: dict[AttentionBlock, AttentionTables] = {}
    layers: list[LayerUnit] = []
    for number, layer in list(enumerate(model.decoder.layers()))[slice(*stage.layers)]:
        attention = _attention_of(layer)
        if attention is not None and attention not in tables:
            tables[attention] = _make_tables(attention, training.seq_len, make)
        layer_tables = tables[attention] if attention else AttentionTables(None, None, None, None)
        again = recompute.policy == "full" and (
            recompute.num_layers is None or len(layers) < recompute.num_layers
        )
        layers.append(LayerUnit(layer, number, make, layer_tables, tp, recompute=again))
    return layers


def _attention_of(layer: LayerBlock) -> AttentionBlock | None:
    bodies = [branch.body for branch in layer.branches]
    return next((body for body in bodies if isinstance(body, AttentionBlock)), None)


def _make_tables(block: AttentionBlock, seq_len: int, make: ParameterMaker) -> AttentionTables:
    cosine = sine = mask = None
    if block.rotary is not None:
        cosine, sine = rotary_tables(block.rotary, block.head_dim, seq_len, make.dtype, make.device)
    if block.causal and block.sliding_window is not None and block.sliding_window < seq_len:
        mask = window_mask(block.sliding_window, seq_len, make.dtype, make.device)
    heads = attention_split(block, make.tp, make.tp_rank)
    kv_of_query = None
    if not heads.is_grouped:
        kv_of_query = torch.tensor(heads.kv_of_query, device=make.device)
    return AttentionTables(cosine, sine, mask, kv_of_query)
