"""The record that all decoders share: residual layers between an embedding and a head.

A family states in class variables what sets it apart, and overrides the few functions that it must:
`layer_kinds` says which layers there are, `mixer` and `feed_forward` what is in one.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import PositiveFloat, model_validator

from shardwright.specs.blocks import (
    Block,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    PredictionBlock,
    ResidualBranch,
)
from shardwright.specs.bodies import (
    AttentionBlock,
    BranchBody,
    MlpBlock,
    NormBlock,
    RotaryPositions,
)
from shardwright.specs.model import Edge, ModelSpec, Tower
from shardwright.specs.ranges import Extent, HeadCount, LayerCount
from shardwright.specs.sources.huggingface.fields import (
    Config,
    Dropout,
    ModelHead,
    Rope,
    RopeConfig,
    activation,
)

NormType = Literal["rms_norm", "layer_norm"]

Norms = Literal["pre", "post", "both", "parallel", "shared"]
"""Of a layer's branches: before each; after each; both; parallel branches with norms of their own,
or with one."""


class LayerKind(NamedTuple):
    """What tells the layers of one model apart."""

    mixer: str | None = "attention"
    feed_forward: str | None = "mlp"
    window: int | None = None
    rotary: Literal["global", "local", "none"] = "global"
    size: int | None = None
    """ffn width, where layers differ."""
    heads: int | None = None
    """kv heads, where layers differ."""


class DecoderConfig(Config):
    """Fields under Llama's names; `renamed` maps those of other families."""

    norm_style: ClassVar[NormType] = "rms_norm"
    norm_bias: ClassVar[bool] = False
    norm_weight: ClassVar[bool] = True
    unit_offset: ClassVar[bool] = False
    norms: ClassVar[Norms] = "pre"
    gated: ClassVar[bool] = True
    learned_positions: ClassVar[bool] = False
    interleaved: ClassVar[bool] = False

    vocab_size: Extent
    hidden_size: Extent
    intermediate_size: Extent | None = None
    num_hidden_layers: LayerCount
    num_attention_heads: HeadCount
    num_key_value_heads: HeadCount | None = None
    head_dim: Extent | None = None
    hidden_act: str = "silu"
    max_position_embeddings: Extent = 2048
    norm_eps: PositiveFloat = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: PositiveFloat | None = None
    rope_scaling: Rope = None
    rope_parameters: Rope = None
    attention_dropout: Dropout = 0.0
    renamed: ClassVar[dict[str, str]] = {
        "rms_norm_eps": "norm_eps",
        "layer_norm_eps": "norm_eps",
        "layer_norm_epsilon": "norm_eps",
    }

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        heads, kv_heads = self.num_attention_heads, self.kv_heads
        if heads % kv_heads:
            raise ValueError(
                f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads"
                f" ({kv_heads})"
            )
        if self.divides_heads and self.head_dim is None and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads"
                f" ({heads})" + (", and no head_dim is given" if self.states_head_dim else "")
            )
        if self.rotates and self.head_size % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {self.head_size}")
        activation(self.hidden_act)
        return self

    states_head_dim: ClassVar[bool] = True
    divides_heads: ClassVar[bool] = True
    """Whether a head is as wide as its share of ``hidden_size`` where nothing else is stated."""
    rotates: ClassVar[bool] = True

    @property
    def kv_heads(self) -> int:
        """As many as query heads where the config does not say."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def ffn_size(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def biases(self) -> tuple[bool, bool]:
        """Whether query, key and value projections have biases, and whether the output has."""
        return False, False

    @property
    def mlp_has_bias(self) -> bool:
        return False

    @property
    def norm_kinds(self) -> Norms:
        """As `norms`, where the config decides it."""
        return self.norms

    # Layers

    def layer_kinds(self) -> list[LayerKind]:
        """Of every layer, what it is."""
        return [
            LayerKind(window=window, feed_forward=feed_forward)
            for window, feed_forward in zip(self.windows(), self.feed_forwards(), strict=True)
        ]

    def windows(self) -> list[int | None]:
        """Of each layer, how many tokens one sees."""
        return [None] * self.num_hidden_layers

    def feed_forwards(self) -> list[str]:
        """Of each layer, ``mlp`` or ``moe``."""
        return ["mlp"] * self.num_hidden_layers

    def layer(self, kind: LayerKind, repeat: int = 1) -> LayerBlock:
        """``repeat`` equal layers."""
        bodies = [
            *([self.mixer(kind)] if kind.mixer else []),
            *([self.feed_forward(kind)] if kind.feed_forward else []),
        ]
        norms = self.norm_kinds
        branches = tuple(
            ResidualBranch(
                body=body,
                pre_norm=None if norms == "post" or (norms == "shared" and index) else self.norm(),
                post_norm=self.norm() if norms in ("post", "both") else None,
                scale=self.branch_scale,
            )
            for index, body in enumerate(bodies)
        )
        parallel = norms in ("parallel", "shared")
        return LayerBlock(
            branches=branches, repeat=repeat, parallel=parallel, shared_norm=norms == "shared"
        )

    @property
    def branch_scale(self) -> float | None:
        return None

    def mixer(self, kind: LayerKind) -> BranchBody:
        return self.attention(kind)

    def attention(self, kind: LayerKind) -> BranchBody:
        qkv_bias, output_bias = self.biases
        fields: dict[str, Any] = {
            "hidden_size": self.hidden_size, "num_heads": self.num_attention_heads,
            "num_kv_heads": kind.heads or self.kv_heads, "head_dim": self.head_size,
            "qkv_bias": qkv_bias, "output_bias": output_bias, "rotary": self.rotary(kind),
            "sliding_window": kind.window,
        }  # fmt: skip
        return AttentionBlock(**fields | self.attention_fields(kind))

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        """What the family's attention has beyond the common fields."""
        return {}

    def rotary(self, kind: LayerKind) -> RotaryPositions | None:
        if not self.rotates or kind.rotary == "none":
            return None
        rope = self.rope(kind)
        original = rope.original_max_position_embeddings or self.max_position_embeddings
        scaled = rope.scaling == "llama3"
        fraction = self.rotary_fraction or rope.partial_rotary_factor or self.default_fraction
        size = self.rotary_size or int(self.head_size * fraction)
        return RotaryPositions(
            base=rope.rope_theta or self.rope_theta or self.rope_base,
            size=None if size == self.head_size else size,
            interleaved=self.interleaved,
            scaling=rope.scaling,
            factor=1.0 if rope.scaling == "none" else rope.factor,
            low_freq_factor=rope.low_freq_factor if scaled else 1.0,
            high_freq_factor=rope.high_freq_factor if scaled else 4.0,
            original_max_positions=original,
        )

    rope_base: ClassVar[float] = 10_000.0

    default_fraction: ClassVar[float] = 1.0
    """How much of a head rotates where the config does not say."""

    @property
    def rotary_fraction(self) -> float | None:
        """How much of a head rotates, by a field of its own."""
        return None

    @property
    def rotary_size(self) -> int | None:
        """How many dimensions of a head rotate."""
        return None

    def rope(self, kind: LayerKind) -> RopeConfig:
        """The rotary settings of one kind of layer."""
        return self.rope_parameters or self.rope_scaling or RopeConfig()

    def feed_forward(self, kind: LayerKind) -> BranchBody:
        return self.mlp(kind.size or self.ffn_size)

    def mlp(self, ffn_size: int) -> MlpBlock:
        return MlpBlock(
            hidden_size=self.hidden_size, ffn_size=ffn_size,
            activation=activation(self.hidden_act), gated=self.gated, bias=self.mlp_has_bias,
        )  # fmt: skip

    def norm(self) -> NormBlock:
        return NormBlock(
            type=self.norm_style, hidden_size=self.hidden_size, bias=self.norm_bias,
            epsilon=self.norm_eps, weight=self.norm_weight, unit_offset=self.unit_offset,
        )  # fmt: skip

    # Ends

    @property
    def max_positions(self) -> int | None:
        return self.max_position_embeddings

    @property
    def num_prediction_layers(self) -> int:
        """Further layers that multi-token prediction uses."""
        return 0

    def embedding(self) -> EmbeddingBlock:
        return EmbeddingBlock(
            vocab_size=self.vocab_size, hidden_size=self.hidden_size,
            max_positions=self.max_position_embeddings if self.learned_positions else None,
        )  # fmt: skip

    def head(self) -> HeadBlock:
        return HeadBlock(
            vocab_size=self.vocab_size, hidden_size=self.hidden_size, tied=self.tie_word_embeddings
        )

    def final_norm(self) -> NormBlock | None:
        return self.norm()

    def blocks(self) -> list[Block]:
        kinds = self.layer_kinds()
        layers = [self.layer(kind, len(list(equal))) for kind, equal in itertools.groupby(kinds)]
        norm = self.final_norm()
        blocks: list[Block] = [self.embedding(), *layers, *([norm] if norm else []), self.head()]
        if self.num_prediction_layers:
            blocks.append(PredictionBlock(
                layer=self.layer(kinds[-1]), hidden_size=self.hidden_size, norm=self.norm(),
                depth=self.num_prediction_layers,
            ))  # fmt: skip
        return blocks

    def tower(self) -> Tower:
        return Tower(name="decoder", blocks=tuple(self.blocks()))

    def edges(self) -> tuple[Edge, ...]:
        if not self.tie_word_embeddings:
            return ()
        embedding = self.embedding()
        return (tied_edge(embedding.vocab_size, embedding.table_size or embedding.hidden_size),)

    def to_spec(self, name: str, family: str, source: str, head: ModelHead | None) -> ModelSpec:
        return ModelSpec(
            name=name, family=family, towers=(self.tower(),), edges=self.edges(),
            max_seq_len=self.max_positions, initializer_range=self.initializer_range,
            source=source,
        )  # fmt: skip


def tied_edge(vocab_size: int, width: int, tower: str = "decoder") -> Edge:
    """The head uses the embedding's table."""
    return Edge(
        kind="tied_weight", producer=f"{tower}/embedding", consumer=f"{tower}/head",
        shape=(vocab_size, width),
    )  # fmt: skip
