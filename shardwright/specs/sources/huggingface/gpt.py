"""Decoders of GPT's kind: LayerNorm with biases, a plain MLP of four times the width."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, PositiveFloat, model_validator

from shardwright.specs.blocks import EmbeddingBlock, HeadBlock, LayerBlock
from shardwright.specs.bodies import NormBlock
from shardwright.specs.ranges import Extent, HeadCount
from shardwright.specs.sources.huggingface.decoder import (
    DecoderConfig,
    LayerKind,
    Norms,
    NormType,
)
from shardwright.specs.sources.huggingface.fields import Dropout

_GPT_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
}  # fmt: skip


class GptConfig(DecoderConfig):
    """LayerNorm, biases everywhere, a plain MLP."""

    norm_style: ClassVar[NormType] = "layer_norm"
    norm_bias: ClassVar[bool] = True
    gated: ClassVar[bool] = False
    states_head_dim: ClassVar[bool] = False
    hidden_act: str = "gelu_new"
    norm_eps: PositiveFloat = 1e-5

    @property
    def biases(self) -> tuple[bool, bool]:
        return True, True

    @property
    def mlp_has_bias(self) -> bool:
        return True


class Gpt2Config(GptConfig):
    """``model_type: gpt2``: learned positions, a tied head."""

    renamed: ClassVar[dict[str, str]] = _GPT_NAMES
    learned_positions: ClassVar[bool] = True
    rotates: ClassVar[bool] = False
    max_position_embeddings: Extent = 1024
    tie_word_embeddings: bool = True
    resid_pdrop: Dropout = 0.1
    embd_pdrop: Dropout = 0.1
    attn_pdrop: Dropout = 0.1


class GptBigCodeConfig(Gpt2Config):
    """``model_type: gpt_bigcode``: as GPT-2, with one kv head."""

    hidden_act: str = "gelu_pytorch_tanh"
    multi_query: bool = True

    @property
    def kv_heads(self) -> int:
        return 1 if self.multi_query else self.num_attention_heads


class GptNeoConfig(GptConfig):
    """``model_type: gpt_neo``: global and local attention in turn, no biases on q, k and v."""

    renamed: ClassVar[dict[str, str]] = {
        "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
        "activation_function": "hidden_act",
    }  # fmt: skip
    learned_positions: ClassVar[bool] = True
    rotates: ClassVar[bool] = False
    tie_word_embeddings: bool = True
    attention_layers: list[Literal["global", "local"]] | None = None
    attention_types: list[Any] | None = None
    window_size: Extent = 256
    resid_dropout: Dropout = 0.0
    embed_dropout: Dropout = 0.0
    embd_pdrop: Dropout = 0.0

    @property
    def biases(self) -> tuple[bool, bool]:
        return False, True

    def windows(self) -> list[int | None]:
        kinds: list[str] = list(self.attention_layers or [])
        if not kinds and self.attention_types:
            for pattern, times in self.attention_types:
                kinds += list(pattern) * times
        kinds = kinds or ["global", "local"] * self.num_hidden_layers
        return [
            self.window_size if kind == "local" else None
            for kind in kinds[: self.num_hidden_layers]
        ]

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"scale": 1.0}


class GptJConfig(GptConfig):
    """``model_type: gptj``: parallel branches after one norm, an untied head with a bias."""

    renamed: ClassVar[dict[str, str]] = _GPT_NAMES | {"rotary": "has_rotary"}
    norms: ClassVar[Norms] = "shared"
    interleaved: ClassVar[bool] = True
    has_rotary: Literal[True] = True
    rotary_dim: Extent | None = 64
    resid_pdrop: Dropout = 0.0
    embd_pdrop: Dropout = 0.0
    attn_pdrop: Dropout = 0.0
    tokenizer_name: str | None = None

    @property
    def biases(self) -> tuple[bool, bool]:
        return False, False

    @property
    def rotary_size(self) -> int | None:
        return self.rotary_dim

    def head(self) -> HeadBlock:
        return super().head().model_copy(update={"bias": True})


class GptNeoXConfig(GptConfig):
    """``model_type: gpt_neox``: parallel branches with a norm each, a quarter of a head rotates."""

    hidden_act: str = "gelu"
    attention_bias: bool = True
    use_parallel_residual: bool = True
    hidden_dropout: Dropout = 0.0
    rotary_pct: PositiveFloat | None = None
    rotary_emb_base: PositiveFloat | None = None

    @property
    def norm_kinds(self) -> Norms:
        return "parallel" if self.use_parallel_residual else "pre"

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.attention_bias, self.attention_bias

    default_fraction: ClassVar[float] = 0.25

    @property
    def rotary_fraction(self) -> float | None:
        return self.rotary_pct


class PhiConfig(GptConfig):
    """``model_type: phi``: parallel branches after one norm, part of a head rotates."""

    norms: ClassVar[Norms] = "shared"
    num_key_value_heads: HeadCount | None = None
    partial_rotary_factor: PositiveFloat | None = None
    qk_layernorm: bool = False
    resid_pdrop: Dropout = 0.0
    embd_pdrop: Dropout = 0.0

    default_fraction: ClassVar[float] = 0.5

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head", "qk_norm_bias": True} if self.qk_layernorm else {}

    def head(self) -> HeadBlock:
        return super().head().model_copy(update={"bias": True})


class FalconConfig(GptConfig):
    """``model_type: falcon``: one kv head (7B) or groups (40B, 180B), parallel branches."""

    renamed: ClassVar[dict[str, str]] = {
        "activation": "hidden_act", "ffn_hidden_size": "intermediate_size",
        "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
        "n_head_kv": "num_kv_heads",
    }  # fmt: skip
    hidden_act: str = "gelu"
    tie_word_embeddings: bool = True
    num_kv_heads: HeadCount | None = None
    num_ln_in_parallel_attn: Literal[1, 2] | None = None
    alibi: bool = False
    bias: bool = False
    multi_query: bool = True
    new_decoder_architecture: bool = False
    parallel_attn: bool = True
    hidden_dropout: Dropout = 0.0

    @property
    def kv_heads(self) -> int:
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    @property
    def norm_kinds(self) -> Norms:
        if self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1:
            return "parallel"
        return "shared" if self.parallel_attn or self.new_decoder_architecture else "pre"

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.bias, self.bias

    @property
    def mlp_has_bias(self) -> bool:
        return self.bias

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"alibi": True, "rotary": None} if self.alibi else {}


class BloomConfig(GptConfig):
    """``model_type: bloom``: ALiBi, and a norm over the embedding."""

    renamed: ClassVar[dict[str, str]] = _GPT_NAMES | {
        "n_embed": "hidden_size", "seq_length": "max_position_embeddings",
    }  # fmt: skip
    rotates: ClassVar[bool] = False
    tie_word_embeddings: bool = True
    apply_residual_connection_post_layernorm: bool = False
    hidden_dropout: Dropout = 0.0
    masked_softmax_fusion: bool = True
    bias_dropout_fusion: bool = True
    skip_bias_add: bool = True
    skip_bias_add_qkv: bool = False
    offset_alibi: int = 100
    unk_token_id: int | None = None

    def embedding(self) -> EmbeddingBlock:
        return super().embedding().model_copy(update={"norm": self.norm()})

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"alibi": True}


class MptAttention(BaseModel):
    """``attn_config`` of an MPT."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    alibi: bool = True
    attn_type: Literal["multihead_attention", "multiquery_attention", "grouped_query_attention"] = (
        "multihead_attention"
    )
    clip_qkv: PositiveFloat | None = None
    kv_n_heads: HeadCount | None = None
    prefix_lm: Literal[False] = False
    qk_ln: Literal[False] = False
    softmax_scale: PositiveFloat | None = None


