"""A `ModelSpec` from the facts of a Hugging Face ``config.json``.

One pydantic record per ``model_type`` states which fields decide the architecture, with the
defaults of the `transformers` library. A field that is neither read here nor known to leave the
architecture alone is refused by name: a model that we do not fully understand is not planned for.
"""

from __future__ import annotations

import difflib
import itertools
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from shardwright.specs._base import describe_misfits
from shardwright.specs.errors import InputError
from shardwright.specs.model import (
    AttentionBlock,
    Block,
    Edge,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    MlpBlock,
    ModelSpec,
    NormBlock,
    ResidualBranch,
    RotaryPositions,
    Tower,
)
from shardwright.specs.ranges import Extent, HeadCount, LayerCount

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

_HARMLESS = frozenset({
    "_attn_implementation", "_name_or_path", "architectures", "attn_implementation", "auto_map",
    "bos_token", "bos_token_id", "chunk_size_feed_forward", "do_sample", "dtype", "eos_token",
    "eos_token_id", "finetuning_task", "id2label", "is_decoder", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "max_length", "mlp_speculator", "model_type",
    "n_ctx", "num_labels", "output_attentions", "output_hidden_states", "output_past",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "return_dict",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers.js_config", "transformers_version",
    "unsloth_fixed", "unsloth_version", "use_cache",
})  # fmt: skip
"""Fields that name files, tokens, defaults of generation and the like."""

