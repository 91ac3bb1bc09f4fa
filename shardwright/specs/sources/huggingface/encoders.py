"""Text encoders: BERT, RoBERTa, DistilBERT, ELECTRA, DeBERTa-v2, ModernBERT.

As the library builds them without a task: with their pooler where they have one. ``head = mlm``
puts the head of masked language modelling in the pooler's place.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from shardwright.specs.blocks import (
    Block,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    PoolerBlock,
    ResidualBranch,
)
from shardwright.specs.bodies import AttentionBlock, MlpBlock, NormBlock, RotaryPositions
from shardwright.specs.model import ModelSpec, Tower
from shardwright.specs.ranges import Extent, HeadCount, LayerCount
from shardwright.specs.sources.huggingface.decoder import tied_edge
from shardwright.specs.sources.huggingface.fields import (
    Config,
    Dropout,
    ModelHead,
    RopeConfig,
    activation,
)


class EncoderConfig(Config):
    """Layers of BERT's kind: a LayerNorm after each addition, biases everywhere."""

    architectures: ClassVar[tuple[str, ...]] = ("ForMaskedLM", "Model", "ForPreTraining")
    heads: ClassVar[tuple[ModelHead, ...]] = ("mlm",)
    has_pooler: ClassVar[bool] = True

    vocab_size: Extent
    hidden_size: Extent
    intermediate_size: Extent
    num_hidden_layers: LayerCount
    num_attention_heads: HeadCount
    hidden_act: str = "gelu"
    max_position_embeddings: Extent = 512
    type_vocab_size: NonNegativeInt = 2
    layer_norm_eps: PositiveFloat = 1e-12
    tie_word_embeddings: bool = True
    hidden_dropout_prob: Dropout = 0.1
    attention_probs_dropout_prob: Dropout = 0.1

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads"
                f" ({self.num_attention_heads})"
            )
        activation(self.hidden_act)
        return self

    @property
    def max_positions(self) -> int:
        return self.max_position_embeddings

    def norm(self) -> NormBlock:
        return layer_norm(self.hidden_size, self.layer_norm_eps)

    def embedding(self) -> EmbeddingBlock:
        return EmbeddingBlock(
            vocab_size=self.vocab_size, hidden_size=self.hidden_size,
            max_positions=self.max_position_embeddings,
            num_token_types=self.type_vocab_size or None, norm=self.norm(),
        )  # fmt: skip

    def layers(self) -> list[LayerBlock]:
        attention = AttentionBlock(
            hidden_size=self.hidden_size, num_heads=self.num_attention_heads,
            num_kv_heads=self.num_attention_heads,
            head_dim=self.hidden_size // self.num_attention_heads, qkv_bias=True, output_bias=True,
            rotary=None, causal=False,
        )  # fmt: skip
        mlp = MlpBlock(
            hidden_size=self.hidden_size, ffn_size=self.intermediate_size,
            activation=activation(self.hidden_act), gated=False, bias=True,
        )  # fmt: skip
        branches = tuple(
            ResidualBranch(body=body, pre_norm=None, post_norm=self.norm(), norm_after_add=True)
            for body in (attention, mlp)
        )
        return [LayerBlock(branches=branches, repeat=self.num_hidden_layers)]

    def final_norm(self) -> NormBlock | None:
        return None

    def head(self) -> HeadBlock:
        return HeadBlock(
            vocab_size=self.vocab_size, hidden_size=self.hidden_size,
            tied=self.tie_word_embeddings, bias=True, transform=self.norm(),
        )  # fmt: skip

    def to_spec(self, name: str, family: str, source: str, head: ModelHead | None) -> ModelSpec:
        embedding, norm = self.embedding(), self.final_norm()
        blocks: list[Block] = [embedding, *self.layers(), *([norm] if norm else [])]
        tied = head == "mlm" and self.tie_word_embeddings
        if head == "mlm":
            blocks.append(self.head())
        elif self.has_pooler:
            blocks.append(PoolerBlock(hidden_size=self.hidden_size))
        width = embedding.table_size or embedding.hidden_size
        return ModelSpec(
            name=name, family=family, towers=(Tower(name="encoder", blocks=tuple(blocks)),),
            edges=(tied_edge(self.vocab_size, width, "encoder"),) if tied else (),
            max_seq_len=self.max_positions, initializer_range=self.initializer_range,
            source=source,
        )  # fmt: skip


def layer_norm(hidden_size: int, epsilon: float, *, bias: bool = True) -> NormBlock:
    return NormBlock(type="layer_norm", hidden_size=hidden_size, bias=bias, epsilon=epsilon)


class RobertaConfig(EncoderConfig):
    """``model_type: roberta``, ``xlm-roberta``, ``camembert``: positions start after the padding
    token's number, so two fewer are of use."""

    pad_token_id: int | None = 1

    @property
    def max_positions(self) -> int:
        return self.max_position_embeddings - (self.pad_token_id or 0) - 1


class DistilBertConfig(EncoderConfig):
    """``model_type: distilbert``: no token types, no pooler."""

    has_pooler: ClassVar[bool] = False
    renamed: ClassVar[dict[str, str]] = {
        "dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads", "activation": "hidden_act",
        "attention_dropout": "attention_probs_dropout_prob", "dropout": "hidden_dropout_prob",
    }  # fmt: skip
    type_vocab_size: Literal[0] = 0
    sinusoidal_pos_embds: bool = False
    qa_dropout: Dropout = 0.0
    seq_classif_dropout: Dropout = 0.0


