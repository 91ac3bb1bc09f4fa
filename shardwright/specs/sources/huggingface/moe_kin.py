"""More mixtures of experts: GLM-4.5, dots.llm1, ERNIE 4.5, Hunyuan, DBRX."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, model_validator

from shardwright.specs.bodies import BranchBody, MoeBlock
from shardwright.specs.ranges import Extent, HeadCount
from shardwright.specs.sources.huggingface.decoder import DecoderConfig, LayerKind, NormType
from shardwright.specs.sources.huggingface.fields import Dropout, RopeConfig
from shardwright.specs.sources.huggingface.llama_kin import Ernie45Config, HunyuanConfig
from shardwright.specs.sources.huggingface.moe import MoeConfig


class Glm4MoeConfig(MoeConfig):
    """``model_type: glm4_moe``: a dense start, sigmoid routing, one prediction layer."""

    router: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"
    correction_bias: ClassVar[bool] = True
    mlp_bias: Literal[False] = False
    num_experts: Extent = 128
    num_experts_per_tok: Extent = 8
    moe_intermediate_size: Extent | None = 1408
    n_shared_experts: NonNegativeInt | None = 1
    num_key_value_heads: HeadCount | None = 8
    max_position_embeddings: Extent = 131_072
    norm_eps: PositiveFloat = 1e-5
    first_k_dense_replace: NonNegativeInt = 1
    use_qk_norm: bool = False
    n_group: Extent = 1
    topk_group: Extent = 1
    num_nextn_predict_layers: NonNegativeInt = 0
    partial_rotary_factor: PositiveFloat | None = None

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.attention_bias, False

    default_fraction: ClassVar[float] = 0.5

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor

    @property
    def num_prediction_layers(self) -> int:
        return self.num_nextn_predict_layers

    def feed_forwards(self) -> list[str]:
        dense = self.first_k_dense_replace
        return ["mlp" if layer < dense else "moe" for layer in range(self.num_hidden_layers)]

    def moe_fields(self) -> dict[str, Any]:
        return {"num_groups": self.n_group, "top_groups": self.topk_group}

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head" if self.use_qk_norm else "none"}


class Dots1Config(Glm4MoeConfig):
    """``model_type: dots1``: as GLM-4.5, with norms over each head and full rotation."""

    use_qk_norm: bool = True
    first_k_dense_replace: NonNegativeInt = 0
    max_window_layers: NonNegativeInt | None = None
    use_sliding_window: bool = False
    sliding_window: Extent | None = 4096
    scoring_func: str = "noaux_tc"
    topk_method: str | None = None
    moe_layer_freq: Literal[1] = 1
    every_layer_slides: ClassVar[bool] = False

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.attention_bias, self.attention_bias

    @property
    def rotary_fraction(self) -> float | None:
        return None


class Ernie45MoeConfig(Ernie45Config, MoeConfig):
    """``model_type: ernie4_5_moe``: shared experts, a dense start, a correction bias."""

    correction_bias: ClassVar[bool] = True
    renamed: ClassVar[dict[str, str]] = {
        "moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok",
        "moe_num_shared_experts": "n_shared_experts",
    }  # fmt: skip
    head_dim: Extent | None = None
    num_experts: Extent = 64
    num_experts_per_tok: Extent = 6
    n_shared_experts: NonNegativeInt | None = 2
    moe_intermediate_size: Extent | None = 1536
    num_key_value_heads: HeadCount | None = 4
    moe_layer_start_index: NonNegativeInt = 1
    moe_layer_end_index: int = -1
    moe_layer_interval: Extent = 1
    moe_capacity: list[float] | None = None
    moe_gate: str = "topk"
    moe_use_aux_free: Literal[True] = True

    def feed_forwards(self) -> list[str]:
        end = self.moe_layer_end_index
        last = self.num_hidden_layers - 1 if end == -1 else end
        return [
            "moe"
            if (layer + 1) % self.moe_layer_interval == 0
            and self.moe_layer_start_index <= layer <= last
            else "mlp"
            for layer in range(self.num_hidden_layers)
        ]

    def feed_forward(self, kind: LayerKind) -> BranchBody:
        return self.moe() if kind.feed_forward == "moe" else self.mlp(self.ffn_size)


class HunyuanMoeConfig(HunyuanConfig, MoeConfig):
    """``model_type: hunyuan_v1_moe``: one shared expert as wide as the routed ones."""

    renamed: ClassVar[dict[str, str]] = {
        "moe_topk": "num_experts_per_tok", "num_shared_expert": "n_shared_experts",
    }  # fmt: skip
    num_experts: Extent = 1
    num_experts_per_tok: Extent | list[Extent] = 1  # type: ignore[assignment]
    n_shared_experts: NonNegativeInt | list[Extent] | None = 1  # type: ignore[assignment]
    moe_intermediate_size: Extent | list[Extent] | None = None  # type: ignore[assignment]
    moe_drop_tokens: bool = False
    moe_layer_num_skipped: Literal[0] = 0
    moe_random_routing_dropped_token: bool = False
    moe_replace_token_id: int | None = None
    use_mixed_mlp_moe: bool = True
    capacity_factor: float = 1.0
    norm_topk_prob: bool = True

    @model_validator(mode="after")
    def _layers_are_equal(self) -> Self:
        for field in ("num_experts_per_tok", "n_shared_experts", "moe_intermediate_size"):
            value = getattr(self, field)
            if isinstance(value, list) and len(set(value)) != 1:
                raise ValueError(f"{field} = {value} differs between layers")
        return self

    @property
    def shared_size(self) -> int | None:
        return self.expert_size * (_one(self.n_shared_experts) or 0) or None

    @property
    def expert_size(self) -> int:
        return _one(self.moe_intermediate_size) or self.ffn_size

    def feed_forward(self, kind: LayerKind) -> BranchBody:
        return self.moe()

    def moe_fields(self) -> dict[str, Any]:
        return {"top_k": _one(self.num_experts_per_tok)}


def _one(value: Any) -> Any:
    """The value of every layer."""
    return value[0] if isinstance(value, list) else value


class DbrxAttention(BaseModel):
    """``attn_config`` of a DBRX."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    clip_qkv: PositiveFloat | None = None
    kv_n_heads: HeadCount = 1
    rope_theta: PositiveFloat = 10_000.0


