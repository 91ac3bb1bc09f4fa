"""`ModelSpec`: what is trained, as towers of blocks and the edges between them.

A *tower* is an ordered list of blocks that sees one stream of tokens. A decoder is one tower and
no edge; an encoder-decoder has two towers and an edge from the encoder's output to every
cross-attention. Layers that are equal and adjacent are written once with ``repeat``.

Parameter counts are exact and are sums over blocks, so they can never disagree with the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from shardwright.specs._base import Spec
from shardwright.specs.ranges import MOST_LAYERS, Extent, HeadCount, LayerCount


class NormBlock(Spec):
    """Root-mean-square or layer normalisation over the hidden dimension."""

    kind: Literal["norm"] = "norm"
    type: Literal["rms_norm", "layer_norm"]
    hidden_size: Extent
    bias: bool
    """Whether an additive vector follows the multiplicative one."""
    epsilon: PositiveFloat

    @property
    def num_parameters(self) -> int:
        return self.hidden_size * (2 if self.bias else 1)


class RotaryPositions(Spec):
    """Rotary position embedding (Su et al. 2021), rotating pairs (i, i + head_dim / 2)."""

    base: PositiveFloat
    scaling: Literal["none", "llama3"] = "none"
    """``llama3``: the frequency-dependent scaling of Llama 3.1."""
    factor: PositiveFloat = 1.0
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_max_positions: Extent = 8192

    @model_validator(mode="after")
    def _factors_ascend(self) -> RotaryPositions:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor ({self.low_freq_factor:g}) is not below high_freq_factor"
                f" ({self.high_freq_factor:g})"
            )
        return self


class AttentionBlock(Spec):
    """Multi-head or grouped-query self-attention with its four projections."""

    kind: Literal["attention"] = "attention"
    hidden_size: Extent
    num_heads: HeadCount
    num_kv_heads: HeadCount
    head_dim: Extent
    qkv_bias: bool
    output_bias: bool
    rotary: RotaryPositions | None
    causal: bool = True
    sliding_window: Extent | None = None
    """Each token sees at most this many tokens, itself included; null = all."""

    @model_validator(mode="after")
    def _groups_are_whole(self) -> AttentionBlock:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads"
                f" ({self.num_kv_heads})"
            )
        if self.rotary is not None and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {self.head_dim}")
        return self

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        qkv = self.query_size + 2 * self.kv_size
        weights = self.hidden_size * qkv + self.query_size * self.hidden_size
        return weights + qkv * self.qkv_bias + self.hidden_size * self.output_bias


class MlpBlock(Spec):
    """A feed-forward block: ``down(act(up(x)))`` or, gated, ``down(act(gate(x)) * up(x))``."""

    kind: Literal["mlp"] = "mlp"
    hidden_size: Extent
    ffn_size: Extent
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"]
    gated: bool
    bias: bool

    @property
    def num_parameters(self) -> int:
        up = 2 if self.gated else 1
        weights = (up + 1) * self.hidden_size * self.ffn_size
        return weights + (up * self.ffn_size + self.hidden_size) * self.bias


BranchBody = Annotated[AttentionBlock | MlpBlock, Field(discriminator="kind")]


class ResidualBranch(Spec):
    """``x + post_norm(body(pre_norm(x)))``; an absent norm is the identity."""

    body: BranchBody
    pre_norm: NormBlock | None
    post_norm: NormBlock | None = None

    @property
    def num_parameters(self) -> int:
        norms = (norm.num_parameters for norm in (self.pre_norm, self.post_norm) if norm)
        return self.body.num_parameters + sum(norms)


class LayerBlock(Spec):
    """One Transformer layer, or ``repeat`` equal ones: residual branches in order."""

    kind: Literal["layer"] = "layer"
    branches: tuple[ResidualBranch, ...] = Field(min_length=1)
    repeat: LayerCount = 1

    @property
    def num_parameters_each(self) -> int:
        return sum(branch.num_parameters for branch in self.branches)

    @property
    def num_parameters(self) -> int:
        return self.num_parameters_each * self.repeat


class EmbeddingBlock(Spec):
    """Token embedding, and learned absolute positions where ``max_positions`` is given."""

    kind: Literal["embedding"] = "embedding"
    vocab_size: Extent
    hidden_size: Extent
    max_positions: Extent | None = None

    @property
    def num_parameters(self) -> int:
        return (self.vocab_size + (self.max_positions or 0)) * self.hidden_size


class HeadBlock(Spec):
    """Projection to the vocabulary and the cross-entropy loss.

    A tied head (see `Edge`) uses the embedding's weight and has no parameters of its own.
    """

    kind: Literal["head"] = "head"
    vocab_size: Extent
    hidden_size: Extent
    tied: bool

    @property
    def num_parameters(self) -> int:
        return 0 if self.tied else self.vocab_size * self.hidden_size


Block = Annotated[EmbeddingBlock | LayerBlock | NormBlock | HeadBlock, Field(discriminator="kind")]


class Tower(Spec):
    """A named, ordered list of blocks over one stream of tokens."""

    name: str
    blocks: tuple[Block, ...] = Field(min_length=1)
    tokens_per_sample: Extent | None = None
    """Null: the training sequence length."""

    @model_validator(mode="after")
    def _widths_agree(self) -> Tower:
        if self.num_layers > MOST_LAYERS:
            raise ValueError(f"{self.num_layers} layers are more than {MOST_LAYERS}")
        widths = {part.hidden_size for block in self.blocks for part in _parts(block)}
        if len(widths) > 1:
            raise ValueError(f"blocks of {self.name} have hidden sizes {sorted(widths)}, not one")
        return self

    @property
    def num_parameters(self) -> int:
        return sum(block.num_parameters for block in self.blocks)

    @property
    def num_layers(self) -> int:
        return sum(block.repeat for block in self.blocks if isinstance(block, LayerBlock))

    def layers(self) -> Iterator[LayerBlock]:
        """Every layer on its own (``repeat`` = 1), in model order."""
        for block in self.blocks:
            if isinstance(block, LayerBlock):
                one = block.model_copy(update={"repeat": 1})
                for _ in range(block.repeat):
                    yield one


def _parts(
    block: Block,
) -> Iterator[NormBlock | AttentionBlock | MlpBlock | EmbeddingBlock | HeadBlock]:
    """What reads or writes the hidden states in a block."""
    if not isinstance(block, LayerBlock):
        yield block
        return
    for branch in block.branches:
        yield branch.body
        yield from (norm for norm in (branch.pre_norm, branch.post_norm) if norm is not None)


class Edge(Spec):
    """A tensor that one block produces and another consumes outside the tower's order."""

    kind: Literal["tied_weight", "hidden"]
    producer: str
    """``tower/block kind``, e.g. ``decoder/embedding``."""
    consumer: str
    shape: tuple[Extent, ...]


