"""Layers of different sizes, as an architecture search found them."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import InputError
from tests.specs.sources.huggingface.built import read


def block(group: int | None, mult: float, **ffn: bool) -> dict[str, Any]:
    return {
        "attention": {"n_heads_in_group": group, "no_op": group is None},
        "ffn": {"ffn_mult": mult, **ffn},
    }


CONFIG: dict[str, Any] = {
    "model_type": "nemotron-nas", "vocab_size": 512, "hidden_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": None, "intermediate_size": None,
    "block_configs": [block(4, 3.0), block(8, 1.0), block(None, 1.0),
                      block(4, 3.0, replace_with_linear=True)],
}  # fmt: skip


def test_each_layer_has_its_own_sizes() -> None:
    spec = read(CONFIG)
    layers = list(spec.decoder.layers())
    assert [len(layer.branches) for layer in layers] == [2, 2, 1, 2]
    attention = 2 * 512 * 512 + 2 * 512 * 2 * 64
    assert layers[0].num_parameters == attention + 3 * 512 * 1024 + 2 * 512
    assert layers[1].num_parameters == attention - 2 * 512 * 64 + 3 * 512 * 512 + 2 * 512
    assert layers[2].num_parameters == 3 * 512 * 512 + 512
    assert layers[3].branches[1].body.kind == "linear"


def test_every_layer_must_be_described() -> None:
    with pytest.raises(InputError, match="block_configs has 4 entries"):
        read(CONFIG | {"num_hidden_layers": 5})
