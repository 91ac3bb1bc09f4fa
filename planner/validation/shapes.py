"""The model of a row: what its config names, else a Transformer of its sizes.

A model built from sizes is a GPT (layer norm, biases, GELU, learned positions, tied head) or, where
its MLP is gated, a Llama (RMS norm, no biases, SwiGLU, rotary positions, a head of its own). It is
changed by what the row remarks: ``no bias``, ``untied embeddings``, ``parallel attention+MLP``,
``head_dim 128``, ``MLA q_lora 1536 kv_lora 512 rope 64``, ``moe_ffn 2048``, ``1 shared``,
``3 dense layers``. Sizes that are not stated take customary values and are said to be assumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from shardwright.planner.validation.rows import RowModel
from shardwright.specs import (
    AttentionBlock,
    EmbeddingBlock,
    HeadBlock,
    InputError,
    LayerBlock,
    MlpBlock,
    ModelSpec,
    NormBlock,
    ResidualBranch,
    Tower,
)
from shardwright.specs._base import describe_misfits
from shardwright.specs.blocks import Block, PredictionBlock
from shardwright.specs.bodies import (
    BranchBody,
    LatentAttentionBlock,
    MoeBlock,
    RotaryPositions,
)
from shardwright.specs.model import Edge
from shardwright.specs.sources import model_from_config
from shardwright.specs.sources.presets import find_preset

DEFAULT_VOCAB = 51200
"""GPT-2's 50257 padded for 8 tensor-parallel ranks: the vocabulary of Megatron's papers."""
DEFAULT_HEAD_DIM = 128
_LATENT = {"q_lora": 1536, "kv_lora": 512, "rope": 64}
"""Of DeepSeek-V3 (arXiv 2412.19437), whose attention this is."""
_ROPE_BASE = 10_000.0
_EPSILON = 1e-5

Configs = Mapping[str, Mapping[str, Any]]
"""Hugging Face configs by name, beyond the presets."""


@dataclass(slots=True)
class Assumptions:
    """What a row does not say and was assumed, in words."""

    notes: list[str] = field(default_factory=list)

    def take(self, stated: int | None, default: int, what: str) -> int:
        """What is stated, else the default, noted down."""
        if stated is not None:
            return stated
        self.notes.append(f"{what} = {default}")
        return default


def model_of(row: RowModel, *, configs: Configs, assumed: Assumptions) -> ModelSpec:
    """The model of a row, long enough for its sequences.

    Raises:
        InputError: neither a known config nor sizes, or sizes that make no model.
    """
    named = _named(row, configs)
    model = _of_sizes(row, assumed) if isinstance(named, str) and _has_sizes(row) else named
    if isinstance(model, str):
        raise InputError(model)
    return model if row.seq_len is None else _stretched(model, row.seq_len)


def without_prediction(model: ModelSpec) -> ModelSpec:
    """The model without multi-token prediction."""
    return _with_blocks(model, lambda block: None if isinstance(block, PredictionBlock) else block)


def with_capacity(model: ModelSpec, factor: float) -> ModelSpec:
    """The model whose experts drop tokens beyond ``factor`` times their even share."""

    def changed(block: Block) -> Block:
        if not isinstance(block, LayerBlock):
            return block
        branches = tuple(
            branch.model_copy(
                update={"body": branch.body.model_copy(update={"capacity_factor": factor})}
            )
            if isinstance(branch.body, MoeBlock)
            else branch
            for branch in block.branches
        )
        return block.model_copy(update={"branches": branches})

    return _with_blocks(model, changed)


def _with_blocks(model: ModelSpec, change: Callable[[Block], Block | None]) -> ModelSpec:
    """The model with every block changed, or dropped where the change is None."""
    towers = tuple(
        tower.model_copy(
            update={"blocks": tuple(new for b in tower.blocks if (new := change(b)) is not None)}
        )
        for tower in model.towers
    )
    return model.model_copy(update={"towers": towers})


def _named(row: RowModel, configs: Configs) -> ModelSpec | str:
    """The model of the row's config with the row's number of layers, or why there is none."""
    name = row.hf_config or _slug_of(row)
    if name is None:
        return "the model is not stated (layers and hidden, or a known config)"
    config = configs.get(name)
    if config is None:
        known = find_preset(name)
        if known is None:
            return f"no model config is named {name!r}"
        config = known.config
    try:
        model = model_from_config(dict(config), name=name, source=f"config {name}").spec
        layers = row.layers
        if layers is None or "num_hidden_layers" not in config or layers == _num_layers(model):
            return model
        changed = dict(config) | {"num_hidden_layers": layers}
        return model_from_config(changed, name=f"{name} ({layers} layers)", source=name).spec
    except InputError as error:
        return str(error)


def _slug_of(row: RowModel) -> str | None:
    """The preset that a row without sizes means by its model's name: ``Llama 2 7B``."""
    slug = re.sub(r"[^a-z0-9.]+", "-", (row.name or "").lower()).strip("-")
    return slug if not _has_sizes(row) and find_preset(slug) is not None else None


