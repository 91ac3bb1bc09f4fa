"""`ModelSpec`: what is trained, as towers of blocks and the edges between them.

A *tower* is an ordered list of blocks that sees one stream of tokens. A decoder is one tower and
no edge; an encoder-decoder has two towers and an edge from the encoder's output to every
cross-attention. Layers that are equal and adjacent are written once with ``repeat``.

Parameter counts are exact and are sums over blocks, so they can never disagree with the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

from pydantic import Field, PositiveFloat, model_validator

from shardwright.specs._base import Spec
from shardwright.specs.blocks import (
    Block,
    ClassifierBlock,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    PatchEmbeddingBlock,
    PoolerBlock,
    PredictionBlock,
    ProjectorBlock,
    ResidualBranch,
    parts_of,
)
from shardwright.specs.bodies import (
    Activation,
    AttentionBlock,
    LatentAttentionBlock,
    LinearBlock,
    MlpBlock,
    MoeBlock,
    NormBlock,
    RotaryPositions,
    SparseIndexer,
    StateSpaceBlock,
)
from shardwright.specs.errors import InputError
from shardwright.specs.ranges import MOST_LAYERS, Extent

__all__ = [
    "Activation",
    "AttentionBlock",
    "Block",
    "ClassifierBlock",
    "Edge",
    "EmbeddingBlock",
    "HeadBlock",
    "LatentAttentionBlock",
    "LayerBlock",
    "LinearBlock",
    "MlpBlock",
    "ModelSpec",
    "MoeBlock",
    "NormBlock",
    "PatchEmbeddingBlock",
    "PoolerBlock",
    "PredictionBlock",
    "ProjectorBlock",
    "ResidualBranch",
    "RotaryPositions",
    "SparseIndexer",
    "StateSpaceBlock",
    "Tower",
]


_Found = TypeVar("_Found", EmbeddingBlock, NormBlock, HeadBlock)


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
        widths = {part.hidden_size for block in self.blocks for part in parts_of(block)}
        if len(widths) > 1:
            raise ValueError(f"blocks of {self.name} have hidden sizes {sorted(widths)}, not one")
        return self

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states between layers."""
        return next(part.hidden_size for block in self.blocks for part in parts_of(block))

    @property
    def num_parameters(self) -> int:
        return sum(block.num_parameters for block in self.blocks)

    @property
    def num_active_parameters(self) -> int:
        """Without what only multi-token prediction uses, and without idle experts."""
        return sum(
            block.num_active_parameters if isinstance(block, LayerBlock) else block.num_parameters
            for block in self.blocks
            if not isinstance(block, PredictionBlock)
        )

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


class Edge(Spec):
    """A tensor that one block produces and another consumes outside the tower's order."""

    kind: Literal["tied_weight", "hidden"]
    """``hidden``: one tower's output that another reads (encoder output, vision features)."""
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
        blocks = self.decoder.blocks
        kinds = [block.kind for block in blocks]
        for kind in ("embedding", "patch_embedding", "head", "classifier", "mtp"):
            if kinds.count(kind) > 1:
                raise ValueError(f"the {self.decoder.name} has {kinds.count(kind)} {kind} blocks")
        if not {"embedding", "patch_embedding"} & set(kinds):
            raise ValueError(f"the {self.decoder.name} has 0 embedding blocks, not one")
        if self._is_causal and not {"head", "classifier", "pooler"} & set(kinds):
            raise ValueError(f"the {self.decoder.name} has 0 head blocks, not one")
        if "layer" not in kinds:
            raise ValueError(f"the {self.decoder.name} has no layer")
        if kinds.count("norm") != 1 and self.is_language_model and self._is_pre_norm:
            raise ValueError(
                f"the {self.decoder.name} has {kinds.count('norm')} norm blocks, not one"
            )
        if self.is_language_model and self.embedding.vocab_size != self.head.vocab_size:
            raise ValueError(
                f"vocab_size is {self.embedding.vocab_size} in the embedding, but"
                f" {self.head.vocab_size} in the head"
            )
        positions = self.embedding.max_positions if "embedding" in kinds else None
        if positions is not None and (self.max_seq_len is None or self.max_seq_len > positions):
            raise ValueError(
                f"max_seq_len ({self.max_seq_len}) exceeds the {positions} learned positions"
            )
        return self

    @property
    def _is_causal(self) -> bool:
        """Whether tokens are predicted one after the other."""
        bodies = [part for block in self.decoder.blocks for part in parts_of(block)]
        return any(isinstance(body, AttentionBlock) and body.causal for body in bodies)

    @property
    def _is_pre_norm(self) -> bool:
        """Whether nothing normalises the residual stream itself before the end."""
        layers = [block for block in self.decoder.blocks if isinstance(block, LayerBlock)]
        return all(
            branch.pre_norm and not branch.norm_after_add
            for layer in layers
            for branch in layer.branches
        )

    @property
    def is_language_model(self) -> bool:
        """Whether the loss is over a vocabulary."""
        kinds = {block.kind for block in self.decoder.blocks}
        return {"embedding", "head"} <= kinds

    @property
    def num_parameters(self) -> int:
        """Every parameter once; a tied weight counts once. Multi-token prediction counts apart."""
        total = sum(tower.num_parameters for tower in self.towers)
        return total - self.num_prediction_parameters

    @property
    def num_prediction_parameters(self) -> int:
        """Of the layers that only multi-token prediction uses."""
        blocks = (block for tower in self.towers for block in tower.blocks)
        return sum(b.num_parameters for b in blocks if isinstance(b, PredictionBlock))

    @property
    def num_active_parameters(self) -> int:
        """Those that one token meets, embedding and head included: of the routed experts, the
        ``top_k`` chosen ones. Multi-token prediction counts apart."""
        return sum(tower.num_active_parameters for tower in self.towers)

    @property
    def decoder(self) -> Tower:
        """The tower that carries the loss."""
        return self.towers[-1]

    @property
    def vocab_size(self) -> int | None:
        """Of its tokens; null for models that read images only."""
        found = (b for tower in self.towers for b in tower.blocks if isinstance(b, EmbeddingBlock))
        return next((block.vocab_size for block in found), None)

    @property
    def embedding(self) -> EmbeddingBlock:
        return self._only(EmbeddingBlock, "token embedding")

    @property
    def final_norm(self) -> NormBlock:
        return self._only(NormBlock, "final norm")

    @property
    def head(self) -> HeadBlock:
        return self._only(HeadBlock, "vocabulary head")

    def _only(self, kind: type[_Found], what: str) -> _Found:
        for block in self.decoder.blocks:
            if isinstance(block, kind):
                return block
        raise InputError(
            f"{self.name} has no {what}",
            why=f"its {self.decoder.name} is not a language model's decoder",
            fix="use a language model; encoders get a head with `head = mlm`",
        )
