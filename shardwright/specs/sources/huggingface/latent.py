"""Decoders with multi-head latent attention: DeepSeek-V2, V3, V3.2 and those built like them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from shardwright.specs.bodies import BranchBody, LatentAttentionBlock, SparseIndexer
from shardwright.specs.ranges import Extent, HeadCount
from shardwright.specs.sources.huggingface.decoder import LayerKind
from shardwright.specs.sources.huggingface.moe import MoeConfig


class DeepseekMoeConfig(MoeConfig):
    """``model_type: deepseek``: shared experts and a dense start, with ordinary attention."""

    mlp_bias: Literal[False] = False
    num_experts: Extent = 64
    num_experts_per_tok: Extent = 6
    n_shared_experts: NonNegativeInt | None = 2
    moe_intermediate_size: Extent | None = 1407
    first_k_dense_replace: NonNegativeInt = 0
    moe_layer_freq: Extent = 1
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"

    def feed_forwards(self) -> list[str]:
        if self.mlp_layer_types is not None:
            return ["moe" if kind == "sparse" else "mlp" for kind in self.mlp_layer_types]
        return [
            "moe"
            if layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0
            else "mlp"
            for layer in range(self.num_hidden_layers)
        ]


class DeepseekV2Config(DeepseekMoeConfig):
    """``model_type: deepseek_v2``: latent attention; softmax routing, in groups where stated."""

    interleaved: ClassVar[bool] = True
    divides_heads: ClassVar[bool] = False
    max_position_embeddings: Extent = 2048
    kv_lora_rank: Extent = 512
    q_lora_rank: Extent | None = 1536
    qk_nope_head_dim: Extent = 128
    qk_rope_head_dim: Extent = 64
    qk_head_dim: Extent | None = None
    v_head_dim: Extent = 128
    n_group: Extent | None = None
    topk_group: Extent | None = None
    topk_method: str = "greedy"
    num_nextn_predict_layers: NonNegativeInt = 0
    rope_interleave: bool = True

    @model_validator(mode="after")
    def _heads_are_alike(self) -> Self:
        if self.num_key_value_heads not in (None, self.num_attention_heads):
            raise ValueError(
                f"latent attention needs as many kv heads ({self.num_key_value_heads}) as query"
                f" heads ({self.num_attention_heads})"
            )
        return self

    @property
    def head_size(self) -> int:
        """What rotates."""
        return self.qk_rope_head_dim

    @property
    def num_prediction_layers(self) -> int:
        return self.num_nextn_predict_layers

    def attention(self, kind: LayerKind) -> BranchBody:
        return LatentAttentionBlock(
            hidden_size=self.hidden_size, num_heads=self.num_attention_heads,
            q_lora_rank=self.q_lora_rank, kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim, qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim, bias=self.attention_bias, rotary=self.rotary(kind),
            indexer=self.indexer(),
        )  # fmt: skip

    def indexer(self) -> SparseIndexer | None:
        return None

    def moe_fields(self) -> dict[str, Any]:
        grouped = self.topk_method != "greedy"
        return {
            "num_groups": (self.n_group or 1) if grouped else 1,
            "top_groups": (self.topk_group or 1) if grouped else 1,
        }


class DeepseekV3Config(DeepseekV2Config):
    """``model_type: deepseek_v3``, ``kimi_k2``: sigmoid routing with a correction bias."""

    router: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"
    correction_bias: ClassVar[bool] = True
    num_experts: Extent = 256
    num_experts_per_tok: Extent = 8
    n_shared_experts: NonNegativeInt | None = 1
    moe_intermediate_size: Extent | None = 2048
    first_k_dense_replace: NonNegativeInt = 3
    max_position_embeddings: Extent = 4096
    num_key_value_heads: HeadCount | None = None
    n_group: Extent | None = 8
    topk_group: Extent | None = 4
    topk_method: str = "noaux_tc"
    scoring_func: Literal["softmax", "sigmoid"] = "sigmoid"
    norm_eps: PositiveFloat = 1e-6


class DeepseekV32Config(DeepseekV3Config):
    """``model_type: deepseek_v32``: an indexer chooses the tokens that attention sees."""

    max_position_embeddings: Extent = 163_840
    index_head_dim: Extent = 128
    index_n_heads: HeadCount = 64
    index_topk: Extent = 2048
    layer_types: list[Any] | None = None

    def windows(self) -> list[int | None]:
        return [None] * self.num_hidden_layers

    def indexer(self) -> SparseIndexer | None:
        return SparseIndexer(
            num_heads=self.index_n_heads, head_dim=self.index_head_dim, top_k=self.index_topk
        )


class Glm4MoeLiteConfig(DeepseekV3Config):
    """``model_type: glm4_moe_lite``: as DeepSeek-V3, one dense layer first."""

    first_k_dense_replace: NonNegativeInt = 1
    num_experts: Extent = 64
    num_experts_per_tok: Extent = 4
    moe_intermediate_size: Extent | None = 1536
    kv_lora_rank: Extent = 512
    q_lora_rank: Extent | None = 768
    qk_nope_head_dim: Extent = 192
    v_head_dim: Extent = 256
    n_group: Extent | None = 1
    topk_group: Extent | None = 1
    norm_eps: PositiveFloat = 1e-5
    max_position_embeddings: Extent = 202_752
    partial_rotary_factor: PositiveFloat | None = None