def _num_layers(model: ModelSpec) -> int:
    return sum(tower.num_layers for tower in model.towers)


def _has_sizes(row: RowModel) -> bool:
    return row.layers is not None and row.hidden is not None


def _stretched(model: ModelSpec, seq_len: int) -> ModelSpec:
    """The model with positions for longer sequences than it was made for."""
    if model.max_seq_len is None or model.max_seq_len >= seq_len:
        return model
    blocks = tuple(
        block.model_copy(update={"max_positions": seq_len})
        if isinstance(block, EmbeddingBlock) and block.max_positions is not None
        else block
        for block in model.decoder.blocks
    )
    decoder = model.decoder.model_copy(update={"blocks": blocks})
    towers = (*model.towers[:-1], decoder)
    return model.model_copy(update={"towers": towers, "max_seq_len": seq_len})


def _of_sizes(row: RowModel, assumed: Assumptions) -> ModelSpec:
    """With biases or without, whichever makes up an exactly stated number of parameters."""
    try:
        model = _Builder(row, assumed).build()
        stated = re.search(r"exact params (\d+)", row.other or "")
        if stated is None or model.num_parameters == int(stated[1]):
            return model
        other = _Builder(row, Assumptions())
        other.bias = not other.bias
        changed = other.build()
        return changed if changed.num_parameters == int(stated[1]) else model
    except ValidationError as error:
        raise InputError(
            f"the row's sizes make no model: {describe_misfits(error, most=2)}"
        ) from None


