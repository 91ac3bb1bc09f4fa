"""Vision encoders: ViT, DeiT, DINOv2, CLIP's and SigLIP's vision towers."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from shardwright.specs.blocks import (
    Block,
    ClassifierBlock,
    LayerBlock,
    PatchEmbeddingBlock,
    PoolerBlock,
    ResidualBranch,
)
from shardwright.specs.bodies import AttentionBlock, MlpBlock, NormBlock, RotaryPositions
from shardwright.specs.model import ModelSpec, Tower
from shardwright.specs.ranges import Extent, HeadCount, LayerCount
from shardwright.specs.sources.huggingface.encoders import layer_norm
from shardwright.specs.sources.huggingface.fields import Config, Dropout, ModelHead, activation

_IMAGENET_LABELS = 1000
"""Of a classifier whose config states none."""


class VisionConfig(Config):
    """Patches, layers with LayerNorm before each branch, and a norm."""

    architectures: ClassVar[tuple[str, ...]] = ("ForImageClassification", "Model")
    class_token: ClassVar[bool] = True
    num_extra_tokens: ClassVar[int] = 0

    hidden_size: Extent = 768
    intermediate_size: Extent = 3072
    num_hidden_layers: LayerCount = 12
    num_attention_heads: HeadCount = 12
    hidden_act: str = "gelu"
    image_size: Extent = 224
    patch_size: Extent = 16
    num_channels: Extent = 3
    layer_norm_eps: PositiveFloat = 1e-12
    qkv_bias: bool = True
    hidden_dropout_prob: Dropout = 0.0
    attention_probs_dropout_prob: Dropout = 0.0
    architectures_given: list[str] | None = None
    labels: dict[str, Any] | None = None
    num_labels: Extent | None = None
    renamed: ClassVar[dict[str, str]] = {
        "architectures": "architectures_given", "id2label": "labels",
    }  # fmt: skip

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads"
                f" ({self.num_attention_heads})"
            )
        if self.image_size < self.patch_size:
            raise ValueError(
                f"image_size ({self.image_size}) is less than patch_size ({self.patch_size})"
            )
        activation(self.hidden_act)
        return self

    @property
    def is_classifier(self) -> bool:
        """Unless the config is of the bare encoder."""
        given = self.architectures_given or ["ForImageClassification"]
        return given[0].endswith("ForImageClassification")

    @property
    def num_classes(self) -> int:
        return self.num_labels or len(self.labels or ()) or _IMAGENET_LABELS

    def norm(self) -> NormBlock:
        return layer_norm(self.hidden_size, self.layer_norm_eps)

    def embedding(self) -> PatchEmbeddingBlock:
        fields: dict[str, Any] = {
            "hidden_size": self.hidden_size, "patch_size": self.patch_size,
            "num_channels": self.num_channels,
            "num_patches": (self.image_size // self.patch_size) ** 2,
            "class_token": self.class_token, "num_extra_tokens": self.num_extra_tokens,
        }  # fmt: skip
        return PatchEmbeddingBlock(**fields | self.embedding_fields())

    def embedding_fields(self) -> dict[str, Any]:
        """What the family's patches have beyond the common fields."""
        return {}

    def attention(self) -> AttentionBlock:
        heads = self.num_attention_heads
        return AttentionBlock(
            hidden_size=self.hidden_size, num_heads=heads, num_kv_heads=heads,
            head_dim=self.hidden_size // heads, qkv_bias=self.qkv_bias, output_bias=True,
            rotary=None, causal=False,
        )  # fmt: skip

    def mlp(self) -> MlpBlock:
        return MlpBlock(
            hidden_size=self.hidden_size, ffn_size=self.intermediate_size,
            activation=activation(self.hidden_act), gated=False, bias=True,
        )  # fmt: skip

    learned_scale: ClassVar[bool] = False

    def layer(self) -> LayerBlock:
        branches = tuple(
            ResidualBranch(body=body, pre_norm=self.norm(), learned_scale=self.learned_scale)
            for body in (self.attention(), self.mlp())
        )
        return LayerBlock(branches=branches, repeat=self.num_hidden_layers)

    def ends(self) -> list[Block]:
        """What follows the last norm: a classifier, or the bare encoder's pooler."""
        if self.is_classifier:
            return [ClassifierBlock(hidden_size=self.hidden_size, num_labels=self.num_classes)]
        return [PoolerBlock(hidden_size=self.hidden_size)]

    def blocks(self) -> list[Block]:
        return [self.embedding(), self.layer(), self.norm()]

    def tower(self, name: str, more: list[Block]) -> Tower:
        return Tower(
            name=name, blocks=(*self.blocks(), *more),
            tokens_per_sample=self.embedding().num_tokens,
        )  # fmt: skip

    def to_spec(self, name: str, family: str, source: str, head: ModelHead | None) -> ModelSpec:
        tower = self.tower("encoder", self.ends())
        return ModelSpec(
            name=name, family=family, towers=(tower,), max_seq_len=tower.tokens_per_sample,
            initializer_range=self.initializer_range, source=source,
        )  # fmt: skip


