"""Model blocks count their own parameters, and the model is their sum."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shardwright.specs import AttentionBlock, MlpBlock, ModelSpec, NormBlock, RotaryPositions
from tests.specs.small import model


def attention(**changes: object) -> AttentionBlock:
    fields = {
        "hidden_size": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8,
        "qkv_bias": False, "output_bias": False, "rotary": None,
    }  # fmt: skip
    return AttentionBlock.model_validate(fields | changes)


def test_parameters_of_blocks() -> None:
    assert attention().num_parameters == 16 * (32 + 2 * 16) + 32 * 16
    assert attention(qkv_bias=True).num_parameters == attention().num_parameters + 64
    assert attention(output_bias=True).num_parameters == attention().num_parameters + 16
    gated = MlpBlock(hidden_size=16, ffn_size=24, activation="silu", gated=True, bias=True)
    assert gated.num_parameters == 3 * 16 * 24 + 2 * 24 + 16
    plain = MlpBlock(hidden_size=16, ffn_size=24, activation="gelu", gated=False, bias=False)
    assert plain.num_parameters == 2 * 16 * 24
    norm = NormBlock(type="layer_norm", hidden_size=16, bias=True, epsilon=1e-5)
    assert norm.num_parameters == 32


def test_query_groups_must_be_whole() -> None:
    with pytest.raises(ValidationError, match=r"num_heads \(4\) must be a multiple"):
        attention(num_kv_heads=3)


def test_a_model_is_the_sum_of_its_blocks() -> None:
    small = model()
    layer = 16 * (16 + 2 * 8) + 16 * 16 + 3 * 16 * 24 + 2 * 16
    assert small.num_parameters == 2 * 96 * 16 + 4 * layer + 16
    assert small.decoder.num_layers == 4
    layers = list(small.decoder.layers())
    assert [one.repeat for one in layers] == [1] * 4
    assert sum(one.num_parameters for one in layers) == 4 * layer
    assert (small.embedding.vocab_size, small.head.tied, small.final_norm.bias) == (
        96,
        False,
        False,
    )


def test_rotary_positions_need_an_even_head() -> None:
    with pytest.raises(ValidationError, match="even head_dim, not 7"):
        attention(head_dim=7, rotary=RotaryPositions(base=1e4))


def test_rotary_scaling_needs_frequencies_in_order() -> None:
    with pytest.raises(ValidationError, match=r"low_freq_factor \(4\) is not below"):
        RotaryPositions(base=1e4, low_freq_factor=4.0, high_freq_factor=4.0)


@pytest.mark.parametrize(
    ("block", "changes", "message"),
    [
        pytest.param(0, {"hidden_size": 8}, r"hidden sizes \[8, 16\], not one", id="widths"),
        pytest.param(0, {"vocab_size": 95}, "95 in the embedding, but 96 in the head", id="vocab"),
        pytest.param(0, {"max_positions": 63}, r"exceeds the 63 learned", id="positions"),
        pytest.param(1, {"repeat": 513}, "less than or equal to 512", id="layers"),
        pytest.param(2, None, "0 norm blocks, not one", id="no-norm"),
        pytest.param(1, None, "no layer", id="no-layer"),
    ],
)
def test_a_decoder_is_whole(block: int, changes: dict[str, int] | None, message: str) -> None:
    value = model().model_dump()
    blocks = list(value["towers"][0]["blocks"])
    if changes is None:
        del blocks[block]
    else:
        blocks[block] |= changes
    value["towers"] = [{**value["towers"][0], "blocks": blocks}]
    with pytest.raises(ValidationError, match=message):
        ModelSpec.model_validate(value)
