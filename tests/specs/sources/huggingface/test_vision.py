"""Vision encoders count as the library builds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specs.sources.huggingface.built import assert_counts_as_built, read

CASES: dict[str, dict[str, Any]] = {
    "dinov2": {"num_hidden_layers": 2},
    "clip_vision_model": {"num_hidden_layers": 2},
    "siglip_vision_model": {"num_hidden_layers": 2},
    "pixtral": {"num_hidden_layers": 2},
}


@pytest.mark.parametrize("model_type", CASES)
def test_counts_are_those_of_the_library(model_type: str) -> None:
    assert_counts_as_built(model_type, CASES[model_type], "AutoModel")


def test_classifiers_have_as_many_labels_as_stated_and_no_pooler() -> None:
    config = {
        "model_type": "vit", "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224, "patch_size": 16,
    }  # fmt: skip
    spec = read(config)
    assert spec.num_parameters == 86_567_656  # ViT-B/16 with 1000 labels
    assert spec.decoder.tokens_per_sample == 197
    labels = {"id2label": {str(label): str(label) for label in range(10)}}
    assert spec.num_parameters - read(config | labels).num_parameters == 990 * 769
    bare = read(config | {"architectures": ["ViTModel"]})
    assert bare.num_parameters == 86_389_248  # ViT-B/16 pretrained on 21k classes
    distilled = read(config | {"model_type": "deit", "architectures": ["DeiTModel"]})
    assert distilled.num_parameters == bare.num_parameters + 2 * 768