_HARMLESS_ONLY_AS: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (1, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "reorder_and_upcast_attn": (False,),
    "rope_interleaved": (False,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
}
"""Fields that change the architecture at any other value, and may only have these."""

_LANGUAGE_MODEL_ENDINGS = ("ForCausalLM", "LMHeadModel", "Model")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model, and what its source says that the model does not hold."""

    spec: ModelSpec
    notes: tuple[str, ...] = ()


def model_from_config(config: Any, *, name: str, source: str) -> ModelSource:
    """The model that a parsed ``config.json`` describes.

    Raises:
        InputError: not a JSON object, an unknown ``model_type``, fields that are not supported, or
            values that no model can have; everything that is wrong is named in one line.
    """
    if not isinstance(config, dict):
        raise InputError(
            f"{source} holds no model config but a {type(config).__name__}",
            fix="give the config.json of a model",
        )
    family = _family_of(config.get("model_type"), source)
    _refuse_unknown_fields(config, family, source)
    fields = {key: value for key, value in config.items() if key in family.model_fields}
    try:
        parsed = family.model_validate(fields)
        return ModelSource(parsed.to_spec(name, config["model_type"], source), parsed.notes())
    except ValidationError as error:
        raise InputError(
            f"{source} is not a valid {config['model_type']} config: {describe_misfits(error)}",
            fix="correct the named fields",
        ) from None


class _Config(BaseModel):
    """What every family's record has in common."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    vocab_size: Extent
    initializer_range: PositiveFloat = 0.02

    def to_spec(self, name: str, family: str, source: str) -> ModelSpec:
        raise AssertionError("each family builds its own")

    def notes(self) -> tuple[str, ...]:
        """What training by this config would do that the model does not hold."""
        found = {
            field: value
            for field in type(self).model_fields
            if field.endswith(("_pdrop", "dropout")) and (value := getattr(self, field))
        }
        if not found:
            return ()
        rates = ", ".join(f"{field} = {value:g}" for field, value in found.items())
        return (f"dropout is not modelled and not applied in training ({rates})",)


class Gpt2Config(_Config):
    """``model_type: gpt2``: learned positions, LayerNorm, one MLP of four times the width."""

    n_positions: Extent = 1024
    n_embd: Extent
    n_layer: LayerCount
    n_head: HeadCount
    n_inner: Extent | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    resid_pdrop: NonNegativeFloat = 0.1
    embd_pdrop: NonNegativeFloat = 0.1
    attn_pdrop: NonNegativeFloat = 0.1

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd ({self.n_embd}) is not a multiple of n_head ({self.n_head})")
        activation(self.activation_function)
        return self

    def to_spec(self, name: str, family: str, source: str) -> ModelSpec:
        norm = NormBlock(
            type="layer_norm", hidden_size=self.n_embd, bias=True, epsilon=self.layer_norm_epsilon
        )
        attention = AttentionBlock(
            hidden_size=self.n_embd, num_heads=self.n_head, num_kv_heads=self.n_head,
            head_dim=self.n_embd // self.n_head, qkv_bias=True, output_bias=True, rotary=None,
        )  # fmt: skip
        mlp = MlpBlock(
            hidden_size=self.n_embd, ffn_size=self.n_inner or 4 * self.n_embd,
            activation=activation(self.activation_function), gated=False, bias=True,
        )  # fmt: skip
        layer = LayerBlock(
            branches=(
                ResidualBranch(body=attention, pre_norm=norm),
                ResidualBranch(body=mlp, pre_norm=norm),
            ),
            repeat=self.n_layer,
        )
        embedding = EmbeddingBlock(
            vocab_size=self.vocab_size, hidden_size=self.n_embd, max_positions=self.n_positions
        )
        return _decoder(
            name, family, source, embedding, [layer], norm, self.tie_word_embeddings,
            self.n_positions, self.initializer_range,
        )  # fmt: skip


class RopeConfig(BaseModel):
    """``rope_parameters``, or the older ``rope_scaling`` with its base beside it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    rope_type: Literal["default", "llama3"] = "default"
    rope_theta: PositiveFloat | None = None
    factor: PositiveFloat = 1.0
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_max_position_embeddings: Extent | None = None

    @model_validator(mode="after")
    def _llama3_is_complete(self) -> Self:
        needed = {
            "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        }  # fmt: skip
        missing = sorted(needed - self.model_fields_set)
        if self.rope_type == "llama3" and missing:
            raise ValueError(f"llama3 scaling needs {', '.join(missing)} as well")
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor ({self.high_freq_factor:g}) must exceed low_freq_factor"
                f" ({self.low_freq_factor:g})"
            )
        return self


def _rename_type(value: Any) -> Any:
    """Old configs write ``type`` for ``rope_type``; some write both."""
    if not isinstance(value, dict) or "type" not in value:
        return value
    old = value["type"]
    rest = {key: item for key, item in value.items() if key != "type"}
    return {"rope_type": old, **rest}


Rope = Annotated[RopeConfig | None, BeforeValidator(_rename_type)]


class LlamaConfig(_Config):
    """``model_type: llama``: rotary positions, RMSNorm, gated MLP, grouped queries."""

    hidden_size: Extent
    intermediate_size: Extent
    num_hidden_layers: LayerCount
    num_attention_heads: HeadCount
    num_key_value_heads: HeadCount | None = None
    head_dim: Extent | None = None
    hidden_act: str = "silu"
    max_position_embeddings: Extent = 2048
    rms_norm_eps: PositiveFloat = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: PositiveFloat | None = None
    rope_scaling: Rope = None
    rope_parameters: Rope = None
    attention_dropout: NonNegativeFloat = 0.0
    attention_bias: bool = False
    mlp_bias: bool = False

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        heads, kv_heads = self.num_attention_heads, self.kv_heads
        if heads % kv_heads:
            raise ValueError(
                f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads"
                f" ({kv_heads})"
            )
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads"
                f" ({heads}), and no head_dim is given"
            )
        if self.head_size % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {self.head_size}")
        activation(self.hidden_act)
        return self

    @property
    def kv_heads(self) -> int:
        """As many as query heads where the config does not say."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def biases(self) -> tuple[bool, bool]:
        """Whether query, key and value projections have biases, and whether the output has."""
        return self.attention_bias, self.attention_bias

    def windows(self) -> list[int | None]:
        """Of each layer, how many tokens one sees."""
        return [None] * self.num_hidden_layers

    def rotary(self) -> RotaryPositions:
        rope = self.rope_parameters or self.rope_scaling or RopeConfig()
        original = rope.original_max_position_embeddings or self.max_position_embeddings
        scaled = rope.rope_type == "llama3"
        return RotaryPositions(
            base=rope.rope_theta or self.rope_theta or 10_000.0,
            scaling="llama3" if scaled else "none",
            factor=rope.factor if scaled else 1.0,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_positions=original,
        )

    def layer(self, window: int | None, repeat: int) -> LayerBlock:
        """``repeat`` equal layers whose tokens see ``window`` tokens."""
        hidden = self.hidden_size
        norm = self.norm()
        qkv_bias, output_bias = self.biases
        attention = AttentionBlock(
            hidden_size=hidden, num_heads=self.num_attention_heads, num_kv_heads=self.kv_heads,
            head_dim=self.head_size, qkv_bias=qkv_bias, output_bias=output_bias,
            rotary=self.rotary(), sliding_window=window,
        )  # fmt: skip
        mlp = MlpBlock(
            hidden_size=hidden, ffn_size=self.intermediate_size,
            activation=activation(self.hidden_act), gated=True, bias=self.mlp_bias,
        )  # fmt: skip
        branches = (
            ResidualBranch(body=attention, pre_norm=norm),
            ResidualBranch(body=mlp, pre_norm=norm),
        )
        return LayerBlock(branches=branches, repeat=repeat)

    def norm(self) -> NormBlock:
        return NormBlock(
            type="rms_norm", hidden_size=self.hidden_size, bias=False, epsilon=self.rms_norm_eps
        )

    def to_spec(self, name: str, family: str, source: str) -> ModelSpec:
        embedding = EmbeddingBlock(vocab_size=self.vocab_size, hidden_size=self.hidden_size)
        layers = [
            self.layer(window, len(list(equal)))
            for window, equal in itertools.groupby(self.windows())
        ]
        return _decoder(
            name, family, source, embedding, layers, self.norm(), self.tie_word_embeddings,
            self.max_position_embeddings, self.initializer_range,
        )  # fmt: skip


class MistralConfig(LlamaConfig):
    """``model_type: mistral``: as Llama, with a sliding window and no biases."""

    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    num_key_value_heads: HeadCount | None = 8
    max_position_embeddings: Extent = 131_072
    sliding_window: Extent | None = 4096

    def windows(self) -> list[int | None]:
        return [self.sliding_window] * self.num_hidden_layers


class Qwen2Config(LlamaConfig):
    """``model_type: qwen2``: as Llama, with biases on queries, keys and values."""

    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    num_key_value_heads: HeadCount | None = 32
    max_position_embeddings: Extent = 32_768
    use_sliding_window: bool = False
    sliding_window: Extent | None = 4096
    max_window_layers: NonNegativeInt = 28
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None

    @model_validator(mode="after")
    def _layer_types_fit(self) -> Self:
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types has {len(self.layer_types)} entries for"
                f" num_hidden_layers = {self.num_hidden_layers}"
            )
        return self

    @property
    def biases(self) -> tuple[bool, bool]:
        return True, False

    def windows(self) -> list[int | None]:
        """The window opens from layer ``max_window_layers`` on, or where ``layer_types`` says."""
        window = self.sliding_window if self.use_sliding_window else None
        if self.layer_types is not None:
            return [window if kind == "sliding_attention" else None for kind in self.layer_types]
        first = self.max_window_layers
        return [window if layer >= first else None for layer in range(self.num_hidden_layers)]


