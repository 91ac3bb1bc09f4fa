"""The units of a stage: embedding, layers, head, and a tied weight of its own.

A unit is what ZeRO gathers and reduces at once. Each is a module with a ``unit_name`` whose
parameters are all its own; ``readers`` are the modules that read them: for each virtual stage that
does, in forward order.

Local names are rebound as tensors pass through: a layer that keeps nothing (recompute) then frees
each one as soon as the next is there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shardwright.cost_models.blocks.splits import attention_split, column_split, vocabulary_split
from shardwright.runtime.models.attention import AttentionTables, attend
from shardwright.runtime.models.mlp import activate
from shardwright.runtime.models.norms import normalize
from shardwright.runtime.models.parameters import ParameterMaker
from shardwright.runtime.models.recompute import recomputed
from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.layers import add_positions, column_linear, embed, row_linear
from shardwright.runtime.parallel.loss import vocabulary_parallel_cross_entropy
from shardwright.specs.model import (
    AttentionBlock,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    MlpBlock,
    NormBlock,
    ResidualBranch,
)


class Unit(nn.Module):
    """What ZeRO gathers and reduces at once."""

    unit_name: str
    readers: tuple[tuple[nn.Module, ...], ...]

    def __init__(self, unit_name: str) -> None:
        super().__init__()
        self.unit_name = unit_name
        self.set_readers((self,))

    def set_readers(self, *by_stage: tuple[nn.Module, ...]) -> None:
        """Other modules than the unit itself, for each virtual stage."""
        # Not a submodule list: a unit's parameters are its own.
        self.__dict__["readers"] = by_stage


class Norm(nn.Module):
    """The weights of a norm; (norm of x, x) of x."""

    def __init__(self, block: NormBlock, name: str, make: ParameterMaker) -> None:
        super().__init__()
        self.epsilon = block.epsilon
        self.weight = make.whole(f"{name}.weight", (block.hidden_size,))
        self.bias = make.whole(f"{name}.bias", (block.hidden_size,)) if block.bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return normalize(x, self.weight, self.bias, self.epsilon)


class Projection(nn.Module):
    """The weight and bias of a linear layer; computation is in `parallel.layers`."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias


class AttentionBranch(nn.Module):
    """x + attention(norm(x)) for x [B, t, D]."""

    def __init__(
        self,
        branch: ResidualBranch,
        block: AttentionBlock,
        name: str,
        make: ParameterMaker,
        tables: AttentionTables,
        tp: TensorParallel,
    ) -> None:
        super().__init__()
        assert branch.pre_norm is not None
        heads = attention_split(block, make.tp, make.tp_rank)
        columns = range(heads.query.start * block.head_dim, heads.query.stop * block.head_dim)
        self.heads, self.tables, self.tp, self.causal = heads, tables, tp, block.causal
        self.norm = Norm(branch.pre_norm, f"{name}_norm", make)
        bias = make.qkv(f"{name}.qkv.bias", block, heads, ()) if block.qkv_bias else None
        self.qkv = Projection(
            make.qkv(f"{name}.qkv.weight", block, heads, (block.hidden_size,)), bias
        )
        shape = (block.hidden_size, block.query_size)
        bias = make.whole(f"{name}.output.bias", shape[:1]) if block.output_bias else None
        self.output = Projection(make.columns(f"{name}.output.weight", shape, columns), bias)

    def forward(self, x: Tensor) -> Tensor:
        y, x = self.norm(x)
        y = column_linear(y, self.qkv.weight, self.qkv.bias, self.tp)
        y = attend(y, self.heads, self.tables, self.causal)
        return row_linear(y, self.output.weight, self.output.bias, x, self.tp)


class MlpBranch(nn.Module):
    """x + mlp(norm(x)) for x [B, t, D]."""

    def __init__(
        self,
        branch: ResidualBranch,
        block: MlpBlock,
        name: str,
        make: ParameterMaker,
        tp: TensorParallel,
    ) -> None:
        super().__init__()
        assert branch.pre_norm is not None
        own = column_split(block.ffn_size, make.tp, make.tp_rank)
        up_name, num_up = ("gate_up", 2) if block.gated else ("up", 1)
        starts = [part * block.ffn_size for part in range(num_up)]
        rows = [range(start + own.start, start + own.stop) for start in starts]
        self.activation, self.gated, self.tp = block.activation, block.gated, tp
        self.norm = Norm(branch.pre_norm, f"{name}_norm", make)
        up_shape = (num_up * block.ffn_size, block.hidden_size)
        bias = make.rows(f"{name}.{up_name}.bias", up_shape[:1], rows) if block.bias else None
        self.up = Projection(make.rows(f"{name}.{up_name}.weight", up_shape, rows), bias)
        down_shape = (block.hidden_size, block.ffn_size)
        bias = make.whole(f"{name}.down.bias", down_shape[:1]) if block.bias else None
        self.down = Projection(make.columns(f"{name}.down.weight", down_shape, own), bias)

    def forward(self, x: Tensor) -> Tensor:
        y, x = self.norm(x)
        y = column_linear(y, self.up.weight, self.up.bias, self.tp)
        y = activate(y, self.activation, self.gated)
        return row_linear(y, self.down.weight, self.down.bias, x, self.tp)


