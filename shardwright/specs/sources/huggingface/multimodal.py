"""A vision tower beside a decoder: LLaVA, Gemma 3, Mistral 3, Qwen2-VL, Llama 4.

The vision tower ends with the projector that brings its features to the decoder's width. Llama 4
is read as its text tower only.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import model_validator

from shardwright.specs.blocks import (
    LayerBlock,
    PatchEmbeddingBlock,
    ProjectorBlock,
    ResidualBranch,
)
from shardwright.specs.bodies import AttentionBlock, MlpBlock, NormBlock, RotaryPositions
from shardwright.specs.model import Edge, ModelSpec, Tower
from shardwright.specs.ranges import Extent, HeadCount, LayerCount
from shardwright.specs.sources.huggingface.decoder import DecoderConfig
from shardwright.specs.sources.huggingface.encoders import layer_norm
from shardwright.specs.sources.huggingface.fields import (
    Config,
    ModelHead,
    activation,
    record_fields,
    unknown_fields,
)
from shardwright.specs.sources.huggingface.llama import (
    Gemma3Config,
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    Qwen2Config,
)
from shardwright.specs.sources.huggingface.moe import Llama4Config, MixtralConfig
from shardwright.specs.sources.huggingface.vision import (
    ClipVisionConfig,
    PixtralVisionConfig,
    SiglipVisionConfig,
    VisionConfig,
)

C = TypeVar("C", bound=Config)


class MultimodalConfig(Config):
    """A config of configs; what the text part leaves out has the library's defaults."""

    architectures: ClassVar[tuple[str, ...]] = ("ForConditionalGeneration", "ForCausalLM", "Model")
    texts: ClassVar[dict[str, type[DecoderConfig]]]
    """Records of the text part by its ``model_type``; the first is the default."""

    text_config: dict[str, Any]
    vision_config: dict[str, Any] | None = None
    tie_word_embeddings: bool | None = None
    vocab_size: Extent | None = None
    hidden_size: Extent | None = None
    max_position_embeddings: Extent | None = None

    @model_validator(mode="after")
    def _parts_are_known(self) -> Self:
        self.text()
        return self

    def text(self) -> DecoderConfig:
        family = part_family(self.text_config, self.texts, "text_config")
        config = dict(self.text_config)
        if self.tie_word_embeddings is not None:
            config["tie_word_embeddings"] = self.tie_word_embeddings
        return read_part(config, family, "text_config")

    def vision(self) -> Tower | None:
        """The vision tower and its projector."""
        return None

    def to_spec(self, name: str, family: str, source: str, head: ModelHead | None) -> ModelSpec:
        text, vision = self.text(), self.vision()
        bridge = Edge(
            kind="hidden", producer="vision/projector", consumer="decoder/embedding",
            shape=(text.hidden_size,),
        )  # fmt: skip
        return ModelSpec(
            name=name, family=family, towers=(*([vision] if vision else []), text.tower()),
            edges=(*([bridge] if vision else []), *text.edges()),
            max_seq_len=text.max_positions, initializer_range=text.initializer_range,
            source=source,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        return self.text().notes()


def part_family(config: dict[str, Any], families: dict[str, type[C]], where: str) -> type[C]:
    """The record of a part of a config; raises `ValueError` for an unsupported one."""
    model_type = config.get("model_type", next(iter(families)))
    if model_type not in families:
        raise ValueError(f"{where}.model_type {model_type!r} is not one of {', '.join(families)}")
    return families[model_type]


def read_part(config: dict[str, Any], family: type[C], where: str) -> C:
    """A part of a config as its record; raises `ValueError` naming unsupported fields."""
    unknown = unknown_fields(config, family)
    if unknown:
        raise ValueError(f"{where} has fields that are not supported: {', '.join(unknown)}")
    return family.model_validate(dict(family.defaults) | record_fields(config, family))


class LlavaConfig(MultimodalConfig):
    """``model_type: llava``: CLIP's vision tower and a projector of two layers."""

    texts: ClassVar[dict[str, type[DecoderConfig]]] = {
        "llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config,
        "mixtral": MixtralConfig,
    }  # fmt: skip
    visions: ClassVar[dict[str, type[VisionConfig]]] = {
        "clip_vision_model": ClipVisionConfig, "siglip_vision_model": SiglipVisionConfig,
        "pixtral": PixtralVisionConfig,
    }  # fmt: skip
    vision_config: dict[str, Any]
    projector_hidden_act: str = "gelu"
    multimodal_projector_bias: bool = True
    image_seq_length: Extent | None = None

    @property
    def has_row_token(self) -> bool:
        return False

    def vision(self) -> Tower | None:
        family = part_family(self.vision_config, self.visions, "vision_config")
        vision = read_part(self.vision_config, family, "vision_config")
        projector = ProjectorBlock(
            hidden_size=vision.hidden_size, output_size=self.text().hidden_size,
            bias=self.multimodal_projector_bias, row_token=self.has_row_token,
        )  # fmt: skip
        return vision.tower("vision", [*vision.ends(), projector])


class Gemma3MultimodalConfig(MultimodalConfig):
    """``model_type: gemma3``: SigLIP's vision tower, a norm and one linear layer."""

    texts: ClassVar[dict[str, type[DecoderConfig]]] = {"gemma3_text": Gemma3Config}
    vision_config: dict[str, Any]
    mm_tokens_per_image: Extent = 256
    boi_token_index: int | None = None
    eoi_token_index: int | None = None
    boi_token_id: int | None = None
    eoi_token_id: int | None = None

    def vision(self) -> Tower | None:
        vision = read_part(self.vision_config, SiglipVisionConfig, "vision_config")
        norm = NormBlock(
            type="rms_norm", hidden_size=vision.hidden_size, bias=False,
            epsilon=vision.layer_norm_eps, unit_offset=True,
        )  # fmt: skip
        projector = ProjectorBlock(
            hidden_size=vision.hidden_size, output_size=self.text().hidden_size, num_layers=1,
            bias=False, norm=norm,
        )  # fmt: skip
        return vision.tower("vision", [*vision.ends(), projector])


class LlavaNextConfig(LlavaConfig):
    """``model_type: llava_next``: as LLaVA, with a learned token at the ends of rows."""

    image_grid_pinpoints: list[Any] | None = None
    use_image_newline_parameter: bool = True

    @property
    def has_row_token(self) -> bool:
        return True


class Mistral3Config(MultimodalConfig):
    """``model_type: mistral3``: Pixtral's vision tower, patches merged four to one."""

    texts: ClassVar[dict[str, type[DecoderConfig]]] = {
        "mistral": MistralConfig, "ministral3": MinistralConfig,
    }  # fmt: skip
    vision_config: dict[str, Any]
    projector_hidden_act: str = "gelu"
    multimodal_projector_bias: bool = False
    spatial_merge_size: Extent = 2
    vision_feature_layer: Literal[-1] = -1

    def vision(self) -> Tower | None:
        vision = read_part(self.vision_config, PixtralVisionConfig, "vision_config")
        size = vision.hidden_size
        norm = NormBlock(type="rms_norm", hidden_size=size, bias=False, epsilon=1e-5)
        merger = ProjectorBlock(
            hidden_size=size, output_size=size, num_layers=1, bias=False,
            merge=self.spatial_merge_size**2, norm=norm,
        )  # fmt: skip
        projector = ProjectorBlock(
            hidden_size=size, output_size=self.text().hidden_size,
            bias=self.multimodal_projector_bias,
        )  # fmt: skip
        return vision.tower("vision", [merger, projector])


class QwenVisionConfig(Config):
    """``vision_config`` of Qwen2-VL and Qwen2.5-VL."""

    depth: LayerCount = 32
    hidden_size: Extent | None = None
    out_hidden_size: Extent | None = None
    embed_dim: Extent = 1280
    intermediate_size: Extent = 3420
    hidden_act: str = "quick_gelu"
    mlp_ratio: float = 4
    num_heads: HeadCount = 16
    in_channels: Extent = 3
    patch_size: Extent = 14
    spatial_merge_size: Extent = 2
    temporal_patch_size: Extent = 2
    tokens_per_second: float | None = None
    window_size: Extent | None = None
    fullatt_block_indexes: list[int] | None = None
    rope_parameters: dict[str, Any] | None = None
    renamed: ClassVar[dict[str, str]] = {
        "in_chans": "in_channels", "spatial_patch_size": "patch_size",
    }  # fmt: skip


class Qwen2VlConfig(Qwen2Config):
    """``model_type: qwen2_vl``: the text part's fields lie beside ``vision_config``, or below."""

    architectures: ClassVar[tuple[str, ...]] = ("ForConditionalGeneration", "Model")
    gated_vision: ClassVar[bool] = False
    image_tokens: ClassVar[int] = 1024
    """Patches of an image of 448 x 448 pixels."""

    vision_config: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or not isinstance(fields.get("text_config"), dict):
            return fields
        text = dict(fields["text_config"])
        unknown = unknown_fields(text, cls)
        if unknown:
            raise ValueError(f"text_config has fields that are not supported: {', '.join(unknown)}")
        outer = {key: value for key, value in fields.items() if key != "text_config"}
        return record_fields(text, cls) | outer

    text_config: dict[str, Any] | None = None

    def vision(self) -> Tower:
        vision = read_part(self.vision_config, QwenVisionConfig, "vision_config")
        size = (vision.hidden_size or 1280) if self.gated_vision else vision.embed_dim
        norm = (
            NormBlock(type="rms_norm", hidden_size=size, bias=False, epsilon=1e-6)
            if (self.gated_vision)
            else layer_norm(size, 1e-6)
        )
        attention = AttentionBlock(
            hidden_size=size, num_heads=vision.num_heads, num_kv_heads=vision.num_heads,
            head_dim=size // vision.num_heads, qkv_bias=True, output_bias=True,
            rotary=RotaryPositions(base=10_000.0), causal=False,
        )  # fmt: skip
        mlp = MlpBlock(
            hidden_size=size,
            ffn_size=vision.intermediate_size
            if self.gated_vision
            else int(size * vision.mlp_ratio),
            activation=activation(vision.hidden_act), gated=self.gated_vision, bias=True,
        )  # fmt: skip
        patches = PatchEmbeddingBlock(
            hidden_size=size, patch_size=vision.patch_size, num_channels=vision.in_channels,
            num_frames=vision.temporal_patch_size, num_patches=self.image_tokens,
            class_token=False, positions=False, bias=False,
        )  # fmt: skip
        merge = vision.spatial_merge_size**2
        projector = ProjectorBlock(
            hidden_size=size, output_size=self.output_size(vision), merge=merge,
            middle_size=size * merge, norm=norm,
        )  # fmt: skip
        branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in (attention, mlp))
        layers = LayerBlock(branches=branches, repeat=vision.depth)
        return Tower(
            name="vision", blocks=(patches, layers, projector),
            tokens_per_sample=self.image_tokens,
        )  # fmt: skip

    def output_size(self, vision: QwenVisionConfig) -> int:
        stated = vision.out_hidden_size if self.gated_vision else vision.hidden_size
        return stated or self.hidden_size

    def to_spec(self, name: str, family: str, source: str, head: ModelHead | None) -> ModelSpec:
        text = super().to_spec(name, family, source, head)
        bridge = Edge(
            kind="hidden", producer="vision/projector", consumer="decoder/embedding",
            shape=(self.hidden_size,),
        )  # fmt: skip
        return text.model_copy(
            update={"towers": (self.vision(), *text.towers), "edges": (bridge, *text.edges)}
        )


class Qwen25VlConfig(Qwen2VlConfig):
    """``model_type: qwen2_5_vl``: RMSNorm and gated MLPs in the vision tower."""

    gated_vision: ClassVar[bool] = True


class Llama4MultimodalConfig(MultimodalConfig):
    """``model_type: llama4``: its text tower."""

    texts: ClassVar[dict[str, type[DecoderConfig]]] = {"llama4_text": Llama4Config}
    boi_token_index: int | None = None
    eoi_token_index: int | None = None

    def notes(self) -> tuple[str, ...]:
        return (*super().notes(), "the vision tower is not modelled: this is the text tower alone")
