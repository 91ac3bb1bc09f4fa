"""A model is the sum of its blocks, and its decoder is whole."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shardwright.specs import ModelSpec
from tests.specs.small import model


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


@pytest.mark.parametrize(
    ("block", "changes", "message"),
    [
        pytest.param(0, {"hidden_size": 8}, r"hidden sizes \[8, 16\], not one", id="widths"),
        pytest.param(0, {"vocab_size": 95}, "95 in the embedding, but 96 in the head", id="vocab"),
        pytest.param(0, {"max_positions": 63}, r"exceeds the 63 learned", id="positions"),
        pytest.param(1, {"repeat": 513}, "less than or equal to 512", id="layers"),
        pytest.param(2, None, "0 norm blocks, not one", id="no-norm"),
        pytest.param(1, None, "no layer", id="no-layer"),
        pytest.param(3, None, "0 head blocks, not one", id="no-head"),
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
