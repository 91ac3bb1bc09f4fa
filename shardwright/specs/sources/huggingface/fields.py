"""What records of every family share: names of activations, harmless fields, rotary settings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    NonNegativeFloat,
    PositiveFloat,
    model_validator,
)

from shardwright.specs.bodies import Activation, RopeScaling
from shardwright.specs.model import ModelSpec
from shardwright.specs.ranges import Extent

ModelHead = Literal["mlm"]
"""``mlm``: the head of masked language modelling."""

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "relu2": "relu_squared",
    "tanh": "tanh",
    "xielu": "xielu",
}

HARMLESS = frozenset({
    "_attn_implementation", "_name_or_path", "adapters", "architectures", "attn_implementation",
    "attention_softmax_in_fp32", "auto_map", "aux_loss_alpha", "begin_suppress_tokens",
    "bos_token", "bos_token_id", "cache_implementation", "chunk_size_feed_forward",
    "classifier_dropout", "cls_token_id", "custom_pipelines", "decoder_start_token_id",
    "description", "do_sample", "dtype", "embedding_activation", "encoder_no_repeat_ngram_size",
    "eod_token_id", "eos_token", "eos_token_id", "ep_size", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "fused_bias_fc", "gradient_checkpointing",
    "id2label", "ignore_index", "image_token_id", "image_token_index", "init_device",
    "bad_words_ids", "diversity_penalty", "early_stopping", "exponential_decay_length_penalty",
    "no_repeat_ngram_size", "num_beam_groups", "num_return_sequences", "output_scores",
    "remove_invalid_values", "return_dict_in_generate", "typical_p", "max_new_tokens",
    "initializer_factor", "initializer_cutoff_factor", "input_jitter_noise",
    "interpolate_pos_encoding",
    "is_decoder", "is_llama_config", "keys_to_ignore_at_inference", "label2id", "language",
    "length_penalty", "license", "max_length", "min_length", "mlp_speculator", "model_type",
    "moe_norm_min", "mtp_loss_scaling_factor", "n_ctx", "name", "norm_topk_prob",
    "num_beams", "num_labels", "num_logits_to_keep", "output_attentions",
    "output_hidden_states", "output_past", "output_router_logits", "pad_token", "pad_token_id",
    "prefix", "pretraining_tp", "problem_type", "position_embedding_type", "repetition_penalty",
    "rescale_prenorm_residual", "residual_in_fp32", "return_dict", "router_aux_loss_coef",
    "router_jitter_noise", "router_z_loss_coef", "routed_scaling_factor",
    "scale_attention_softmax_in_fp32", "sep_token_id", "seq_aux", "slow_but_exact",
    "suppress_tokens", "summary_activation", "summary_first_dropout", "summary_last_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers.js_config", "transformers_version", "unk_token_id",
    "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "use_flash_attn",
    "use_mambapy", "use_associative_scan", "use_mamba_kernels", "video_token_id",
    "video_token_index", "vision_end_token_id", "vision_start_token_id", "vision_token_id",
    "vision_feature_layer", "vision_feature_select_strategy", "z_loss_coefficient",
})  # fmt: skip
"""Fields that name files, tokens, losses, defaults of generation and the like."""

HARMLESS_ONLY_AS: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (1, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "reorder_and_upcast_attn": (False,),
    "rope_interleaved": (False,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
    "use_bidirectional_attention": (False, None),
}
"""Fields that change the architecture at any other value, and may only have these."""

QUANTIZED_FOR_SERVING = ("fp8", "mxfp4")
"""``quant_method``s of checkpoints that were trained in higher precision or are read as such."""


def activation(name: str) -> Activation:
    """Our name of an activation; raises `ValueError` naming the supported ones."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def unless_one(scale: float) -> float | None:
    """A factor, or null where it changes nothing."""
    return None if scale == 1 else scale


