"""A vision tower beside a decoder counts as the library builds both."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import InputError
from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "llava": {},
    "llava_next": {},
    "gemma3": {},
    "mistral3": {},
    "qwen2_vl": {},
    "qwen2_5_vl": {},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type], "AutoModelForImageTextToText")


LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "text_config": {"model_type": "llama", "vocab_size": 32064},
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336,
        "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
        "patch_size": 14,
    },
}  # fmt: skip


def test_llava_has_a_vision_tower_with_its_projector() -> None:
    spec = read(LLAVA)
    assert spec.num_parameters == 7_063_427_072
    vision, text = spec.towers
    assert (vision.tokens_per_sample, text.tokens_per_sample) == (577, None)
    assert vision.blocks[-1].kind == "projector"
    assert spec.edges[0].kind == "hidden"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"model_type": "rwkv"}, "text_config.model_type 'rwkv' is not one of llama"),
        ({"model_type": "llama", "novelty": 3}, "text_config has fields .* novelty = 3"),
    ],
)
def test_unknown_parts_are_named(part: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(LLAVA | {"text_config": part})