class ElectraConfig(EncoderConfig):
    """``model_type: electra``: a narrower table, no pooler."""

    has_pooler: ClassVar[bool] = False
    embedding_size: Extent = 128

    def embedding(self) -> EmbeddingBlock:
        block = super().embedding()
        norm = layer_norm(self.embedding_size, self.layer_norm_eps)
        narrow = self.embedding_size != self.hidden_size
        update: dict[str, Any] = {"norm": norm}
        if narrow:
            update |= {"table_size": self.embedding_size, "table_positions": True}
        return block.model_copy(update=update)

    def head(self) -> HeadBlock:
        norm = layer_norm(self.embedding_size, self.layer_norm_eps)
        narrow = self.embedding_size != self.hidden_size
        size = self.embedding_size if narrow else None
        return super().head().model_copy(update={"transform": norm, "table_size": size})


class DebertaV2Config(EncoderConfig):
    """``model_type: deberta-v2`` (v2 and v3): distances in place of positions, no pooler."""

    has_pooler: ClassVar[bool] = False
    layer_norm_eps: PositiveFloat = 1e-7
    type_vocab_size: NonNegativeInt = 0
    relative_attention: bool = False
    max_relative_positions: int = -1
    position_buckets: int = -1
    position_biased_input: bool = True
    pos_att_type: str | list[str] | None = None
    share_att_key: bool = False
    norm_rel_ebd: str = "none"
    conv_kernel_size: Literal[0] = 0
    legacy: bool = True
    pooler_dropout: Dropout = 0.0
    pooler_hidden_act: str = "gelu"
    pooler_hidden_size: Extent | None = None
    attention_head_size: Extent | None = None

    @model_validator(mode="after")
    def _distances_are_shared(self) -> Self:
        if self.relative_attention and not self.share_att_key:
            raise ValueError("share_att_key = False is not supported")
        if self.relative_attention and "layer_norm" not in self.norm_rel_ebd:
            raise ValueError(f"norm_rel_ebd = {self.norm_rel_ebd!r} is not supported")
        return self

    @property
    def num_distances(self) -> int | None:
        if not self.relative_attention:
            return None
        longest = self.max_relative_positions
        longest = longest if longest > 0 else self.max_position_embeddings
        return 2 * (self.position_buckets if self.position_buckets > 0 else longest)

    def embedding(self) -> EmbeddingBlock:
        return super().embedding().model_copy(update={
            "max_positions": self.max_positions if self.position_biased_input else None,
            "num_relative_positions": self.num_distances,
        })  # fmt: skip


class ModernBertConfig(EncoderConfig):
    """``model_type: modernbert``: rotary positions, windows, gated MLPs, norms before branches."""

    has_pooler: ClassVar[bool] = False
    renamed: ClassVar[dict[str, str]] = {"hidden_activation": "hidden_act"}
    max_position_embeddings: Extent = 8192
    type_vocab_size: Literal[0] = 0
    norm_eps: PositiveFloat = 1e-5
    norm_bias: bool = False
    hidden_dropout_prob: Dropout = 0.0
    attention_probs_dropout_prob: Dropout = 0.0
    attention_bias: bool = False
    mlp_bias: bool = False
    decoder_bias: bool = True
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    classifier_pooling: str = "cls"
    attention_dropout: Dropout = 0.0
    embedding_dropout: Dropout = 0.0
    mlp_dropout: Dropout = 0.0
    global_attn_every_n_layers: Extent = 3
    local_attention: Extent = 128
    global_rope_theta: PositiveFloat = 160_000.0
    local_rope_theta: PositiveFloat | None = 10_000.0
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    rope_parameters: dict[str, RopeConfig] | None = Field(default=None)
    deterministic_flash_attn: bool = False
    reference_compile: bool | None = None
    repad_logits_with_grad: bool = False
    sparse_prediction: bool = False
    sparse_pred_ignore_index: int = -100

    def norm(self) -> NormBlock:
        return layer_norm(self.hidden_size, self.norm_eps, bias=self.norm_bias)

    def embedding(self) -> EmbeddingBlock:
        return super().embedding().model_copy(update={"max_positions": None})

    def final_norm(self) -> NormBlock | None:
        return self.norm()

    def head(self) -> HeadBlock:
        return (
            super()
            .head()
            .model_copy(update={"bias": self.decoder_bias, "transform_bias": self.classifier_bias})
        )

    def layers(self) -> list[LayerBlock]:
        every = self.global_attn_every_n_layers
        kinds = self.layer_types or [
            "sliding_attention" if layer % every else "full_attention"
            for layer in range(self.num_hidden_layers)
        ]
        layers = [self._layer(kind == "sliding_attention") for kind in kinds]
        first = layers[0].branches[0].model_copy(update={"pre_norm": None})
        layers[0] = layers[0].model_copy(update={"branches": (first, layers[0].branches[1])})
        return layers

    def _layer(self, slides: bool) -> LayerBlock:
        base = (
            (self.local_rope_theta or self.global_rope_theta)
            if slides
            else (self.global_rope_theta)
        )
        attention = AttentionBlock(
            hidden_size=self.hidden_size, num_heads=self.num_attention_heads,
            num_kv_heads=self.num_attention_heads,
            head_dim=self.hidden_size // self.num_attention_heads, qkv_bias=self.attention_bias,
            output_bias=self.attention_bias, rotary=RotaryPositions(base=base), causal=False,
            sliding_window=self.local_attention if slides else None,
        )  # fmt: skip
        mlp = MlpBlock(
            hidden_size=self.hidden_size, ffn_size=self.intermediate_size,
            activation=activation(self.hidden_act), gated=True, bias=self.mlp_bias,
        )  # fmt: skip
        return LayerBlock(
            branches=tuple(ResidualBranch(body=b, pre_norm=self.norm()) for b in (attention, mlp))
        )
