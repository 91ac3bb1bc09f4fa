"""Llama under other names and with small differences: GLM, Baichuan, InternLM, Qwen ..."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat

from shardwright.specs.blocks import HeadBlock
from shardwright.specs.ranges import Extent, HeadCount
from shardwright.specs.sources.huggingface.decoder import (
    DecoderConfig,
    LayerKind,
    Norms,
    NormType,
)
from shardwright.specs.sources.huggingface.fields import Dropout, RopeConfig
from shardwright.specs.sources.huggingface.llama import LlamaConfig, WindowedConfig


class ChatGlmConfig(DecoderConfig):
    """``model_type: chatglm``: GLM-4 and ChatGLM under names of their own."""

    interleaved: ClassVar[bool] = True
    renamed: ClassVar[dict[str, str]] = {
        "num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size",
        "kv_channels": "head_dim", "layernorm_epsilon": "norm_eps",
        "seq_length": "max_position_embeddings", "padded_vocab_size": "vocab_size",
    }  # fmt: skip
    multi_query_attention: bool = False
    multi_query_group_num: HeadCount = 1
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    rmsnorm: Literal[True] = True
    post_layer_norm: Literal[True] = True
    original_rope: Literal[True] = True
    rope_ratio: PositiveFloat = 1.0
    apply_query_key_layer_scaling: bool = True
    apply_residual_connection_post_layernorm: Literal[False] = False
    bias_dropout_fusion: bool = True
    fp32_residual_connection: bool = False
    hidden_dropout: Dropout = 0.0
    pre_seq_len: None = None
    prefix_projection: bool = False

    @property
    def kv_heads(self) -> int:
        return self.multi_query_group_num if self.multi_query_attention else super().kv_heads

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.add_qkv_bias or self.add_bias_linear, self.add_bias_linear

    @property
    def mlp_has_bias(self) -> bool:
        return self.add_bias_linear

    @property
    def rotary_fraction(self) -> float | None:
        return 0.5

    def rope(self, kind: LayerKind) -> RopeConfig:
        return RopeConfig(rope_theta=10_000.0 * self.rope_ratio)


class BaichuanConfig(LlamaConfig):
    """``model_type: baichuan``: rotary positions (7B), or ALiBi where none are stated (13B)."""

    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    model_max_length: Extent | None = None
    z_loss_weight: float = 0.0

    @property
    def uses_alibi(self) -> bool:
        """The 7B models state ``max_position_embeddings``, the 13B models do not."""
        return "max_position_embeddings" not in self.model_fields_set

    @property
    def max_positions(self) -> int | None:
        if self.uses_alibi:
            return self.model_max_length or 4096
        return self.max_position_embeddings

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"alibi": True, "rotary": None} if self.uses_alibi else {}

    def head(self) -> HeadBlock:
        """Baichuan 2 normalises the rows of its head; the config tells it by its vocabulary."""
        return super().head().model_copy(update={"normalized": self.vocab_size == 125_696})


class InternLm2Config(LlamaConfig):
    """``model_type: internlm2``: one switch for the biases of attention."""

    bias: bool = False
    num_key_value_heads: HeadCount | None = None
    attn_bias: None = None

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.bias, self.bias


class InternLm3Config(LlamaConfig):
    """``model_type: internlm3``: switches for each kind of bias."""

    qkv_bias: bool = False
    bias: bool = False

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.qkv_bias, self.bias

    @property
    def mlp_has_bias(self) -> bool:
        return self.bias


class SeedOssConfig(LlamaConfig):
    """``model_type: seed_oss``: biases on queries, keys and values."""

    attention_bias: bool = True
    attention_out_bias: bool = False
    head_dim: Extent | None = 128
    num_key_value_heads: HeadCount | None = 8
    max_position_embeddings: Extent = 524_288
    residual_dropout: Dropout = 0.0
    attention_dropout: Dropout = 0.1

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.attention_bias, self.attention_out_bias


class Ernie45Config(LlamaConfig):
    """``model_type: ernie4_5``: one switch for every bias."""

    interleaved: ClassVar[bool] = True
    rope_base: ClassVar[float] = 500_000.0
    use_bias: bool = False
    head_dim: Extent | None = 128
    num_key_value_heads: HeadCount | None = 2
    tie_word_embeddings: bool = True
    max_position_embeddings: Extent = 131_072
    norm_eps: PositiveFloat = 1e-5
    compression_ratio: PositiveFloat = 1.0

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.use_bias, self.use_bias

    @property
    def mlp_has_bias(self) -> bool:
        return self.use_bias


class HunyuanConfig(LlamaConfig):
    """``model_type: hunyuan_v1_dense``: norms over each head."""

    norm_eps: PositiveFloat = 1e-5
    use_qk_norm: Literal[True] = True
    use_cla: Literal[False] = False
    add_classification_head: Literal[False] = False
    class_num: int = 0
    org_vocab_size: int | None = None
    pool_type: str = "last"
    mask_init_id: int | None = None
    im_end_id: int | None = None
    im_newline_id: int | None = None
    im_start_id: int | None = None
    image_token_id: int | None = None
    text_end_id: int | None = None
    text_start_id: int | None = None
    attention_head_dim: Extent | None = None

    @property
    def head_size(self) -> int:
        return self.attention_head_dim or super().head_size

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head"}


class HeliumConfig(LlamaConfig):
    """``model_type: helium``: interleaved rotary pairs and a stated head size."""

    interleaved: ClassVar[bool] = True
    rope_base: ClassVar[float] = 100_000.0
    head_dim: Extent | None = 128
    norm_eps: PositiveFloat = 1e-8
    max_position_embeddings: Extent = 4096

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.attention_bias, False


class ArceeConfig(LlamaConfig):
    """``model_type: arcee``: a plain MLP with squared ReLU."""

    gated: ClassVar[bool] = False
    hidden_act: str = "relu2"
    max_position_embeddings: Extent = 4096
    norm_eps: PositiveFloat = 1e-5


class ApertusConfig(LlamaConfig):
    """``model_type: apertus``: a plain MLP with a learned activation, norms over each head."""

    gated: ClassVar[bool] = False
    rope_base: ClassVar[float] = 12_000_000.0
    hidden_act: str = "xielu"
    mlp_bias: Literal[False] = False
    max_position_embeddings: Extent = 65_536
    norm_eps: PositiveFloat = 1e-5
    qk_norm: Literal[True] = True
    post_norm: Literal[False] = False

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head"}


class NemotronConfig(LlamaConfig):
    """``model_type: nemotron``: LayerNorm, a plain MLP, half of each head rotates."""

    norm_style: ClassVar[NormType] = "layer_norm"
    norm_bias: ClassVar[bool] = True
    unit_offset: ClassVar[bool] = True
    gated: ClassVar[bool] = False
    hidden_act: str = "relu2"
    max_position_embeddings: Extent = 4096
    norm_eps: PositiveFloat = 1e-5
    initializer_range: PositiveFloat = 0.0134
    partial_rotary_factor: PositiveFloat | None = None
    rope_percent: PositiveFloat | None = None

    default_fraction: ClassVar[float] = 0.5

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor or self.rope_percent


class StableLmConfig(LlamaConfig):
    """``model_type: stablelm``: LayerNorm, a quarter of each head rotates."""

    norm_style: ClassVar[NormType] = "layer_norm"
    norm_bias: ClassVar[bool] = True
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    max_position_embeddings: Extent = 4096
    norm_eps: PositiveFloat = 1e-5
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False
    hidden_dropout: Dropout = 0.0
    partial_rotary_factor: PositiveFloat | None = None
    rope_pct: PositiveFloat | None = None

    @property
    def norm_kinds(self) -> Norms:
        return "shared" if self.use_parallel_residual else "pre"

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.use_qkv_bias, False

    default_fraction: ClassVar[float] = 0.25

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor or self.rope_pct

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "width" if self.qk_layernorm else "none"}


class Starcoder2Config(WindowedConfig):
    """``model_type: starcoder2``: LayerNorm, a plain MLP, biases everywhere."""

    norm_style: ClassVar[NormType] = "layer_norm"
    norm_bias: ClassVar[bool] = True
    gated: ClassVar[bool] = False
    renamed: ClassVar[dict[str, str]] = {"norm_epsilon": "norm_eps"}
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    hidden_act: str = "gelu_pytorch_tanh"
    num_key_value_heads: HeadCount | None = 2
    max_position_embeddings: Extent = 4096
    norm_eps: PositiveFloat = 1e-5
    initializer_range: PositiveFloat = 0.018042
    tie_word_embeddings: bool = True
    use_bias: bool = True
    norm_type: Literal["layer_norm"] = "layer_norm"
    mlp_type: Literal["default"] = "default"
    residual_dropout: Dropout = 0.0
    embedding_dropout: Dropout = 0.0

    @property
    def biases(self) -> tuple[bool, bool]:
        return self.use_bias, self.use_bias

    @property
    def mlp_has_bias(self) -> bool:
        return self.use_bias


class QwenConfig(DecoderConfig):
    """``model_type: qwen``: the first Qwen; its ffn width is that of gate and up together."""

    norm_eps: PositiveFloat = 1e-6
    max_position_embeddings: Extent = 8192
    renamed: ClassVar[dict[str, str]] = {
        "kv_channels": "head_dim", "seq_length": "max_position_embeddings",
    }  # fmt: skip
    no_bias: Literal[True] = True
    rotary_emb_base: PositiveFloat = 10_000.0
    rotary_pct: PositiveFloat = 1.0
    attn_dropout_prob: Dropout = 0.0
    emb_dropout_prob: Dropout = 0.0
    scale_attn_weights: Literal[True] = True
    use_dynamic_ntk: bool = True
    use_logn_attn: bool = True
    softmax_in_fp32: bool = False
    use_cache_quantization: bool = False
    use_cache_kernel: bool = False
    bf16: bool = False
    fp16: bool = False
    fp32: bool = False
    onnx_safe: bool | None = None

    @property
    def ffn_size(self) -> int:
        return super().ffn_size // 2

    @property
    def biases(self) -> tuple[bool, bool]:
        return True, False

    def rope(self, kind: LayerKind) -> RopeConfig:
        return RopeConfig(rope_theta=self.rotary_emb_base)


class ExaoneConfig(LlamaConfig):
    """``model_type: exaone``: Llama under GPT's names (EXAONE 3)."""

    renamed: ClassVar[dict[str, str]] = {
        "num_layers": "num_hidden_layers", "activation_function": "hidden_act",
    }  # fmt: skip
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    norm_eps: PositiveFloat = 1e-5
    embed_dropout: Dropout = 0.0


class PersimmonConfig(DecoderConfig):
    """``model_type: persimmon``: LayerNorm, squared ReLU, biases, norms over each head."""

    norm_style: ClassVar[NormType] = "layer_norm"
    norm_bias: ClassVar[bool] = True
    gated: ClassVar[bool] = False
    hidden_act: str = "relu2"
    max_position_embeddings: Extent = 16_384
    norm_eps: PositiveFloat = 1e-5
    qk_layernorm: bool = True
    hidden_dropout: Dropout = 0.0
    partial_rotary_factor: PositiveFloat | None = None

    @property
    def biases(self) -> tuple[bool, bool]:
        return True, True

    @property
    def mlp_has_bias(self) -> bool:
        return True

    default_fraction: ClassVar[float] = 0.5

    @property
    def rotary_fraction(self) -> float | None:
        return self.partial_rotary_factor

    def attention_fields(self, kind: LayerKind) -> dict[str, Any]:
        return {"qk_norm": "head", "qk_norm_bias": True} if self.qk_layernorm else {}