class ModelSpec(Spec):
    """A model to train: its towers, the edges between them, and where it was read from."""

    name: str
    family: str
    """The Hugging Face ``model_type`` that it was read from, or ``custom``."""
    towers: tuple[Tower, ...] = Field(min_length=1)
    edges: tuple[Edge, ...] = ()
    max_seq_len: Extent | None
    """The longest sequence that its positions allow; null = unbounded."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of the normal initialisation of weights."""
    source: str
    """Where the numbers come from: a hub id, a file name, a Python factory."""

    @model_validator(mode="after")
    def _decoder_is_whole(self) -> ModelSpec:
        kinds = [block.kind for block in self.decoder.blocks]
        for kind in ("embedding", "norm", "head"):
            if kinds.count(kind) != 1:
                raise ValueError(f"the decoder has {kinds.count(kind)} {kind} blocks, not one")
        if "layer" not in kinds:
            raise ValueError("the decoder has no layer")
        embedding, head = self.embedding, self.head
        if embedding.vocab_size != head.vocab_size:
            raise ValueError(
                f"vocab_size is {embedding.vocab_size} in the embedding, but {head.vocab_size} in"
                " the head"
            )
        positions = embedding.max_positions
        if positions is not None and (self.max_seq_len is None or self.max_seq_len > positions):
            raise ValueError(
                f"max_seq_len ({self.max_seq_len}) exceeds the {positions} learned positions"
            )
        return self

    @property
    def num_parameters(self) -> int:
        """Every parameter once; a tied weight counts once."""
        return sum(tower.num_parameters for tower in self.towers)

    @property
    def decoder(self) -> Tower:
        """The tower that carries the loss."""
        return self.towers[-1]

    @property
    def embedding(self) -> EmbeddingBlock:
        return next(b for b in self.decoder.blocks if isinstance(b, EmbeddingBlock))

    @property
    def final_norm(self) -> NormBlock:
        return next(b for b in self.decoder.blocks if isinstance(b, NormBlock))

    @property
    def head(self) -> HeadBlock:
        return next(b for b in self.decoder.blocks if isinstance(b, HeadBlock))
