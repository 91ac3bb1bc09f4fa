"""The record that decoders share."""

from __future__ import annotations

from typing import Any

from shardwright.specs.sources.huggingface.decoder import DecoderConfig, LayerKind

SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4,
}  # fmt: skip


class Alternating(DecoderConfig):
    """Windows in every other layer."""

    def layer_kinds(self) -> list[LayerKind]:
        return [LayerKind(window=None if n % 2 else 8) for n in range(self.num_hidden_layers)]


def test_equal_neighbours_are_written_once() -> None:
    kinds = [block.kind for block in DecoderConfig(**SMALL).blocks()]
    assert kinds == ["embedding", "layer", "norm", "head"]
    assert [block.kind for block in Alternating(**SMALL).blocks()].count("layer") == 3


def test_a_tied_head_has_an_edge() -> None:
    assert DecoderConfig(**SMALL).edges() == ()
    (edge,) = DecoderConfig(**SMALL, tie_word_embeddings=True).edges()
    assert (edge.kind, edge.shape) == ("tied_weight", (96, 64))
