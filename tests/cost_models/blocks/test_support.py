"""What the exact books do not cover is refused by name, and what they cover is not."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.blocks.support import check_supported
from shardwright.specs import InputError, Layout, TrainingSpec
from shardwright.specs.sources import list_presets, model_from_config, preset

SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
COVERED = ("gpt2", "llama", "mistral", "opt", "phi3", "qwen2", "starcoder2")
"""Families whose models are of the covered blocks alone."""


def check(config: dict[str, Any]) -> None:
    model = model_from_config(config, name="small", source="a test").spec
    training = TrainingSpec(global_batch=8, seq_len=32)
    check_supported(model, Layout.of(model, training, dp=1, micro_batch=1))


@pytest.mark.parametrize("model_type", ["llama", "mistral", "phi3", "qwen2", "starcoder2"])
def test_dense_decoders_are_covered(model_type: str) -> None:
    check(SMALL | {"model_type": model_type})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "qwen3"}, "attention with qk norm"),
        ({"model_type": "gemma"}, "embedding with scale, norms with unit offset"),
        ({"model_type": "gemma2"}, "with one after"),
        ({"model_type": "phi", "num_key_value_heads": 4}, "layers with parallel"),
        ({"model_type": "mixtral"}, "a branch of kind moe"),
        ({"model_type": "olmo"}, "norms with weight"),
        ({"model_type": "gptj", "num_key_value_heads": 4}, "neighbouring pairs"),
        ({"model_type": "bert"}, "a block of kind pooler"),
        ({"model_type": "arcee"}, "the activation relu_squared"),
        ({"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 2.0}}, "yarn scaling"),
        ({"model_type": "mamba", "num_attention_heads": 1}, "a branch of kind state_space"),
    ],
)
def test_the_rest_is_named(config: dict[str, Any], message: str) -> None:
    fields = dict(SMALL)
    if config["model_type"] in ("bert", "mamba", "gptj"):
        del fields["num_key_value_heads"]
        config = {key: value for key, value in config.items() if key == "model_type"}
    with pytest.raises(InputError, match=message):
        check(fields | config)


@pytest.mark.parametrize("slug", list_presets())
def test_presets_of_other_families_are_refused_and_not_mistaken(slug: str) -> None:
    known = preset(slug)
    model = known.read().spec
    training = TrainingSpec(global_batch=8, seq_len=32)
    layout = Layout.of(model, training, dp=1, micro_batch=1)
    if known.config["model_type"] in COVERED:
        check_supported(model, layout)
    else:
        with pytest.raises(InputError, match="not built yet"):
            check_supported(model, layout)
