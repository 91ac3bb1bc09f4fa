"""Encoder-decoders: T5 and BART, as two towers and the edges between them."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import PositiveFloat, model_validator

from shardwright.specs.blocks import (
    Block,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    ResidualBranch,
)
from shardwright.specs.bodies import AttentionBlock, MlpBlock, NormBlock
from shardwright.specs.model import Edge, ModelSpec, Tower
from shardwright.specs.ranges import Extent, HeadCount, LayerCount
from shardwright.specs.sources.huggingface.decoder import tied_edge
from shardwright.specs.sources.huggingface.encoders import layer_norm
from shardwright.specs.sources.huggingface.fields import Config, Dropout, ModelHead, activation


class Seq2SeqConfig(Config):
    """Two towers over one vocabulary."""

    architectures: ClassVar[tuple[str, ...]] = ("ForConditionalGeneration", "Model")

    vocab_size: Extent
    hidden_size: Extent
    tie_word_embeddings: bool = True

    renamed: ClassVar[dict[str, str]] = {"d_model": "hidden_size"}

    def edges(self) -> tuple[Edge, ...]:
        shape = (self.vocab_size, self.hidden_size)
        shared = Edge(
            kind="tied_weight", producer="decoder/embedding", consumer="encoder/embedding",
            shape=shape,
        )  # fmt: skip
        memory = Edge(
            kind="hidden", producer="encoder/norm", consumer="decoder/layer",
            shape=(self.hidden_size,),
        )  # fmt: skip
        tied = (tied_edge(*shape),) if self.tie_word_embeddings else ()
        return (shared, memory, *tied)

    def build(
        self, name: str, family: str, source: str, towers: tuple[Tower, Tower], longest: int | None
    ) -> ModelSpec:
        return ModelSpec(
            name=name, family=family, towers=towers, edges=self.edges(), max_seq_len=longest,
            initializer_range=self.initializer_range, source=source,
        )  # fmt: skip


class T5Config(Seq2SeqConfig):
    """``model_type: t5``, ``mt5``: biases of distances held by each tower's first layer."""

    every_layer_has_buckets: ClassVar[bool] = False
    renamed: ClassVar[dict[str, str]] = {"dropout": "dropout_rate"}
    d_kv: Extent = 64
    d_ff: Extent
    num_layers: LayerCount
    num_decoder_layers: LayerCount | None = None
    num_heads: HeadCount
    relative_attention_num_buckets: Extent = 32
    relative_attention_max_distance: Extent = 128
    layer_norm_epsilon: PositiveFloat = 1e-6
    feed_forward_proj: str = "relu"
    dense_act_fn: str | None = None
    is_gated_act: bool | None = None
    dropout_rate: Dropout = 0.1
    n_positions: Extent | None = None
    is_encoder_decoder: Literal[True] = True
    scale_decoder_outputs: bool | None = None

    @model_validator(mode="after")
    def _activation_is_known(self) -> Self:
        activation(self.act)
        return self

    @property
    def act(self) -> str:
        name = self.feed_forward_proj.removeprefix("gated-")
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else name

    def norm(self) -> NormBlock:
        return NormBlock(
            type="rms_norm", hidden_size=self.hidden_size, bias=False,
            epsilon=self.layer_norm_epsilon,
        )  # fmt: skip

    def attention(self, *, causal: bool, cross: bool, buckets: bool) -> AttentionBlock:
        return AttentionBlock(
            hidden_size=self.hidden_size, num_heads=self.num_heads, num_kv_heads=self.num_heads,
            head_dim=self.d_kv, qkv_bias=False, output_bias=False, rotary=None, causal=causal,
            cross=cross, scale=1.0,
            relative_buckets=self.relative_attention_num_buckets if buckets else None,
        )  # fmt: skip

    def layers(self, count: int, *, decoder: bool) -> list[LayerBlock]:
        mlp = MlpBlock(
            hidden_size=self.hidden_size, ffn_size=self.d_ff, activation=activation(self.act),
            gated=self.feed_forward_proj.startswith("gated-"), bias=False,
        )  # fmt: skip
        cross = self.attention(causal=False, cross=True, buckets=False)
        found = []
        every = self.every_layer_has_buckets
        for buckets, repeat in [(True, count)] if every else [(True, 1), (False, count - 1)]:
            attention = self.attention(causal=decoder, cross=False, buckets=buckets)
            bodies = [attention, *([cross] if decoder else []), mlp]
            branches = tuple(ResidualBranch(body=b, pre_norm=self.norm()) for b in bodies)
            if repeat:
                found.append(LayerBlock(branches=branches, repeat=repeat))
        return found

    def tower(self, name: str, count: int, *, decoder: bool) -> Tower:
        embedding = EmbeddingBlock(
            vocab_size=self.vocab_size, hidden_size=self.hidden_size, shared=not decoder
        )
        blocks: list[Block] = [embedding, *self.layers(count, decoder=decoder), self.norm()]
        if decoder:
            blocks.append(HeadBlock(
                vocab_size=self.vocab_size, hidden_size=self.hidden_size,
                tied=self.tie_word_embeddings,
                scale=self.hidden_size**-0.5 if self.tie_word_embeddings else None,
            ))  # fmt: skip
        return Tower(name=name, blocks=tuple(blocks))

    def to_spec(self, name: str, family: str, source: str, head: ModelHead | None) -> ModelSpec:
        encoder = self.tower("encoder", self.num_layers, decoder=False)
        count = self.num_decoder_layers or self.num_layers
        decoder = self.tower("decoder", count, decoder=True)
        return self.build(name, family, source, (encoder, decoder), None)


