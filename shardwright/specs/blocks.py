"""The blocks of a tower: residual layers, what stands before them and what stands behind them.

Every block counts its own parameters exactly; a weight that is tied or shared counts where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from shardwright.specs._base import Spec
from shardwright.specs.bodies import (
    AttentionBlock,
    BranchBody,
    LatentAttentionBlock,
    LinearBlock,
    MlpBlock,
    MoeBlock,
    NormBlock,
    StateSpaceBlock,
)
from shardwright.specs.ranges import Extent, LayerCount


class ResidualBranch(Spec):
    """``x + post_norm(body(pre_norm(x)))``; an absent norm is the identity.

    ``norm_after_add``: ``post_norm(x + body(x))`` as in BERT.
    """

    body: BranchBody
    pre_norm: NormBlock | None
    post_norm: NormBlock | None = None
    norm_after_add: bool = False

    @property
    def num_parameters(self) -> int:
        norms = (norm.num_parameters for norm in (self.pre_norm, self.post_norm) if norm)
        return self.body.num_parameters + sum(norms)


class LayerBlock(Spec):
    """One Transformer layer, or ``repeat`` equal ones: residual branches in order."""

    kind: Literal["layer"] = "layer"
    branches: tuple[ResidualBranch, ...]
    repeat: LayerCount = 1
    parallel: bool = False
    """Every branch reads the layer's input, and their outputs are added (GPT-J, Falcon)."""

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
    num_token_types: Extent | None = None
    norm: NormBlock | None = None
    """Over the sum of the embeddings (BERT, BLOOM)."""
    table_size: Extent | None = None
    """Width of the table where a projection to ``hidden_size`` follows; null = hidden_size."""
    shared: bool = False
    """The table is that of another tower (T5), and counted there."""

    @property
    def num_parameters(self) -> int:
        width = self.table_size or self.hidden_size
        table = 0 if self.shared else self.vocab_size * width
        projection = 0 if self.table_size is None else width * self.hidden_size
        positions = ((self.max_positions or 0) + (self.num_token_types or 0)) * self.hidden_size
        return table + projection + positions + (self.norm.num_parameters if self.norm else 0)


class PatchEmbeddingBlock(Spec):
    """Image patches to tokens by one convolution, with learned positions (ViT)."""

    kind: Literal["patch_embedding"] = "patch_embedding"
    hidden_size: Extent
    patch_size: Extent
    num_channels: Extent = 3
    num_patches: Extent
    class_token: bool = True
    bias: bool = True
    norm: NormBlock | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_patches + self.class_token

    @property
    def num_parameters(self) -> int:
        pixels = self.num_channels * self.patch_size**2
        tokens = self.num_tokens + self.class_token
        norm = self.norm.num_parameters if self.norm else 0
        return self.hidden_size * (pixels + self.bias + tokens) + norm


class HeadBlock(Spec):
    """Projection to the vocabulary and the cross-entropy loss.

    A tied head (see `Edge`) uses the embedding's weight and has no such parameters of its own.
    """

    kind: Literal["head"] = "head"
    vocab_size: Extent
    hidden_size: Extent
    tied: bool
    bias: bool = False
    transform: NormBlock | None = None
    """A dense layer with bias and this norm come before (masked language models)."""
    table_size: Extent | None = None
    """Width of the vocabulary's table where a projection from ``hidden_size`` comes before."""

    @property
    def num_parameters(self) -> int:
        width = self.table_size or self.hidden_size
        table = (0 if self.tied else self.vocab_size * width) + self.vocab_size * self.bias
        projection = 0 if self.table_size is None else width * self.hidden_size
        if self.transform is None:
            return table + projection
        dense = self.hidden_size * (self.hidden_size + 1)
        return table + projection + dense + self.transform.num_parameters


class ClassifierBlock(Spec):
    """One linear layer from one token's hidden state to labels, and the cross-entropy loss."""

    kind: Literal["classifier"] = "classifier"
    hidden_size: Extent
    num_labels: Extent
    bias: bool = True

    @property
    def num_parameters(self) -> int:
        return self.num_labels * (self.hidden_size + self.bias)


class PoolerBlock(Spec):
    """A dense layer with tanh on the first token (BERT)."""

    kind: Literal["pooler"] = "pooler"
    hidden_size: Extent

    @property
    def num_parameters(self) -> int:
        return self.hidden_size * (self.hidden_size + 1)


class ProjectorBlock(Spec):
    """An MLP with biases that brings one tower's features to another's width (LLaVA)."""

    kind: Literal["projector"] = "projector"
    hidden_size: Extent
    """Of what it reads."""
    output_size: Extent
    num_layers: Literal[1, 2] = 2
    bias: bool = True

    @property
    def num_parameters(self) -> int:
        first = (self.hidden_size + self.bias) * self.output_size
        return first + (self.num_layers - 1) * (self.output_size + self.bias) * self.output_size


class PredictionBlock(Spec):
    """Multi-token prediction (DeepSeek-V3, arXiv 2412.19437): ``depth`` further layers, each with
    a projection of [hidden; embedding] and norms; embedding and head are the model's own."""

    kind: Literal["mtp"] = "mtp"
    layer: LayerBlock
    hidden_size: Extent
    norm: NormBlock
    depth: Extent = 1

    @property
    def num_parameters(self) -> int:
        norms = 3 * self.norm.num_parameters
        return self.depth * (self.layer.num_parameters_each + 2 * self.hidden_size**2 + norms)


Block = Annotated[
    EmbeddingBlock
    | PatchEmbeddingBlock
    | LayerBlock
    | NormBlock
    | HeadBlock
    | ClassifierBlock
    | PoolerBlock
    | ProjectorBlock
    | PredictionBlock,
    Field(discriminator="kind"),
]


_Part = (
    EmbeddingBlock
    | PatchEmbeddingBlock
    | NormBlock
    | HeadBlock
    | ClassifierBlock
    | PoolerBlock
    | ProjectorBlock
    | PredictionBlock
    | AttentionBlock
    | LatentAttentionBlock
    | MlpBlock
    | MoeBlock
    | StateSpaceBlock
    | LinearBlock
)


def parts_of(block: Block) -> Iterator[_Part]:
    """What reads or writes the hidden states in a block."""
    if not isinstance(block, LayerBlock):
        yield block
        return
    for branch in block.branches:
        yield branch.body
        yield from (norm for norm in (branch.pre_norm, branch.post_norm) if norm is not None)
