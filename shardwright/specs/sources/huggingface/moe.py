"""Decoders with mixtures of experts, but those with latent attention."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveFloat

from shardwright.specs.blocks import EmbeddingBlock, HeadBlock
from shardwright.specs.bodies import BranchBody, MoeBlock
from shardwright.specs.ranges import Extent, HeadCount
from shardwright.specs.sources.huggingface.decoder import (
    LayerKind,
    Norms,
    NormType,
)
from shardwright.specs.sources.huggingface.fields import Dropout, activation, unless_one
from shardwright.specs.sources.huggingface.llama import WindowedConfig


class MoeConfig(WindowedConfig):
    """Experts in every layer, chosen by a softmax, unless the family says otherwise."""

    renamed: ClassVar[dict[str, str]] = {
        "num_local_experts": "num_experts", "n_routed_experts": "num_experts",
        "num_shared_experts": "n_shared_experts",
    }  # fmt: skip
    router: ClassVar[Literal["softmax", "sigmoid"]] = "softmax"
    router_bias: ClassVar[bool] = False
    correction_bias: ClassVar[bool] = False
    shared_gate: ClassVar[bool] = False

    num_experts: Extent
    num_experts_per_tok: Extent
    moe_intermediate_size: Extent | None = None
    n_shared_experts: NonNegativeInt | None = None
    every_layer_slides: ClassVar[bool] = True

    @property
    def expert_size(self) -> int:
        return self.moe_intermediate_size or self.ffn_size

    @property
    def shared_size(self) -> int | None:
        return self.expert_size * (self.n_shared_experts or 0) or None

    def feed_forwards(self) -> list[str]:
        return ["moe"] * self.num_hidden_layers

    def feed_forward(self, kind: LayerKind) -> BranchBody:
        return self.moe() if kind.feed_forward == "moe" else super().feed_forward(kind)

    def moe(self) -> MoeBlock:
        fields: dict[str, Any] = {
            "hidden_size": self.hidden_size, "expert_size": self.expert_size,
            "num_experts": self.num_experts, "top_k": self.num_experts_per_tok,
            "activation": activation(self.hidden_act), "gated": self.gated,
            "shared_size": self.shared_size, "shared_gate": self.shared_gate,
            "router": self.router, "router_bias": self.router_bias,
            "correction_bias": self.correction_bias, "bias": self.mlp_has_bias,
        }  # fmt: skip
        return MoeBlock(**fields | self.moe_fields())

    def moe_fields(self) -> dict[str, Any]:
        """What the family's experts have beyond the common fields."""
        return {}


class MixtralConfig(MoeConfig):
    """``model_type: mixtral``."""

    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    rope_base: ClassVar[float] = 1_000_000.0
    num_experts: Extent = 8
    num_experts_per_tok: Extent = 2
    num_key_value_heads: HeadCount | None = 8
    norm_eps: PositiveFloat = 1e-5
    max_position_embeddings: Extent = 131_072


class SparseStepConfig(MoeConfig):
    """Experts in every so many layers, but in listed ones."""

    decoder_sparse_step: Extent = 1
    mlp_only_layers: list[int] | None = None

    def feed_forwards(self) -> list[str]:
        dense = set(self.mlp_only_layers or ())
        return [
            "moe" if layer not in dense and (layer + 1) % self.decoder_sparse_step == 0 else "mlp"
            for layer in range(self.num_hidden_layers)
        ]


class Qwen2MoeConfig(SparseStepConfig):
    """``model_type: qwen2_moe``: a gated shared expert, biases on queries, keys and values."""

    shared_gate: ClassVar[bool] = True
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    qkv_bias: bool = True
    num_experts: Extent = 60
    num_experts_per_tok: Extent = 4
    moe_intermediate_size: Extent | None = 1408
    shared_expert_intermediate_size: Extent = 5632
    num_key_value_heads: HeadCount | None = 16
    max_position_embeddings: Extent = 32_768
    use_sliding_window: bool = False
    sliding_window: NonNegativeInt | None = 4096
    max_window_layers: NonNegativeInt = 28

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.qkv_bias, False

    @property
    def shared_size(self) -> int | None:
        return self.shared_expert_intermediate_size

    def windows(self) -> list[int | None]:
        return super().windows() if self.use_sliding_window else [None] * self.num_hidden_layers

    def slides(self) -> list[bool]:
        if self.layer_types is not None:
            return super().slides()
        return [layer >= self.max_window_layers for layer in range(self.num_hidden_layers)]