class Umt5Config(T5Config):
    """``model_type: umt5``: every layer holds biases of distances."""

    every_layer_has_buckets: ClassVar[bool] = True


class BartConfig(Seq2SeqConfig):
    """``model_type: bart``: learned positions, a LayerNorm after each addition."""

    norm_first: ClassVar[bool] = False
    renamed: ClassVar[dict[str, str]] = {"init_std": "initializer_range"}
    max_position_embeddings: Extent = 1024
    encoder_layers: LayerCount
    encoder_ffn_dim: Extent
    encoder_attention_heads: HeadCount
    decoder_layers: LayerCount
    decoder_ffn_dim: Extent
    decoder_attention_heads: HeadCount
    activation_function: str = "gelu"
    num_hidden_layers: LayerCount | None = None
    scale_embedding: bool = False
    is_encoder_decoder: Literal[True] = True
    dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.0
    activation_dropout: Dropout = 0.0
    classif_dropout: Dropout = 0.0
    encoder_layerdrop: Dropout = 0.0
    decoder_layerdrop: Dropout = 0.0
    add_bias_logits: Literal[False] = False
    add_final_layer_norm: bool = False
    normalize_before: bool = False
    normalize_embedding: Literal[True] = True
    static_position_embeddings: Literal[False] = False
    force_bos_token_to_be_generated: bool = False
    extra_pos_embeddings: int = 2
    gradient_checkpointing: bool = False
    no_repeat_ngram_size: int = 0
    early_stopping: bool = False

    @model_validator(mode="after")
    def _activation_is_known(self) -> Self:
        activation(self.activation_function)
        return self

    def norm(self) -> NormBlock:
        return layer_norm(self.hidden_size, 1e-5)

    def attention(self, heads: int, *, causal: bool, cross: bool = False) -> AttentionBlock:
        return AttentionBlock(
            hidden_size=self.hidden_size, num_heads=heads, num_kv_heads=heads,
            head_dim=self.hidden_size // heads, qkv_bias=True, output_bias=True, rotary=None,
            causal=causal, cross=cross,
        )  # fmt: skip

    def branch(self, body: AttentionBlock | MlpBlock) -> ResidualBranch:
        if self.norm_first:
            return ResidualBranch(body=body, pre_norm=self.norm())
        return ResidualBranch(body=body, pre_norm=None, post_norm=self.norm(), norm_after_add=True)

    def tower(self, name: str, *, decoder: bool) -> Tower:
        count = self.decoder_layers if decoder else self.encoder_layers
        heads = self.decoder_attention_heads if decoder else self.encoder_attention_heads
        mlp = MlpBlock(
            hidden_size=self.hidden_size,
            ffn_size=self.decoder_ffn_dim if decoder else self.encoder_ffn_dim,
            activation=activation(self.activation_function), gated=False, bias=True,
        )  # fmt: skip
        crosses = [self.attention(heads, causal=False, cross=True)] if decoder else []
        bodies: list[AttentionBlock | MlpBlock] = [
            self.attention(heads, causal=decoder), *crosses, mlp,
        ]  # fmt: skip
        embedding = EmbeddingBlock(
            vocab_size=self.vocab_size, hidden_size=self.hidden_size, shared=not decoder,
            max_positions=self.max_position_embeddings + 2, norm=self.norm(),
            scale=self.hidden_size**0.5 if self.scale_embedding else None,
        )  # fmt: skip
        layer = LayerBlock(branches=tuple(self.branch(body) for body in bodies), repeat=count)
        blocks: list[Block] = [embedding, layer, *([self.norm()] if self.norm_first else [])]
        if decoder:
            blocks.append(HeadBlock(
                vocab_size=self.vocab_size, hidden_size=self.hidden_size,
                tied=self.tie_word_embeddings,
            ))  # fmt: skip
        return Tower(name=name, blocks=tuple(blocks))

    def to_spec(self, name: str, family: str, source: str, head: ModelHead | None) -> ModelSpec:
        towers = (self.tower("encoder", decoder=False), self.tower("decoder", decoder=True))
        return self.build(name, family, source, towers, self.max_position_embeddings)


class MBartConfig(BartConfig):
    """``model_type: mbart``: as BART, with norms before each branch and at the end."""

    norm_first: ClassVar[bool] = True
