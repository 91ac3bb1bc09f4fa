"""Config files become the models that transformers would build, or are refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from shardwright.specs import InputError, ModelSpec
from shardwright.specs.model import AttentionBlock, MlpBlock, RotaryPositions
from shardwright.specs.sources import model_from_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 97, "n_embd": 64, "n_layer": 3, "n_head": 4,
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": LLAMA | {"model_type": "mistral"},
    "qwen2": LLAMA | {"model_type": "qwen2"},
}
CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
}
# What transformers wrote before version 5, beside the newer `rope_parameters`.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(config: dict[str, Any]) -> ModelSpec:
    return model_from_config(config, name="test", source="config.json").spec


def attention_of(spec: ModelSpec, layer: int = 0) -> AttentionBlock:
    body = list(spec.decoder.layers())[layer].branches[0].body
    assert isinstance(body, AttentionBlock)
    return body


def mlp_of(spec: ModelSpec) -> MlpBlock:
    body = next(spec.decoder.layers()).branches[1].body
    assert isinstance(body, MlpBlock)
    return body


def rotary_of(config: dict[str, Any]) -> RotaryPositions:
    rotary = attention_of(read(config)).rotary
    assert rotary is not None
    return rotary


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", BASES)
def test_parameters_are_those_that_transformers_builds(family: str, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    fields = {key: value for key, value in BASES[family].items() if key != "model_type"}
    config_class, model_class = (getattr(transformers, name) for name in CLASSES[family])
    config = config_class(**fields, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        built = model_class(config)
    spec = read(json.loads(config.to_json_string(use_diff=False)))
    assert spec.num_parameters == sum(parameter.numel() for parameter in built.parameters())
    assert spec == read(json.loads(config.to_json_string(use_diff=True)))
    assert [edge.kind for edge in spec.edges] == (["tied_weight"] if tied else [])


def test_gpt2_reads_as_gpt2() -> None:
    spec = read(GPT2)
    assert spec.embedding.max_positions == spec.max_seq_len == 1024
    assert (spec.head.tied, spec.edges[0].shape) == (True, (97, 64))
    attention, mlp = attention_of(spec), mlp_of(spec)
    assert (attention.qkv_bias, attention.output_bias, attention.rotary) == (True, True, None)
    assert (mlp.ffn_size, mlp.activation, mlp.gated, mlp.bias) == (256, "gelu_tanh", False, True)
    assert spec.final_norm.type == "layer_norm"
    assert mlp_of(read(GPT2 | {"n_inner": 100})).ffn_size == 100


def test_biases_of_each_family() -> None:
    assert attention_of(read(BASES["qwen2"])).qkv_bias
    assert not attention_of(read(BASES["qwen2"])).output_bias
    assert not attention_of(read(LLAMA)).qkv_bias
    biased = read(LLAMA | {"attention_bias": True, "mlp_bias": True})
    assert attention_of(biased).output_bias
    assert mlp_of(biased).bias


def test_key_value_heads_default_to_the_query_heads() -> None:
    old = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert attention_of(read(old)).num_kv_heads == 4


def test_a_stated_head_dim_wins() -> None:
    assert attention_of(read(LLAMA | {"head_dim": 32})).query_size == 128


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE},
        {"rope_theta": 500000, "rope_scaling": {**LLAMA3_ROPE, "type": "llama3"}},
        {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 500000.0}},
    ],
)
def test_llama3_scaling_in_old_and_new_form(rope: dict[str, Any]) -> None:
    assert rotary_of(LLAMA | rope) == RotaryPositions(
        base=500000.0, scaling="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_positions=8192,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rope", "base"),
    [
        ({}, 10000.0),
        ({"rope_theta": 1000000.0, "rope_scaling": None}, 1000000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}, 1000000.0),
    ],
)
def test_plain_rotary_positions(rope: dict[str, Any], base: float) -> None:
    assert (rotary_of(LLAMA | rope).base, rotary_of(LLAMA | rope).scaling) == (base, "none")


@pytest.mark.parametrize("method", ["fp8", "mxfp4"])
def test_checkpoints_quantised_for_serving_are_noted(method: str) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": method}}
    found = model_from_config(config, name="test", source="x")
    assert found.spec.num_parameters == read(LLAMA).num_parameters
    assert any(method in note for note in found.notes)


def test_stretched_rotary_positions_are_read() -> None:
    stretched = rotary_of(LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0}})
    assert (stretched.scaling, stretched.factor) == ("yarn", 4.0)


def test_sliding_windows() -> None:
    mistral, qwen2 = BASES["mistral"], BASES["qwen2"]
    assert attention_of(read(mistral)).sliding_window == 4096
    assert attention_of(read(mistral | {"sliding_window": None})).sliding_window is None
    assert attention_of(read(qwen2 | {"sliding_window": 64})).sliding_window is None
    mixed = read(qwen2 | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1})
    assert [attention_of(mixed, layer).sliding_window for layer in range(3)] == [None, 64, 64]
    listed = ["sliding_attention", "full_attention", "sliding_attention"]
    named = read(qwen2 | {"use_sliding_window": True, "sliding_window": 64, "layer_types": listed})
    assert [attention_of(named, layer).sliding_window for layer in range(3)] == [64, None, 64]
    assert mixed.num_parameters == named.num_parameters == read(qwen2).num_parameters


def test_equal_layers_are_written_once() -> None:
    assert len(read(LLAMA).decoder.blocks) == 4
    assert read(LLAMA).decoder.num_layers == 3


def test_dropout_is_noted_and_left_out() -> None:
    noted = model_from_config(GPT2, name="test", source="x").notes
    assert noted == (
        "dropout is not modelled and not applied in training"
        " (resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1)",
    )
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    assert model_from_config(GPT2 | none, name="test", source="x").notes == ()
    assert model_from_config(GPT2 | none, name="test", source="x").spec == read(
        GPT2 | none
    ).model_copy(update={"source": "x"})


def test_fields_that_leave_the_architecture_alone_are_ignored() -> None:
    more = {
        "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "use_cache": True,
        "transformers_version": "4.40.0", "pretraining_tp": 1, "quantization_config": None,
    }  # fmt: skip
    assert read(LLAMA | more) == read(LLAMA)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ("llama", {"model_type": "lama"}, "'lama' .* is not supported.*nearest: llama"),
        ("llama", {"model_type": None}, "has no model_type"),
        ("llama", {"model_type": ["llama"]}, "is not supported"),
        ("llama", {"num_local_experts": 8}, "num_local_experts = 8"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4}"),
        ("llama", {"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClass"),
        ("llama", {"rope_scaling": {"rope_type": "alibi"}}, "rope_type.*'alibi'"),
        ("llama", {"rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope_type.*'ntk'"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "needs high_freq"),
        ("llama", {"rope_scaling": LLAMA3_ROPE | {"low_freq_factor": 5.0}}, "must exceed"),
        ("llama", {"rope_scaling": LLAMA3_ROPE | {"more": 1}}, "rope_scaling.more"),
        ("llama", {"hidden_act": "elu"}, "activation 'elu' is not one of"),
        ("llama", {"hidden_size": -64}, "hidden_size: .*greater than 0"),
        ("llama", {"hidden_size": 2**40}, "hidden_size: .*less than or equal"),
        ("llama", {"hidden_size": "64"}, "hidden_size: .*valid integer"),
        ("llama", {"hidden_size": 64.5}, "hidden_size: .*valid integer"),
        ("llama", {"hidden_size": 66}, r"hidden_size \(66\) is not a multiple"),
        ("llama", {"head_dim": 15}, "even head_dim, not 15"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers: .*greater than 0"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads: .*greater than 0"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers: .*less than or equal"),
        ("llama", {"num_key_value_heads": 3}, "not a multiple of num_key_value_heads"),
        ("llama", {"rms_norm_eps": math.nan}, "rms_norm_eps"),
        ("llama", {"rope_theta": math.inf}, "rope_theta"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ("qwen2", {"layer_types": ["chunked"] * 3}, "layer_types.0"),
        ("mistral", {"attention_bias": True}, "attention_bias"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = False"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention = True"),
        ("gpt2", {"n_head": 5}, r"n_embd \(64\) is not a multiple of n_head \(5\)"),
        ("gpt2", {"activation_function": "elu"}, "activation 'elu'"),
    ],
)
def test_what_no_model_of_ours_is_is_refused_in_one_line(
    base: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(BASES[base] | changes)
    assert caught.value.fix
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_sizes_must_be_stated(field: str) -> None:
    with pytest.raises(InputError, match=f"{field}: Field required"):
        read({key: value for key, value in LLAMA.items() if key != field})


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_a_config_is_an_object(value: Any) -> None:
    with pytest.raises(InputError, match="holds no model config"):
        model_from_config(value, name="test", source="config.json")


COLLECTION = Path(__file__).parents[5] / "shared" / "data" / "model_configs.json"


@pytest.mark.skipif(not COLLECTION.exists(), reason="the collection of configs is not here")
def test_parameters_of_a_collection_of_published_configs() -> None:
    entries = json.loads(COLLECTION.read_text())
    assert len(entries) > 80
    for name, entry in entries.items():
        spec = read(entry["config"])
        if entry["params_from_config"] is not None:
            assert spec.num_parameters == entry["params_from_config"], name
            if entry["active_params"] is not None:
                assert spec.num_active_parameters == entry["active_params"], name
        else:
            assert spec.num_parameters == pytest.approx(entry["published_params"], rel=0.005), name
