"""Decoders of Llama's kind: rotary positions, RMSNorm before each branch, a gated MLP."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from shardwright.specs.blocks import EmbeddingBlock, HeadBlock
from shardwright.specs.bodies import BranchBody
from shardwright.specs.ranges import Extent, HeadCount
from shardwright.specs.sources.huggingface.decoder import (
    DecoderConfig,
    LayerKind,
    Norms,
    NormType,
)
from shardwright.specs.sources.huggingface.fields import Dropout, Rope, RopeConfig, unless_one

PlainLayerType = Literal["full_attention", "sliding_attention"]


class LlamaConfig(DecoderConfig):
    """``model_type: llama``: grouped queries, biases where the config asks for them."""

    defaults: ClassVar[dict[str, int]] = {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32,
    }  # fmt: skip

    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.attention_bias, self.attention_bias

    @property
    def mlp_has_bias(self) -> bool:
        return self.mlp_bias


class WindowedConfig(LlamaConfig):
    """Sliding windows, and which layers have one."""

    every_layer_slides: ClassVar[bool] = True
    """Where ``layer_types`` is absent and no pattern is given."""
    pattern: ClassVar[int | None] = None
    """Every so many layers one sees all tokens, the others a window."""

    sliding_window: Extent | None = None
    layer_types: list[PlainLayerType] | None = None
    sliding_window_pattern: Extent | None = None
    renamed: ClassVar[dict[str, str]] = {"_sliding_window_pattern": "sliding_window_pattern"}

    @model_validator(mode="after")
    def _layer_types_fit(self) -> Self:
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types has {len(self.layer_types)} entries for"
                f" num_hidden_layers = {self.num_hidden_layers}"
            )
        return self

    def windows(self) -> list[int | None]:
        if self.sliding_window is None:
            return [None] * self.num_hidden_layers
        return [self.sliding_window if slides else None for slides in self.slides()]

    def slides(self) -> list[bool]:
        """Of each layer, whether its tokens see a window."""
        if self.layer_types is not None:
            return [kind == "sliding_attention" for kind in self.layer_types]
        period = self.sliding_window_pattern or self.pattern
        if period is None:
            return [self.every_layer_slides] * self.num_hidden_layers
        return [(layer + 1) % period > 0 for layer in range(self.num_hidden_layers)]


class MistralConfig(WindowedConfig):
    """``model_type: mistral``: as Llama, with a sliding window and no biases."""

    defaults: ClassVar[dict[str, int]] = LlamaConfig.defaults | {
        "intermediate_size": 14336, "num_key_value_heads": 8,
    }  # fmt: skip

    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    num_key_value_heads: HeadCount | None = 8
    max_position_embeddings: Extent = 131_072
    sliding_window: Extent | None = 4096


class MinistralConfig(MistralConfig):
    """``model_type: ministral3``: scales queries beyond the first training length."""

    sliding_window: Extent | None = None


class PhiThreeConfig(WindowedConfig):
    """``model_type: phi3``: fused projections and a window in every layer."""

    attention_bias: Literal[False] = False
    max_position_embeddings: Extent = 4096
    norm_eps: PositiveFloat = 1e-5
    original_max_position_embeddings: Extent | None = None
    partial_rotary_factor: PositiveFloat | None = None
    resid_pdrop: Dropout = 0.0
    embd_pdrop: Dropout = 0.0

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor


class Qwen2Config(WindowedConfig):
    """``model_type: qwen2``: as Llama, with biases on queries, keys and values."""

    defaults: ClassVar[dict[str, int]] = {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    }  # fmt: skip

    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    num_key_value_heads: HeadCount | None = 32
    max_position_embeddings: Extent = 32_768
    use_sliding_window: bool = False
    sliding_window: NonNegativeInt | None = 4096
    max_window_layers: NonNegativeInt = 28
    use_mrope: Literal[False] = False

    @property
    def biases(self) -> tuple[bool, bool]:
        return True, False

    def windows(self) -> list[int | None]:
        return super().windows() if self.use_sliding_window else [None] * self.num_hidden_layers

    def slides(self) -> list[bool]:
        """The window opens from layer ``max_window_layers`` on, or where ``layer_types`` says."""
        if self.layer_types is not None:
            return super().slides()
        return [layer >= self.max_window_layers for layer in range(self.num_hidden_layers)]


class Qwen3Config(Qwen2Config):
    """``model_type: qwen3``: norms over each query and key head, biases by choice."""

    attention_bias: bool = False  # type: ignore[assignment]
    head_dim: Extent | None = 128

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.attention_bias, self.attention_bias

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head"}


class GemmaConfig(WindowedConfig):
    """``model_type: gemma``: GeGLU, scaled embeddings, scales of 1 + weight."""

    unit_offset: ClassVar[bool] = True
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_activation: str | None = None
    head_dim: Extent | None = 256
    num_key_value_heads: HeadCount | None = 16
    max_position_embeddings: Extent = 8192
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: PositiveFloat | None = None
    attn_logit_softcapping: PositiveFloat | None = None
    final_logit_softcapping: PositiveFloat | None = None

    def embedding(self) -> EmbeddingBlock:
        return super().embedding().model_copy(update={"scale": self.hidden_size**0.5})

    def head(self) -> HeadBlock:
        return super().head().model_copy(update={"softcap": self.final_logit_softcapping})

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        scalar = self.query_pre_attn_scalar
        return {
            "softcap": self.attn_logit_softcapping,
            "scale": None if scalar in (None, self.head_size) else scalar**-0.5,
        }


class Gemma2Config(GemmaConfig):
    """``model_type: gemma2``: windows in every other layer, norms before and after, soft-caps."""

    norms: ClassVar[Norms] = "both"
    pattern: ClassVar[int | None] = 2
    num_key_value_heads: HeadCount | None = 4
    sliding_window: Extent | None = 4096
    query_pre_attn_scalar: PositiveFloat | None = 256
    attn_logit_softcapping: PositiveFloat | None = 50.0
    final_logit_softcapping: PositiveFloat | None = 30.0


class Gemma3Config(Gemma2Config):
    """``model_type: gemma3_text``: five windows to one full layer, norms over heads, two bases."""

    defaults: ClassVar[dict[str, int]] = {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8,
    }  # fmt: skip
    pattern: ClassVar[int | None] = 6
    rope_base: ClassVar[float] = 1_000_000.0
    max_position_embeddings: Extent = 131_072
    attn_logit_softcapping: PositiveFloat | None = None
    final_logit_softcapping: PositiveFloat | None = None
    rope_local_base_freq: PositiveFloat = 10_000.0
    rope_parameters: Rope | dict[PlainLayerType, Rope] = Field(default=None, union_mode="smart")  # type: ignore[assignment]

    def layer_kinds(self) -> list[LayerKind]:
        return [LayerKind(window=w, rotary="local" if w else "global") for w in self.windows()]

    def rope(self, kind: LayerKind) -> RopeConfig:
        given = self.rope_parameters
        if isinstance(given, dict):
            name: PlainLayerType = (
                "sliding_attention" if kind.rotary == "local" else "full_attention"
            )
            return given.get(name) or RopeConfig()
        if kind.rotary == "local":
            return RopeConfig(rope_theta=self.rope_local_base_freq)
        return super().rope(kind)

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return super().attention_fields(kind) | {"qk_norm": "head"}


class OlmoConfig(LlamaConfig):
    """``model_type: olmo``: LayerNorm without parameters."""

    norm_style: ClassVar[NormType] = "layer_norm"
    norm_weight: ClassVar[bool] = False
    mlp_bias: Literal[False] = False
    norm_eps: PositiveFloat = 1e-5
    clip_qkv: PositiveFloat | None = None

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"clip": self.clip_qkv}


class Olmo2Config(WindowedConfig):
    """``model_type: olmo2``: norms after each branch and over all queries and keys."""

    norms: ClassVar[Norms] = "post"
    mlp_bias: Literal[False] = False
    norm_eps: PositiveFloat = 1e-5

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "width"}


class Olmo3Config(Olmo2Config):
    """``model_type: olmo3``: as OLMo 2, with three windows to one full layer."""

    pattern: ClassVar[int | None] = 4
    sliding_window: Extent | None = 4096
    rope_parameters: Rope | dict[PlainLayerType, Rope] = Field(default=None, union_mode="smart")  # type: ignore[assignment]
    rope_base: ClassVar[float] = 500_000.0

    def rope(self, kind: LayerKind) -> RopeConfig:
        given = self.rope_parameters
        if isinstance(given, dict):
            return given.get("sliding_attention" if kind.window else "full_attention") or (
                RopeConfig()
            )
        return super().rope(kind)


class Exaone4Config(Olmo2Config):
    """``model_type: exaone4``: norms after each branch and over heads, full layers unrotated."""

    pattern: ClassVar[int | None] = 4
    attention_bias: Literal[False] = False
    sliding_window: Extent | None = 4096
    sliding_window_pattern: Extent | str | None = 4  # type: ignore[assignment]

    def slides(self) -> list[bool]:
        pattern = self.sliding_window_pattern
        if self.layer_types is None and isinstance(pattern, str):
            letters = pattern * self.num_hidden_layers
            last = self.num_hidden_layers - 1
            return [letters[n] == "L" and n != last for n in range(self.num_hidden_layers)]
        return super().slides()

    def layer_kinds(self) -> list[LayerKind]:
        return [
            LayerKind(
                window=window, rotary="none" if self.sliding_window and not window else "global"
            )
            for window in self.windows()
        ]

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head"}


class SmolLm3Config(WindowedConfig):
    """``model_type: smollm3``: every fourth layer without rotary positions."""

    every_layer_slides: ClassVar[bool] = False
    rope_base: ClassVar[float] = 2_000_000.0
    num_key_value_heads: HeadCount | None = 4
    max_position_embeddings: Extent = 32_768
    tie_word_embeddings: bool = True
    use_sliding_window: bool = False
    max_window_layers: NonNegativeInt | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Extent = 4

    def layer_kinds(self) -> list[LayerKind]:
        period = self.no_rope_layer_interval
        flags = self.no_rope_layers or [
            int((layer + 1) % period > 0) for layer in range(self.num_hidden_layers)
        ]
        return [
            LayerKind(window=window, rotary="global" if rotates else "none")
            for window, rotates in zip(self.windows(), flags, strict=True)
        ]


class GraniteConfig(LlamaConfig):
    """``model_type: granite``: constants that scale embeddings, residuals, scores and logits."""

    embedding_multiplier: PositiveFloat = 1.0
    logits_scaling: PositiveFloat = 1.0
    residual_multiplier: PositiveFloat = 1.0
    attention_multiplier: PositiveFloat = 1.0

    @property
    def branch_scale(self) -> float | None:
        return None if self.residual_multiplier == 1 else self.residual_multiplier

    def embedding(self) -> EmbeddingBlock:
        scale = unless_one(self.embedding_multiplier)
        return super().embedding().model_copy(update={"scale": scale})

    def head(self) -> HeadBlock:
        return super().head().model_copy(update={"scale": unless_one(1 / self.logits_scaling)})

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"scale": self.attention_multiplier}


class MiniCpmConfig(LlamaConfig):
    """``model_type: minicpm``: scaled embeddings, residuals and logits, a tied head."""

    tie_word_embeddings: bool = True
    scale_emb: PositiveFloat = 1
    scale_depth: PositiveFloat = 1.0
    dim_model_base: Extent = 1

    @property
    def branch_scale(self) -> float | None:
        return float(self.scale_depth / self.num_hidden_layers**0.5)

    def embedding(self) -> EmbeddingBlock:
        return super().embedding().model_copy(update={"scale": float(self.scale_emb)})

    def head(self) -> HeadBlock:
        scale = self.dim_model_base / self.hidden_size
        return super().head().model_copy(update={"scale": scale})


class CohereConfig(LlamaConfig):
    """``model_type: cohere``: one LayerNorm without bias before parallel branches."""

    norm_style: ClassVar[NormType] = "layer_norm"
    norms: ClassVar[Norms] = "shared"
    interleaved: ClassVar[bool] = True
    rope_base: ClassVar[float] = 500_000.0
    mlp_bias: Literal[False] = False
    max_position_embeddings: Extent = 8192
    model_max_length: Extent | None = None
    norm_eps: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    logit_scale: PositiveFloat = 0.0625
    use_qk_norm: bool = False

    def head(self) -> HeadBlock:
        return super().head().model_copy(update={"scale": self.logit_scale})

    def attention(self, kind: LayerKind) -> BranchBody:
        body = super().attention(kind)
        return body.model_copy(update={"qk_norm": "width"}) if self.use_qk_norm else body


class Cohere2Config(CohereConfig, WindowedConfig):
    """``model_type: cohere2``: three windows with rotary positions to one full layer without."""

    pattern: ClassVar[int | None] = 4
    rope_base: ClassVar[float] = 10_000.0
    sliding_window: Extent | None = 4096
    use_gated_activation: Literal[True] = True
    use_parallel_block: Literal[True] = True
    use_parallel_embedding: bool = False
    rotary_pct: PositiveFloat = 1.0
    layer_switch: Extent | None = None
    use_embedding_sharing: Literal[True] = True
    order_of_interleaved_layers: str | None = None
    rope_scaling: Rope = None

    def slides(self) -> list[bool]:
        if self.layer_types is None and self.layer_switch:
            return [(n + 1) % self.layer_switch > 0 for n in range(self.num_hidden_layers)]
        return super().slides()

    def layer_kinds(self) -> list[LayerKind]:
        return [LayerKind(window=w, rotary="global" if w else "none") for w in self.windows()]


class GlmConfig(LlamaConfig):
    """``model_type: glm``: half of each head rotates, biases on queries, keys and values."""

    interleaved: ClassVar[bool] = True
    mlp_bias: Literal[False] = False
    attention_bias: bool = True
    head_dim: Extent | None = 128
    num_key_value_heads: HeadCount | None = 2
    max_position_embeddings: Extent = 131_072
    norm_eps: PositiveFloat = 1.5625e-07
    partial_rotary_factor: PositiveFloat | None = None

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.attention_bias, False

    default_fraction: ClassVar[float] = 0.5

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor


class Glm4Config(GlmConfig):
    """``model_type: glm4``: as GLM, with a norm after each branch as well."""

    norms: ClassVar[Norms] = "both"