class Config(BaseModel):
    """What every family's record has in common."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    renamed: ClassVar[dict[str, str]] = {}
    """The family's own names of fields, and those used here."""
    architectures: ClassVar[tuple[str, ...]] = ("ForCausalLM", "LMHeadModel", "Model")
    """How the names of the classes end that build what the record describes."""
    heads: ClassVar[tuple[ModelHead, ...]] = ()
    defaults: ClassVar[dict[str, int]] = {}
    """Sizes that `transformers` takes where a part of a larger config does not state them."""

    initializer_range: PositiveFloat = 0.02

    @classmethod
    def names(cls) -> dict[str, str]:
        """Every name that a config may use, and the field that it fills."""
        merged: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            merged |= vars(base).get("renamed", {})
        return {field: field for field in cls.model_fields} | merged

    def to_spec(self, name: str, family: str, source: str, head: ModelHead | None) -> ModelSpec:
        """The model; ``head`` is one of `heads` or None."""
        raise AssertionError("each family builds its own")

    def notes(self) -> tuple[str, ...]:
        """What training by this config would do that the model does not hold."""
        found = {
            field: value
            for field in type(self).model_fields
            if field.endswith(("_pdrop", "dropout", "dropout_prob", "dropout_rate"))
            and (value := getattr(self, field))
        }
        if not found:
            return ()
        rates = ", ".join(f"{field} = {value:g}" for field, value in found.items())
        return (f"dropout is not modelled and not applied in training ({rates})",)


_ROPE_TYPES: dict[str, RopeScaling] = {
    "default": "none",
    "llama3": "llama3",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
    "mrope": "mrope",
}


class RopeConfig(BaseModel):
    """``rope_parameters``, or the older ``rope_scaling`` with its base beside it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    rope_type: Literal[
        "default", "llama3", "linear", "dynamic", "yarn", "longrope", "su", "mrope"
    ] = "default"
    rope_theta: PositiveFloat | None = None
    partial_rotary_factor: PositiveFloat | None = None
    factor: PositiveFloat = 1.0
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_max_position_embeddings: Extent | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    mrope_section: list[int] | None = None
    mrope_interleaved: bool = False
    truncate: bool = True
    finetuned: bool = True
    alpha: float | None = None
    llama_4_scaling_beta: float | None = None
    max_position_embeddings: Extent | None = None

    @model_validator(mode="after")
    def _llama3_is_complete(self) -> Self:
        needed = {
            "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        }  # fmt: skip
        missing = sorted(needed - self.model_fields_set)
        if self.rope_type == "llama3" and missing:
            raise ValueError(f"llama3 scaling needs {', '.join(missing)} as well")
        if self.high_freq_factor < self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor ({self.high_freq_factor:g}) must exceed low_freq_factor"
                f" ({self.low_freq_factor:g})"
            )
        return self

    @property
    def scaling(self) -> RopeScaling:
        if self.rope_type == "llama3" and self.high_freq_factor == self.low_freq_factor:
            return "step"
        return _ROPE_TYPES[self.rope_type]


def _rename_type(value: Any) -> Any:
    """Old configs write ``type`` for ``rope_type``; some write both."""
    if not isinstance(value, dict) or "type" not in value:
        return value
    old = value["type"]
    rest = {key: item for key, item in value.items() if key != "type"}
    return {"rope_type": old, **rest}


Rope = Annotated[RopeConfig | None, BeforeValidator(_rename_type)]

Dropout = NonNegativeFloat


def record_fields(config: dict[str, Any], family: type[Config]) -> dict[str, Any]:
    """The fields that the family's record reads, under its own names."""
    names = family.names()
    return {
        names[key]: value
        for key, value in config.items()
        if key in names and (names[key] == key or names[key] not in config)
    }


def unknown_fields(config: dict[str, Any], family: type[Config]) -> list[str]:
    """Fields, with their values, that the family does not read and that may not be passed over."""
    names = family.names()
    return [
        f"{key} = {shown(value)}"
        for key, value in config.items()
        if key not in names
        and key not in HARMLESS
        and (key not in HARMLESS_ONLY_AS or value not in HARMLESS_ONLY_AS[key])
    ]


def shown(value: Any, longest: int = 40) -> str:
    """A value in short."""
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."