class MptConfig(GptConfig):
    """``model_type: mpt``: ALiBi, no biases at all, a tied head."""

    renamed: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size", "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads", "max_seq_len": "max_position_embeddings",
    }  # fmt: skip
    rotates: ClassVar[bool] = False
    norm_bias: ClassVar[bool] = False
    hidden_act: str = "gelu"
    tie_word_embeddings: bool = True
    expansion_ratio: Extent = 4
    attn_config: MptAttention = MptAttention()
    no_bias: Literal[True] = True
    learned_pos_emb: bool = True
    logit_scale: PositiveFloat | str | None = None
    norm_type: str = "low_precision_layernorm"
    embedding_fraction: PositiveFloat = 1.0
    emb_pdrop: Dropout = 0.0
    resid_pdrop: Dropout = 0.0
    init_config: dict[str, Any] | None = None
    ffn_config: dict[str, Any] | None = None
    tokenizer_name: str | None = None
    verbose: int | bool | None = None
    use_pad_tok_in_ffn: bool = True

    @property
    def ffn_size(self) -> int:
        return self.expansion_ratio * self.hidden_size

    @property
    def kv_heads(self) -> int:
        if self.attn_config.attn_type == "multiquery_attention":
            return 1
        return self.attn_config.kv_n_heads or self.num_attention_heads

    @property
    def biases(self) -> tuple[bool, bool]:
        return False, False

    @property
    def mlp_has_bias(self) -> bool:
        return False

    def embedding(self) -> EmbeddingBlock:
        learned = not self.attn_config.alibi
        return EmbeddingBlock(
            vocab_size=self.vocab_size, hidden_size=self.hidden_size,
            max_positions=self.max_position_embeddings if learned else None,
        )  # fmt: skip

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"alibi": self.attn_config.alibi, "clip": self.attn_config.clip_qkv}