class DbrxExperts(BaseModel):
    """``ffn_config`` of a DBRX."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    ffn_hidden_size: Extent = 3584
    moe_num_experts: Extent = 4
    moe_top_k: Extent = 1


class DbrxConfig(DecoderConfig):
    """``model_type: dbrx``: LayerNorm without bias, clipped queries, keys and values."""

    renamed: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size", "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads", "max_seq_len": "max_position_embeddings",
    }  # fmt: skip
    norm_style: ClassVar[NormType] = "layer_norm"
    norm_eps: PositiveFloat = 1e-5
    attn_config: DbrxAttention = Field(default_factory=DbrxAttention)
    ffn_config: DbrxExperts = Field(default_factory=DbrxExperts)
    emb_pdrop: Dropout = 0.0
    resid_pdrop: Dropout = 0.0

    @property
    def kv_heads(self) -> int:
        return self.attn_config.kv_n_heads

    def rope(self, kind: LayerKind) -> RopeConfig:
        return self.rope_parameters or RopeConfig(rope_theta=self.attn_config.rope_theta)

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"clip": self.attn_config.clip_qkv}

    def feed_forward(self, kind: LayerKind) -> BranchBody:
        experts = self.ffn_config
        return MoeBlock(
            hidden_size=self.hidden_size, expert_size=experts.ffn_hidden_size,
            num_experts=experts.moe_num_experts, top_k=experts.moe_top_k, activation="silu",
            gated=True,
        )  # fmt: skip