class _Builder:
    """Builds the blocks of a model from a row's sizes and remarks."""

    def __init__(self, row: RowModel, assumed: Assumptions) -> None:
        self.row, self.assumed = row, assumed
        self.remarks = (row.other or "").lower()
        assert row.hidden is not None
        assert row.layers is not None
        self.hidden, self.layers = row.hidden, row.layers
        self.parallel = "parallel attention" in self.remarks
        self.gated = bool(row.gated_mlp)
        self.is_latent = "mla" in self.remarks
        self.rotary = self.gated or self.parallel or self.is_latent or "rotary" in self.remarks
        self.bias = not self.gated and not self.is_latent and "no bias" not in self.remarks
        self.tied = not self.gated and "untied" not in self.remarks
        self.heads = assumed.take(row.heads, max(1, self.hidden // DEFAULT_HEAD_DIM), "heads")

    def build(self) -> ModelSpec:
        vocab = self.assumed.take(self.row.vocab, DEFAULT_VOCAB, "vocab")
        positions = None if self.rotary else (self.row.seq_len or 2048)
        blocks: tuple[Block, ...] = (
            EmbeddingBlock(vocab_size=vocab, hidden_size=self.hidden, max_positions=positions),
            *self._layers(),
            self._norm(),
            HeadBlock(vocab_size=vocab, hidden_size=self.hidden, tied=self.tied),
        )
        tie = Edge(
            kind="tied_weight", producer="decoder/embedding", consumer="decoder/head",
            shape=(vocab, self.hidden),
        )  # fmt: skip
        return ModelSpec(
            name=self.row.name or "model",
            family="custom",
            towers=(Tower(name="decoder", blocks=blocks),),
            edges=(tie,) if self.tied else (),
            max_seq_len=positions,
            source="the sizes of a measured run",
        )

    def _number(self, pattern: str) -> int | None:
        found = re.search(pattern, self.remarks)
        return int(found[1]) if found else None

    def _layers(self) -> tuple[LayerBlock, ...]:
        if not self.row.experts:
            return (self._layer(self._mlp(self._ffn_size()), self.layers),)
        dense = min(self._number(r"(\d+) dense") or 0, self.layers)
        dense_layers = (self._layer(self._mlp(self._ffn_size()), dense),) if dense else ()
        rest = self.layers - dense
        return (*dense_layers, *((self._layer(self._moe(), rest),) if rest else ()))

    def _layer(self, feed_forward: BranchBody, repeat: int) -> LayerBlock:
        bodies: tuple[BranchBody, ...] = (self._attention(), feed_forward)
        return LayerBlock(
            branches=tuple(ResidualBranch(body=body, pre_norm=self._norm()) for body in bodies),
            repeat=repeat,
            parallel=self.parallel,
        )

    def _norm(self) -> NormBlock:
        is_rms = self.gated or self.is_latent
        return NormBlock(
            type="rms_norm" if is_rms else "layer_norm",
            hidden_size=self.hidden,
            bias=self.bias,
            epsilon=_EPSILON,
        )

    def _attention(self) -> BranchBody:
        rotary = RotaryPositions(base=_ROPE_BASE) if self.rotary else None
        if self.is_latent:
            sizes = {k: self._number(rf"{k} (\d+)") or v for k, v in _LATENT.items()}
            return LatentAttentionBlock(
                hidden_size=self.hidden,
                num_heads=self.heads,
                q_lora_rank=sizes["q_lora"],
                kv_lora_rank=sizes["kv_lora"],
                qk_nope_head_dim=DEFAULT_HEAD_DIM,
                qk_rope_head_dim=sizes["rope"],
                v_head_dim=DEFAULT_HEAD_DIM,
                rotary=rotary,
            )
        return AttentionBlock(
            hidden_size=self.hidden,
            num_heads=self.heads,
            num_kv_heads=self.row.kv_heads or self.heads,
            head_dim=self._number(r"head_dim (\d+)") or max(1, self.hidden // self.heads),
            qkv_bias=self.bias,
            output_bias=self.bias,
            rotary=rotary,
        )

    def _ffn_size(self) -> int:
        """4 x hidden; gated, 8/3 x hidden to the next multiple of 256, as Llama's."""
        default = -(-8 * self.hidden // 768) * 256 if self.gated else 4 * self.hidden
        return self.assumed.take(self.row.ffn_hidden, default, "ffn_hidden")

    def _mlp(self, ffn_size: int) -> MlpBlock:
        return MlpBlock(
            hidden_size=self.hidden,
            ffn_size=ffn_size,
            activation="silu" if self.gated else "gelu_tanh",
            gated=self.gated,
            bias=self.bias,
        )

    def _moe(self) -> MoeBlock:
        experts = self.row.experts
        assert experts
        expert_size = self._number(r"moe_ffn (\d+)") or self._ffn_size()
        shared = self._number(r"(\d+) shared") or 0
        return MoeBlock(
            hidden_size=self.hidden,
            expert_size=expert_size,
            num_experts=experts,
            top_k=self.assumed.take(self.row.topk or None, min(2, experts), "topk"),
            activation="silu" if self.gated else "gelu_tanh",
            gated=self.gated,
            shared_size=shared * expert_size or None,
        )