_FAMILIES: dict[str, type[_Config]] = {
    "gpt2": Gpt2Config,
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
}


def supported_model_types() -> list[str]:
    """Every ``model_type`` that can be read."""
    return sorted(_FAMILIES)


def activation(name: str) -> Activation:
    """Our name of an activation; raises `ValueError` naming the supported ones."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _family_of(model_type: Any, source: str) -> type[_Config]:
    if isinstance(model_type, str) and model_type in _FAMILIES:
        return _FAMILIES[model_type]
    known = supported_model_types()
    if model_type is None:
        raise InputError(
            f"{source} has no model_type", fix=f"add it; supported are {', '.join(known)}"
        )
    near = difflib.get_close_matches(str(model_type), known, n=1, cutoff=0.3)
    raise InputError(
        f"model_type {_shown(model_type)} of {source} is not supported",
        fix=f"use one of {', '.join(known)}" + (f" (nearest: {near[0]})" if near else ""),
    )


def _refuse_unknown_fields(config: dict[str, Any], family: type[_Config], source: str) -> None:
    """Refuse fields that change the architecture, or may, in a way that is not modelled."""
    refused = []
    for key, value in config.items():
        if key in family.model_fields or key in _HARMLESS:
            continue
        if key not in _HARMLESS_ONLY_AS or value not in _HARMLESS_ONLY_AS[key]:
            refused.append(f"{key} = {_shown(value)}")
    heads = config.get("architectures") or []
    for architecture in heads if isinstance(heads, list) else [heads]:
        if not str(architecture).endswith(_LANGUAGE_MODEL_ENDINGS):
            refused.append(f"architectures = {_shown(architecture)}")
    if refused:
        raise InputError(
            f"{source} has fields that are not supported for {config['model_type']}:"
            f" {', '.join(refused)}",
            why="they change the model, or may",
            fix="remove what does not apply, or build the model in Python (package.module:factory)",
        )


def _shown(value: Any, longest: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _decoder(
    name: str,
    family: str,
    source: str,
    embedding: EmbeddingBlock,
    layers: list[LayerBlock],
    final_norm: NormBlock,
    tied: bool,
    max_seq_len: int,
    initializer_range: float,
) -> ModelSpec:
    """Embedding, layers, norm and head as one tower, with the edge of a tied weight."""
    shape = (embedding.vocab_size, embedding.hidden_size)
    head = HeadBlock(vocab_size=shape[0], hidden_size=shape[1], tied=tied)
    edge = Edge(
        kind="tied_weight", producer="decoder/embedding", consumer="decoder/head", shape=shape
    )
    blocks: list[Block] = [embedding, *layers, final_norm, head]
    return ModelSpec(
        name=name,
        family=family,
        towers=(Tower(name="decoder", blocks=tuple(blocks)),),
        edges=(edge,) if tied else (),
        max_seq_len=max_seq_len,
        initializer_range=initializer_range,
        source=source,
    )