class OptConfig(GptConfig):
    """``model_type: opt``: learned positions with two to spare, ReLU, a tied head."""

    renamed: ClassVar[dict[str, str]] = {
        "ffn_dim": "intermediate_size", "activation_function": "hidden_act",
        "init_std": "initializer_range",
        "_remove_final_layer_norm": "remove_final_layer_norm",
    }  # fmt: skip
    rotates: ClassVar[bool] = False
    hidden_act: str = "relu"
    tie_word_embeddings: bool = True
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = False
    word_embed_proj_dim: Extent | None = None
    enable_bias: bool = True
    layer_norm_elementwise_affine: Literal[True] = True
    dropout: Dropout = 0.1
    activation_dropout: Dropout = 0.0
    layerdrop: Dropout = 0.0

    @property
    def table_size(self) -> int | None:
        size = self.word_embed_proj_dim
        return None if size in (None, self.hidden_size) else size

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.enable_bias, self.enable_bias

    @property
    def mlp_has_bias(self) -> bool:
        return self.enable_bias

    def embedding(self) -> EmbeddingBlock:
        return EmbeddingBlock(
            vocab_size=self.vocab_size, hidden_size=self.hidden_size,
            max_positions=self.max_position_embeddings + 2, table_size=self.table_size,
        )  # fmt: skip

    def head(self) -> HeadBlock:
        return super().head().model_copy(update={"table_size": self.table_size})

    def layer(self, kind: LayerKind, repeat: int = 1) -> LayerBlock:
        block = super().layer(kind, repeat)
        if self.do_layer_norm_before:
            return block
        after = {"pre_norm": None, "post_norm": self.norm(), "norm_after_add": True}
        branches = tuple(branch.model_copy(update=after) for branch in block.branches)
        return block.model_copy(update={"branches": branches})

    def final_norm(self) -> NormBlock | None:
        return self.norm() if self.do_layer_norm_before else None

    @model_validator(mode="after")
    def _final_norm_is_there(self) -> Self:
        if self.remove_final_layer_norm and self.do_layer_norm_before:
            raise ValueError("_remove_final_layer_norm = True is not supported")
        return self
