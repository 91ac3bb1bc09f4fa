"""Decoders found by architecture search: every layer has sizes of its own."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, PositiveFloat, model_validator

from shardwright.specs.bodies import BranchBody, LinearBlock
from shardwright.specs.ranges import Extent, HeadCount
from shardwright.specs.sources.huggingface.decoder import LayerKind
from shardwright.specs.sources.huggingface.llama import LlamaConfig


class NasAttention(BaseModel):
    """``attention`` of one of ``block_configs``."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    n_heads_in_group: HeadCount | None = None
    no_op: bool = False
    replace_with_linear: bool = False
    window_length: Extent | None = None
    num_sink_tokens: Literal[0] | None = None


class NasFeedForward(BaseModel):
    """``ffn`` of one of ``block_configs``."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    ffn_mult: PositiveFloat | None = None
    no_op: bool = False
    replace_with_linear: bool = False


class NasBlock(BaseModel):
    """One of ``block_configs``."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    attention: NasAttention
    ffn: NasFeedForward


class NemotronNasConfig(LlamaConfig):
    """``model_type: nemotron-nas``: as Llama, each layer with its own kv heads and ffn width."""

    block_configs: list[NasBlock]

    @model_validator(mode="after")
    def _blocks_are_complete(self) -> Self:
        if len(self.block_configs) != self.num_hidden_layers:
            raise ValueError(
                f"block_configs has {len(self.block_configs)} entries for"
                f" num_hidden_layers = {self.num_hidden_layers}"
            )
        return self

    def layer_kinds(self) -> list[LayerKind]:
        return [self._kind(block) for block in self.block_configs]

    def _kind(self, block: NasBlock) -> LayerKind:
        attention, ffn = block.attention, block.ffn
        mixer = (
            None
            if attention.no_op
            else "linear"
            if attention.replace_with_linear
            else ("attention")
        )
        forward = None if ffn.no_op else "linear" if ffn.replace_with_linear else "mlp"
        group = attention.n_heads_in_group
        return LayerKind(
            mixer=mixer, feed_forward=forward, window=attention.window_length,
            heads=self.num_attention_heads // group if group else None,
            size=self._ffn_size(ffn.ffn_mult) if ffn.ffn_mult else None,
        )  # fmt: skip

    def _ffn_size(self, multiple: float) -> int:
        """As DeciLM computes it: two thirds of 4 x, up to the next multiple of 256."""
        size = int(2 * multiple * self.hidden_size / 3)
        return -(-size // 256) * 256

    def mixer(self, kind: LayerKind) -> BranchBody:
        if kind.mixer == "linear":
            return LinearBlock(hidden_size=self.hidden_size)
        return self.attention(kind)

    def feed_forward(self, kind: LayerKind) -> BranchBody:
        if kind.feed_forward == "linear":
            return LinearBlock(hidden_size=self.hidden_size)
        return super().feed_forward(kind)
