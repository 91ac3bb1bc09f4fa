"""State spaces, hybrids with attention, and decoders whose layers differ in shape."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import (
    NonNegativeInt,
    PositiveFloat,
    model_validator,
)

from shardwright.specs.bodies import BranchBody, MoeBlock, StateSpaceBlock
from shardwright.specs.ranges import Extent, HeadCount
from shardwright.specs.sources.huggingface.decoder import DecoderConfig, LayerKind
from shardwright.specs.sources.huggingface.fields import Dropout, activation
from shardwright.specs.sources.huggingface.llama import LlamaConfig
from shardwright.specs.sources.huggingface.moe import MoeConfig, SparseStepConfig


class MambaConfig(DecoderConfig):
    """``model_type: mamba``, ``falcon_mamba``: one state space a layer, a tied head."""

    rotates: ClassVar[bool] = False
    num_attention_heads: HeadCount = 1
    max_position_embeddings: Extent | None = None  # type: ignore[assignment]
    norm_eps: PositiveFloat = 1e-5
    initializer_range: PositiveFloat = 0.1
    tie_word_embeddings: bool = True
    state_size: Extent = 16
    conv_kernel: Extent = 4
    expand: Extent = 2
    use_bias: bool = False
    use_conv_bias: bool = True
    time_step_rank: Extent | Literal["auto"] = "auto"
    time_step_scale: float = 1.0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 0.0001
    time_step_init_scheme: str = "random"
    mixer_rms_eps: float = 1e-6
    d_inner: Extent | None = None
    d_model: Extent | None = None
    n_layer: Extent | None = None
    ssm_cfg: dict[str, Any] | None = None
    fused_add_norm: bool = True
    rms_norm: Literal[True] = True
    pad_vocab_size_multiple: int = 8

    @property
    def inner_size(self) -> int:
        return self.intermediate_size or self.expand * self.hidden_size

    def layer_kinds(self) -> list[LayerKind]:
        return [LayerKind(mixer="state_space", feed_forward=None)] * self.num_hidden_layers

    def mixer(self, kind: LayerKind) -> BranchBody:
        rank = self.time_step_rank
        return StateSpaceBlock(
            version="mamba", hidden_size=self.hidden_size, inner_size=self.inner_size,
            state_size=self.state_size, conv_kernel=self.conv_kernel,
            conv_bias=self.use_conv_bias, bias=self.use_bias,
            time_step_rank=-(-self.hidden_size // 16) if rank == "auto" else rank,
        )  # fmt: skip


class Mamba2Config(DecoderConfig):
    """``model_type: mamba2``."""

    rotates: ClassVar[bool] = False
    renamed: ClassVar[dict[str, str]] = {"num_heads": "num_attention_heads"}
    max_position_embeddings: Extent | None = None  # type: ignore[assignment]
    norm_eps: PositiveFloat = 1e-5
    initializer_range: PositiveFloat = 0.1
    num_attention_heads: HeadCount = 128
    head_dim: Extent | None = 64
    state_size: Extent = 128
    conv_kernel: Extent = 4
    expand: Extent = 2
    n_groups: Extent = 8
    use_bias: bool = False
    use_conv_bias: bool = True
    chunk_size: Extent = 256
    rms_norm: Literal[True] = True
    norm_before_gate: bool = False
    time_step_rank: Extent | Literal["auto"] = "auto"
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 0.0001
    time_step_limit: Any = None

    @model_validator(mode="after")
    def _heads_fill_the_inner_width(self) -> Self:
        if self.expand * self.hidden_size != self.num_attention_heads * self.head_size:
            raise ValueError(
                f"num_heads ({self.num_attention_heads}) x head_dim ({self.head_size}) is not"
                f" expand ({self.expand}) x hidden_size ({self.hidden_size})"
            )
        return self

    def layer_kinds(self) -> list[LayerKind]:
        return [LayerKind(mixer="state_space", feed_forward=None)] * self.num_hidden_layers

    def mixer(self, kind: LayerKind) -> BranchBody:
        return StateSpaceBlock(
            version="mamba2", hidden_size=self.hidden_size,
            inner_size=self.expand * self.hidden_size, state_size=self.state_size,
            conv_kernel=self.conv_kernel, conv_bias=self.use_conv_bias, bias=self.use_bias,
            num_heads=self.num_attention_heads, num_groups=self.n_groups,
            chunk_size=self.chunk_size,
        )  # fmt: skip


_LETTERS = {"M": "state_space", "*": "attention", "-": "mlp", "E": "moe"}
_WORDS = {
    "linear_attention": "state_space", "mamba": "state_space", "full_attention": "attention",
    "attention": "attention", "mlp": "mlp", "moe": "moe",
}  # fmt: skip


class NemotronHConfig(MoeConfig):
    """``model_type: nemotron_h``: each layer is one branch, named by a letter of the pattern."""

    rotates: ClassVar[bool] = False
    gated: ClassVar[bool] = False
    router: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"
    correction_bias: ClassVar[bool] = True
    renamed: ClassVar[dict[str, str]] = {
        "attention_head_dim": "head_dim", "mlp_hidden_act": "hidden_act",
    }  # fmt: skip
    hidden_act: str = "relu2"
    norm_eps: PositiveFloat = 1e-5
    head_dim: Extent | None = 128
    max_position_embeddings: Extent = 4096
    num_hidden_layers: Extent | None = None  # type: ignore[assignment]
    hybrid_override_pattern: str | None = None
    layers_block_type: list[str] | None = None
    mtp_hybrid_override_pattern: str | None = None
    mtp_layers_block_type: list[str] | None = None
    num_nextn_predict_layers: NonNegativeInt = 0
    chunk_size: Extent = 128
    conv_kernel: Extent = 4
    expand: Extent = 2
    mamba_head_dim: Extent = 64
    mamba_num_heads: HeadCount = 128
    mamba_hidden_act: str = "silu"
    mamba_proj_bias: bool = False
    mamba_ssm_cache_dtype: str | None = None
    n_groups: Extent = 8
    ssm_state_size: Extent = 128
    time_step_floor: float = 0.0001
    time_step_limit: Any = None
    time_step_max: float = 0.1
    time_step_min: float = 0.001
    time_step_rank: Extent | None = None
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_dropout: Dropout = 0.0
    num_experts: Extent = 8
    num_experts_per_tok: Extent = 2
    n_shared_experts: NonNegativeInt | None = 1
    moe_intermediate_size: Extent | None = 7688
    moe_shared_expert_intermediate_size: Extent = 7688
    moe_shared_expert_overlap: bool = True
    moe_latent_size: Extent | None = None
    n_group: Extent = 1
    topk_group: Extent = 1

    @model_validator(mode="after")
    def _pattern_is_known(self) -> Self:
        letters = set(self.hybrid_override_pattern or "") - set(_LETTERS)
        words = set(self.layers_block_type or ()) - set(_WORDS)
        if letters or words:
            raise ValueError(f"layers of kinds {sorted(letters | words)} are not supported")
        if not (self.hybrid_override_pattern or self.layers_block_type):
            raise ValueError("hybrid_override_pattern is missing")
        if self.num_hidden_layers not in (None, len(self.branch_names())):
            raise ValueError(
                f"num_hidden_layers ({self.num_hidden_layers}) is not the length of the pattern"
                f" ({len(self.branch_names())})"
            )
        return self

    def branch_names(self) -> list[str]:
        if self.hybrid_override_pattern:
            return [_LETTERS[letter] for letter in self.hybrid_override_pattern]
        return [_WORDS[word] for word in self.layers_block_type or ()]

    def layer_kinds(self) -> list[LayerKind]:
        return [LayerKind(mixer=name, feed_forward=None) for name in self.branch_names()]

    def mixer(self, kind: LayerKind) -> BranchBody:
        if kind.mixer == "attention":
            return self.attention(kind)
        if kind.mixer == "state_space":
            return self.state_space()
        return self.moe() if kind.mixer == "moe" else self.mlp(self.ffn_size)

    def state_space(self) -> StateSpaceBlock:
        return StateSpaceBlock(
            version="mamba2", hidden_size=self.hidden_size,
            inner_size=self.mamba_num_heads * self.mamba_head_dim,
            state_size=self.ssm_state_size, conv_kernel=self.conv_kernel,
            conv_bias=self.use_conv_bias, bias=self.mamba_proj_bias,
            num_heads=self.mamba_num_heads, num_groups=self.n_groups, chunk_size=self.chunk_size,
        )  # fmt: skip

    @property
    def shared_size(self) -> int | None:
        return self.moe_shared_expert_intermediate_size

    def moe_fields(self) -> dict[str, Any]:
        return {
            "num_groups": self.n_group, "top_groups": self.topk_group,
            "latent_size": self.moe_latent_size,
        }  # fmt: skip


class JambaConfig(MoeConfig):
    """``model_type: jamba``: Mamba with attention and experts in every so many layers."""

    rotates: ClassVar[bool] = False
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    num_key_value_heads: HeadCount | None = 8
    max_position_embeddings: Extent = 262_144
    num_experts: Extent = 16
    num_experts_per_tok: Extent = 2
    attn_layer_period: Extent = 8
    attn_layer_offset: NonNegativeInt = 4
    expert_layer_period: Extent = 2
    expert_layer_offset: NonNegativeInt = 1
    mamba_d_state: Extent = 16
    mamba_d_conv: Extent = 4
    mamba_expand: Extent = 2
    mamba_dt_rank: Extent | Literal["auto"] = "auto"
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    mamba_inner_layernorms: Literal[True] = True
    calc_logits_for_entire_prompt: bool = False
    layer_types: list[Any] | None = None

    def layer_kinds(self) -> list[LayerKind]:
        has_experts = self.num_experts > 1
        return [
            LayerKind(
                mixer="attention"
                if layer % self.attn_layer_period == self.attn_layer_offset
                else "state_space",
                feed_forward="moe"
                if has_experts and layer % self.expert_layer_period == self.expert_layer_offset
                else "mlp",
            )
            for layer in range(self.num_hidden_layers)
        ]

    def mixer(self, kind: LayerKind) -> BranchBody:
        if kind.mixer == "attention":
            return self.attention(kind)
        rank = self.mamba_dt_rank
        return StateSpaceBlock(
            version="mamba", hidden_size=self.hidden_size,
            inner_size=self.mamba_expand * self.hidden_size, state_size=self.mamba_d_state,
            conv_kernel=self.mamba_d_conv, conv_bias=self.mamba_conv_bias,
            bias=self.mamba_proj_bias, selection_norms=True,
            time_step_rank=-(-self.hidden_size // 16) if rank == "auto" else rank,
        )  # fmt: skip


class Qwen3NextConfig(SparseStepConfig):
    """``model_type: qwen3_next``: three gated delta nets to one gated attention, experts."""

    shared_gate: ClassVar[bool] = True
    unit_offset: ClassVar[bool] = True
    mlp_bias: Literal[False] = False
    num_experts: Extent = 512
    num_experts_per_tok: Extent = 10
    moe_intermediate_size: Extent | None = 512
    shared_expert_intermediate_size: Extent = 512
    num_key_value_heads: HeadCount | None = 2
    head_dim: Extent | None = 256
    max_position_embeddings: Extent = 32_768
    partial_rotary_factor: PositiveFloat | None = None
    linear_conv_kernel_dim: Extent = 4
    linear_key_head_dim: Extent = 128
    linear_value_head_dim: Extent = 128
    linear_num_key_heads: HeadCount = 16
    linear_num_value_heads: HeadCount = 32
    full_attention_interval: Extent = 4
    layer_types: list[Literal["full_attention", "linear_attention"]] | None = None  # type: ignore[assignment]

    default_fraction: ClassVar[float] = 0.25

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor

    @property
    def shared_size(self) -> int | None:
        return self.shared_expert_intermediate_size

    def layer_kinds(self) -> list[LayerKind]:
        period = self.full_attention_interval
        types = self.layer_types or [
            "linear_attention" if (layer + 1) % period else "full_attention"
            for layer in range(self.num_hidden_layers)
        ]
        return [
            LayerKind(
                mixer="state_space" if name == "linear_attention" else "attention",
                feed_forward=forward,
            )
            for name, forward in zip(types, self.feed_forwards(), strict=True)
        ]

    def mixer(self, kind: LayerKind) -> BranchBody:
        if kind.mixer == "attention":
            return self.attention(kind)
        return StateSpaceBlock(
            version="gated_delta", hidden_size=self.hidden_size,
            inner_size=self.linear_num_value_heads * self.linear_value_head_dim,
            state_size=self.linear_key_head_dim, conv_kernel=self.linear_conv_kernel_dim,
            conv_bias=False, num_heads=self.linear_num_value_heads,
            num_groups=self.linear_num_key_heads,
        )  # fmt: skip

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head", "gated": True}


class BambaConfig(LlamaConfig):
    """``model_type: bamba``: Mamba-2 with attention in listed layers, an MLP in every layer."""

    num_key_value_heads: HeadCount | None = 8
    norm_eps: PositiveFloat = 1e-5
    max_position_embeddings: Extent = 262_144
    partial_rotary_factor: PositiveFloat | None = None
    attn_layer_indices: list[int] | None = None
    attn_rotary_emb: Extent | None = None
    layers_block_type: list[str] | None = None
    layer_types: list[str] | None = None
    mamba_chunk_size: Extent = 256
    mamba_conv_bias: bool = True
    mamba_d_conv: Extent = 4
    mamba_d_head: Extent | Literal["auto"] = 64
    mamba_d_state: Extent = 256
    mamba_expand: Extent = 2
    mamba_n_groups: Extent = 1
    mamba_n_heads: HeadCount = 128
    mamba_proj_bias: bool = False
    time_step_limit: Any = None
    time_step_min: float = 0.001
    time_step_max: float = 0.1

    default_fraction: ClassVar[float] = 0.5

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor

    def mixers(self) -> list[str]:
        named = self.layers_block_type or self.layer_types
        if named is not None:
            return [_WORDS[name] for name in named]
        chosen = self.attn_layer_indices or []
        return [
            "attention" if layer in chosen else "state_space"
            for layer in range(self.num_hidden_layers)
        ]

    def layer_kinds(self) -> list[LayerKind]:
        return [LayerKind(mixer=mixer) for mixer in self.mixers()]

    def mixer(self, kind: LayerKind) -> BranchBody:
        return self.attention(kind) if kind.mixer == "attention" else self.state_space()

    def state_space(self) -> StateSpaceBlock:
        return StateSpaceBlock(
            version="mamba2", hidden_size=self.hidden_size,
            inner_size=self.mamba_expand * self.hidden_size, state_size=self.mamba_d_state,
            conv_kernel=self.mamba_d_conv, conv_bias=self.mamba_conv_bias,
            bias=self.mamba_proj_bias, num_heads=self.mamba_n_heads,
            num_groups=self.mamba_n_groups, chunk_size=self.mamba_chunk_size,
        )  # fmt: skip


class GraniteHybridConfig(BambaConfig):
    """``model_type: granitemoehybrid``: as Bamba, with a shared MLP and experts in every layer."""

    renamed: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    num_key_value_heads: HeadCount | None = None
    norm_eps: PositiveFloat = 1e-6
    max_position_embeddings: Extent = 2048
    num_experts: NonNegativeInt = 8
    num_experts_per_tok: NonNegativeInt = 2
    shared_intermediate_size: Extent = 1024
    position_embedding_type: str | None = None
    embedding_multiplier: PositiveFloat = 1.0
    logits_scaling: PositiveFloat = 1.0
    residual_multiplier: PositiveFloat = 1.0
    attention_multiplier: PositiveFloat = 1.0
    normalization_function: str = "rmsnorm"
    init_method: str | None = None

    @property
    def branch_scale(self) -> float | None:
        return None if self.residual_multiplier == 1 else self.residual_multiplier

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        fields: dict[str, Any] = {"scale": self.attention_multiplier}
        return fields if self.position_embedding_type == "rope" else fields | {"rotary": None}

    def feed_forward(self, kind: LayerKind) -> BranchBody:
        if not self.num_experts:
            return self.mlp(self.shared_intermediate_size)
        return MoeBlock(
            hidden_size=self.hidden_size, expert_size=self.ffn_size, num_experts=self.num_experts,
            top_k=self.num_experts_per_tok, activation=activation(self.hidden_act), gated=True,
            shared_size=self.shared_intermediate_size,
        )  # fmt: skip