class LayerUnit(Unit):
    """One Transformer layer: its residual branches in order."""

    def __init__(
        self,
        layer: LayerBlock,
        index: int,
        make: ParameterMaker,
        tables: AttentionTables,
        tp: TensorParallel,
        *,
        recompute: bool,
    ) -> None:
        super().__init__(f"layers.{index}")
        self.recompute = recompute
        self.branches = nn.ModuleList()
        for branch in layer.branches:
            body, name = branch.body, f"layers.{index}.{branch.body.kind}"
            if isinstance(body, AttentionBlock):
                self.branches.append(AttentionBranch(branch, body, name, make, tables, tp))
            else:
                assert isinstance(body, MlpBlock), body  # `check_supported` lets no other pass
                self.branches.append(MlpBranch(branch, body, name, make, tp))

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return recomputed(self._run, x)
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        for branch in self.branches:
            x = branch(x)
        return x


class TiedEmbeddingUnit(Unit):
    """The weight that embedding and head share; ``shared`` with another pipeline rank."""

    def __init__(self, block: EmbeddingBlock, make: ParameterMaker, *, shared: bool) -> None:
        super().__init__("tied_embedding")
        self.set_readers()
        self.weight = _embedding_weight(block, make, tied=shared)


class EmbeddingUnit(Unit):
    """Tokens [B, T] -> hidden states [B, t, D]."""

    def __init__(
        self,
        block: EmbeddingBlock,
        make: ParameterMaker,
        tp: TensorParallel,
        tied: TiedEmbeddingUnit | None,
    ) -> None:
        super().__init__("embedding")
        self.first_row = vocabulary_split(block.vocab_size, make.tp, make.tp_rank).start
        self.tp = tp
        if tied is None:
            self.weight = _embedding_weight(block, make, tied=False)
        self.__dict__["_tied"] = tied
        self.positions = None
        if block.max_positions is not None:
            shape = (block.max_positions, block.hidden_size)
            self.positions = make.whole("embedding.positions", shape)

    def forward(self, tokens: Tensor) -> Tensor:
        tied: TiedEmbeddingUnit | None = self.__dict__["_tied"]
        weight = self.weight if tied is None else tied.weight
        x = embed(tokens, weight, self.first_row, self.tp)
        return x if self.positions is None else add_positions(x, self.positions, self.tp)


class HeadUnit(Unit):
    """Hidden states [B, t, D] -> logits [B, T, rows], or with labels the summed loss."""

    def __init__(
        self,
        norm: NormBlock,
        block: HeadBlock,
        make: ParameterMaker,
        tp: TensorParallel,
        tied: TiedEmbeddingUnit | None,
        label_smoothing: float,
    ) -> None:
        super().__init__("head")
        own = vocabulary_split(block.vocab_size, make.tp, make.tp_rank)
        self.first_row, self.vocab_size, self.tp = own.start, block.vocab_size, tp
        self.label_smoothing = label_smoothing
        self.norm = Norm(norm, "final_norm", make)
        if tied is None:
            shape = (block.vocab_size, block.hidden_size)
            self.projection = Projection(make.rows("head.weight", shape, [own]))
        self.__dict__["_tied"] = tied

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        tied: TiedEmbeddingUnit | None = self.__dict__["_tied"]
        weight = self.projection.weight if tied is None else tied.weight
        x, _ = self.norm(x)
        x = column_linear(x, weight, None, self.tp)
        if labels is None:
            return x
        return vocabulary_parallel_cross_entropy(
            x, labels, self.first_row, self.vocab_size, self.label_smoothing, self.tp
        )


def _embedding_weight(block: EmbeddingBlock, make: ParameterMaker, *, tied: bool) -> nn.Parameter:
    own = vocabulary_split(block.vocab_size, make.tp, make.tp_rank)
    shape = (block.vocab_size, block.hidden_size)
    return make.rows("embedding.weight", shape, [own], tied=tied)