class Qwen3MoeConfig(SparseStepConfig):
    """``model_type: qwen3_moe``: norms over each head, no shared expert."""

    mlp_bias: Literal[False] = False
    num_experts: Extent = 128
    num_experts_per_tok: Extent = 8
    moe_intermediate_size: Extent | None = 768
    num_key_value_heads: HeadCount | None = 4
    max_position_embeddings: Extent = 32_768
    use_sliding_window: bool = False
    sliding_window: NonNegativeInt | None = 4096
    max_window_layers: NonNegativeInt = 28

    def windows(self) -> list[int | None]:
        return super().windows() if self.use_sliding_window else [None] * self.num_hidden_layers

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head"}


class OlmoeConfig(MoeConfig):
    """``model_type: olmoe``: norms over all queries and keys."""

    mlp_bias: Literal[False] = False
    num_experts: Extent = 64
    num_experts_per_tok: Extent = 8
    norm_eps: PositiveFloat = 1e-5
    max_position_embeddings: Extent = 4096
    clip_qkv: PositiveFloat | None = None

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "width", "clip": self.clip_qkv}


class PhiMoeConfig(MoeConfig):
    """``model_type: phimoe``: LayerNorm, biases in attention and head by choice."""

    norm_style: ClassVar[NormType] = "layer_norm"
    norm_bias: ClassVar[bool] = True
    rope_base: ClassVar[float] = 1_000_000.0
    mlp_bias: Literal[False] = False
    num_experts: Extent = 16
    num_experts_per_tok: Extent = 2
    num_key_value_heads: HeadCount | None = 8
    norm_eps: PositiveFloat = 1e-5
    max_position_embeddings: Extent = 131_072
    original_max_position_embeddings: Extent | None = None
    lm_head_bias: bool = False
    hidden_dropout: Dropout = 0.0

    def head(self) -> HeadBlock:
        return super().head().model_copy(update={"bias": self.lm_head_bias})


class GraniteMoeConfig(MoeConfig):
    """``model_type: granitemoe`` and ``granitemoeshared``: constants that scale the streams."""

    mlp_bias: Literal[False] = False
    num_experts: Extent = 8
    num_experts_per_tok: Extent = 2
    shared_intermediate_size: NonNegativeInt = 0
    embedding_multiplier: PositiveFloat = 1.0
    logits_scaling: PositiveFloat = 1.0
    residual_multiplier: PositiveFloat = 1.0
    attention_multiplier: PositiveFloat = 1.0

    @property
    def shared_size(self) -> int | None:
        return self.shared_intermediate_size or None

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


class GrokConfig(MoeConfig):
    """``model_type: grok-1``: norms before and after each branch, scores capped at 30."""

    norms: ClassVar[Norms] = "both"
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    hidden_act: str = "gelu"
    tie_word_embeddings: bool = True
    max_attn_value: PositiveFloat = 30.0
    attn_output_multiplier: PositiveFloat = 1.0
    embedding_multiplier_scale: PositiveFloat = 1.0
    output_multiplier_scale: PositiveFloat = 1.0

    def embedding(self) -> EmbeddingBlock:
        return super().embedding().model_copy(update={"scale": self.embedding_multiplier_scale})

    def head(self) -> HeadBlock:
        return super().head().model_copy(update={"scale": self.output_multiplier_scale})

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"softcap": self.max_attn_value, "scale": self.attn_output_multiplier}


