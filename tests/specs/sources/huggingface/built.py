"""What `transformers` builds from a config, to hold our counts against."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from shardwright.specs import ModelSpec
from shardwright.specs.sources import model_from_config

BUFFERS = ("correction_bias",)
"""Router state that the library keeps in buffers and we count."""


def read(config: dict[str, Any], **more: Any) -> ModelSpec:
    return model_from_config(config, name="test", source="config.json", **more).spec


def library_config(model_type: str, fields: dict[str, Any]) -> Any:
    """The library's config object; skips where it does not know the family."""
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers does not know {model_type}")
    return transformers.CONFIG_MAPPING[model_type](**fields)


def count_built(config: Any, auto: str) -> int:
    """Parameters of the model that ``transformers.<auto>`` builds, without memory for any."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        built = getattr(transformers, auto).from_config(config)
    kept = (buffer for name, buffer in built.named_buffers() if name.endswith(BUFFERS))
    counted = (*built.parameters(), *kept)
    return sum(int(tensor.numel()) for tensor in counted)


def assert_counts_as_built(
    model_type: str, fields: dict[str, Any], auto: str = "AutoModelForCausalLM", **more: Any
) -> ModelSpec:
    """Our count of the library's full config is the library's own; returns our model."""
    config = library_config(model_type, fields)
    full = json.loads(config.to_json_string(use_diff=False))
    spec = read(full, **more)
    assert spec.num_parameters == count_built(config, auto)
    return spec