class VitConfig(VisionConfig):
    """``model_type: vit``."""

    encoder_stride: Extent = 16
    pooler_output_size: Extent | None = None
    pooler_act: str = "tanh"


class DeitConfig(VitConfig):
    """``model_type: deit``: a distillation token beside the class token."""

    num_extra_tokens: ClassVar[int] = 1


class Dinov2Config(VisionConfig):
    """``model_type: dinov2``: learned scales of each branch, no classifier."""

    learned_scale: ClassVar[bool] = True
    layer_norm_eps: PositiveFloat = 1e-6
    patch_size: Extent = 14
    image_size: Extent = 224
    mlp_ratio: Extent = 4
    use_swiglu_ffn: bool = False
    layerscale_value: float = 1.0
    drop_path_rate: float = 0.0
    apply_layernorm: bool = True
    reshape_hidden_states: bool = True
    use_mask_token: bool = True
    stage_names: list[str] | None = None
    out_features: list[str] | None = None
    out_indices: list[int] | None = None

    def embedding_fields(self) -> dict[str, Any]:
        return {"mask_token": self.use_mask_token}

    def mlp(self) -> MlpBlock:
        size = self.hidden_size * self.mlp_ratio
        if not self.use_swiglu_ffn:
            return super().mlp().model_copy(update={"ffn_size": size})
        gated = (size * 2 // 3 + 7) // 8 * 8
        return (
            super()
            .mlp()
            .model_copy(update={"ffn_size": gated, "gated": True, "activation": "silu"})
        )

    def ends(self) -> list[Block]:
        return []


class ClipVisionConfig(VisionConfig):
    """``model_type: clip_vision_model``: a norm over the patches, no bias of the convolution."""

    defaults: ClassVar[dict[str, int]] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 224, "patch_size": 32,
    }  # fmt: skip
    architectures: ClassVar[tuple[str, ...]] = ("Model", "ModelWithProjection")
    patch_size: Extent = 32
    hidden_act: str = "quick_gelu"
    layer_norm_eps: PositiveFloat = 1e-5
    attention_dropout: Dropout = 0.0
    projection_dim: Extent = 512
    vocab_size: Extent | None = None
    dropout: Dropout = 0.0

    def embedding_fields(self) -> dict[str, Any]:
        return {"bias": False, "norm": self.norm()}

    def ends(self) -> list[Block]:
        return []


class SiglipVisionConfig(VisionConfig):
    """``model_type: siglip_vision_model``: no class token, attention for a pooler."""

    architectures: ClassVar[tuple[str, ...]] = ("Model",)
    class_token: ClassVar[bool] = False
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: PositiveFloat = 1e-6
    attention_dropout: Dropout = 0.0
    vision_use_head: bool = True
    num_image_tokens: NonNegativeInt | None = None
    projection_dim: Extent | None = None
    projector_hidden_act: str | None = None

    def ends(self) -> list[Block]:
        if not self.vision_use_head:
            return []
        return [PoolerBlock(hidden_size=self.hidden_size, ffn_size=self.intermediate_size)]


class PixtralVisionConfig(VisionConfig):
    """``model_type: pixtral``: rotary positions, RMSNorm and gated MLPs."""

    architectures: ClassVar[tuple[str, ...]] = ("Model",)
    class_token: ClassVar[bool] = False
    hidden_size: Extent = 1024
    intermediate_size: Extent = 4096
    num_hidden_layers: LayerCount = 24
    num_attention_heads: HeadCount = 16
    image_size: Extent = 1024
    head_dim: Extent | None = None
    attention_dropout: Dropout = 0.0
    rope_theta: PositiveFloat = 10_000.0
    rope_parameters: dict[str, Any] | None = None
    vocab_size: Extent | None = None

    def norm(self) -> NormBlock:
        return NormBlock(type="rms_norm", hidden_size=self.hidden_size, bias=False, epsilon=1e-5)

    def embedding_fields(self) -> dict[str, Any]:
        return {"positions": False, "bias": False, "norm": self.norm()}

    def attention(self) -> AttentionBlock:
        rotary = RotaryPositions(base=self.rope_theta)
        return (
            super()
            .attention()
            .model_copy(update={"qkv_bias": False, "output_bias": False, "rotary": rotary})
        )

    def mlp(self) -> MlpBlock:
        return super().mlp().model_copy(update={"gated": True, "bias": False})

    def blocks(self) -> list[Block]:
        return [self.embedding(), self.layer()]

    def ends(self) -> list[Block]:
        return []