class GptOssConfig(MoeConfig):
    """``model_type: gpt_oss``: sinks, windows in every other layer, biases everywhere."""

    router_bias: ClassVar[bool] = True
    pattern: ClassVar[int | None] = 2
    rope_base: ClassVar[float] = 150_000.0
    attention_bias: bool = True
    mlp_bias: Literal[False] = False
    num_experts: Extent = 128
    num_experts_per_tok: Extent = 4
    head_dim: Extent | None = 64
    num_key_value_heads: HeadCount | None = 8
    sliding_window: Extent | None = 128
    max_position_embeddings: Extent = 131_072
    norm_eps: PositiveFloat = 1e-5
    experts_per_token: Extent | None = None
    initial_context_length: Extent | None = None
    swiglu_limit: PositiveFloat | None = None
    swiglu_alpha: PositiveFloat | None = None

    def moe_fields(self) -> dict[str, Any]:
        return {"bias": True}

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"sinks": True}


class Llama4Config(MoeConfig):
    """``model_type: llama4_text``: chunks with rotary positions, every fourth layer without."""

    router: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"
    interleaved: ClassVar[bool] = True
    rope_base: ClassVar[float] = 500_000.0
    defaults: ClassVar[dict[str, int]] = {
        "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
        "num_hidden_layers": 48, "num_attention_heads": 40,
    }  # fmt: skip

    mlp_bias: Literal[False] = False
    num_experts: Extent = 16
    num_experts_per_tok: Extent = 1
    head_dim: Extent | None = 128
    num_key_value_heads: HeadCount | None = 8
    norm_eps: PositiveFloat = 1e-5
    max_position_embeddings: Extent = 131_072
    intermediate_size_mlp: Extent = 16384
    interleave_moe_layer_step: NonNegativeInt = 1
    moe_layers: list[int] | None = None
    use_qk_norm: bool = True
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Extent = 4
    attention_chunk_size: Extent | None = 8192
    attn_temperature_tuning: bool | int = True
    floor_scale: float = 8192
    attn_scale: float = 0.1
    layer_types: list[Any] | None = None
    for_llm_compressor: bool = False

    @property
    def shared_size(self) -> int | None:
        return self.ffn_size

    def layer_kinds(self) -> list[LayerKind]:
        period, step = self.no_rope_layer_interval, self.interleave_moe_layer_step
        rotates = self.no_rope_layers or [
            int((layer + 1) % period > 0) for layer in range(self.num_hidden_layers)
        ]
        experts = self.moe_layers
        if experts is None:
            experts = list(range(step - 1, self.num_hidden_layers, step)) if step else []
        return [
            LayerKind(
                window=self.attention_chunk_size if rotary else None,
                rotary="global" if rotary else "none",
                feed_forward="moe" if layer in experts else "mlp",
                size=None if layer in experts else self.intermediate_size_mlp,
            )
            for layer, rotary in enumerate(rotates)
        ]

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        normed = self.use_qk_norm and kind.rotary != "none"
        return {
            "qk_norm": "head" if normed else "none", "qk_norm_weight": not normed,
            "chunked": kind.window is not None,
        }  # fmt: skip


class MiniMaxM2Config(MoeConfig):
    """``model_type: minimax_m2``: sigmoid routing with a correction bias, norms over all heads."""

    router: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"
    correction_bias: ClassVar[bool] = True
    rope_base: ClassVar[float] = 5_000_000.0
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    num_experts: Extent = 256
    num_experts_per_tok: Extent = 8
    head_dim: Extent | None = 128
    num_key_value_heads: HeadCount | None = 8
    max_position_embeddings: Extent = 196_608
    rotary_dim: Extent | None = None
    use_qk_norm: Literal[True] = True
    qk_norm_type: Literal["per_layer"] = "per_layer"
    use_routing_bias: Literal[True] = True
    scoring_func: Literal["sigmoid"] = "sigmoid"
    shared_intermediate_size: Literal[0] = 0
    use_mtp: bool = False
    num_mtp_modules: NonNegativeInt = 0
    mtp_transformer_layers: Literal[1] = 1
    attn_type_list: list[Literal[1]] | None = None
    layernorm_full_attention_beta: float = 1.0
    layernorm_linear_attention_beta: float = 1.0
    layernorm_mlp_beta: float = 1.0
    shared_moe_mode: str = "sigmoid"

    @property
    def num_prediction_layers(self) -> int:
        return self.num_mtp_modules if self.use_mtp else 0

    @property
    def rotary_size(self) -> int | None:
        return self.rotary_dim

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "width"}
