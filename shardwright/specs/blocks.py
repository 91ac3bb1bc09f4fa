"""The blocks of a tower: residual layers, what stands before them and what stands behind them.

Every block counts its own parameters exactly; a weight that is tied or shared counts where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

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
    scale: PositiveFloat | None = None
    """A constant that multiplies what the branch adds."""
    learned_scale: bool = False
    """A learned vector multiplies what the branch adds (DINOv2)."""

    @property
    def num_parameters(self) -> int:
        norms = (norm.num_parameters for norm in (self.pre_norm, self.post_norm) if norm)
        return self.body.num_parameters + sum(norms) + self.body.hidden_size * self.learned_scale


class LayerBlock(Spec):
    """One Transformer layer, or ``repeat`` equal ones: residual branches in order."""

    kind: Literal["layer"] = "layer"
    branches: tuple[ResidualBranch, ...]
    repeat: LayerCount = 1
    parallel: bool = False
    """Every branch reads the layer's input, and their outputs are added (GPT-NeoX)."""
    shared_norm: bool = False
    """Parallel branches read one normed input: the first branch's ``pre_norm`` (GPT-J, Falcon)."""

    @property
    def num_parameters_each(self) -> int:
        return sum(branch.num_parameters for branch in self.branches)

    @property
    def num_parameters(self) -> int:
        return self.num_parameters_each * self.repeat

    @property
    def num_active_parameters(self) -> int:
        """Without the routed experts that a token does not meet."""
        idle = sum(
            branch.body.num_parameters - branch.body.num_active_parameters
            for branch in self.branches
            if isinstance(branch.body, MoeBlock)
        )
        return self.num_parameters - idle * self.repeat


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
    scale: PositiveFloat | None = None
    """A constant that multiplies the token embeddings (Gemma)."""
    num_relative_positions: Extent | None = None
    """Learned vectors of distances that every layer reads, with a LayerNorm (DeBERTa-v2)."""
    table_positions: bool = False
    """Positions and token types are as wide as the table (ELECTRA)."""

    @property
    def num_parameters(self) -> int:
        width = self.table_size or self.hidden_size
        table = 0 if self.shared else self.vocab_size * width
        projection = 0 if self.table_size is None else width * self.hidden_size
        rows = (self.max_positions or 0) + (self.num_token_types or 0)
        positions = rows * (width if self.table_positions else self.hidden_size)
        relative = (self.num_relative_positions or 0) * self.hidden_size
        relative += 2 * self.hidden_size if relative else 0
        norm = self.norm.num_parameters if self.norm else 0
        bias = self.hidden_size if self.table_positions else 0  # of the projection
        return table + projection + bias + positions + relative + norm


class PatchEmbeddingBlock(Spec):
    """Image patches to tokens by one convolution, with learned positions (ViT)."""

    kind: Literal["patch_embedding"] = "patch_embedding"
    hidden_size: Extent
    patch_size: Extent
    num_channels: Extent = 3
    num_frames: Extent = 1
    """Frames that one patch spans."""
    num_patches: Extent
    class_token: bool = True
    num_extra_tokens: NonNegativeInt = 0
    """Learned tokens beside the class token, with positions (DeiT's distillation token)."""
    positions: bool = True
    """Whether every token has a learned position."""
    mask_token: bool = False
    """A learned patch stands in for masked ones (DINOv2)."""
    bias: bool = True
    norm: NormBlock | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_patches + self.num_learned_tokens

    @property
    def num_learned_tokens(self) -> int:
        return self.class_token + self.num_extra_tokens

    @property
    def num_parameters(self) -> int:
        pixels = self.num_channels * self.num_frames * self.patch_size**2
        tokens = self.num_learned_tokens + self.mask_token + self.num_tokens * self.positions
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
    """A dense layer and this norm come before (masked language models)."""
    transform_bias: bool = True
    table_size: Extent | None = None
    """Width of the vocabulary's table where a projection from ``hidden_size`` comes before."""
    scale: PositiveFloat | None = None
    """A constant that multiplies the logits."""
    softcap: PositiveFloat | None = None
    """Logits pass through softcap x tanh(logit / softcap) (Gemma 2)."""
    normalized: bool = False
    """The table's rows are scaled to length 1 (Baichuan 2)."""

    @property
    def num_parameters(self) -> int:
        width = self.table_size or self.hidden_size
        table = (0 if self.tied else self.vocab_size * width) + self.vocab_size * self.bias
        projection = 0 if self.table_size is None else width * self.hidden_size
        if self.transform is None:
            return table + projection
        if self.table_size is not None:  # the dense layer is the projection (ELECTRA)
            return table + projection + width + self.transform.num_parameters
        dense = self.hidden_size * (self.hidden_size + self.transform_bias)
        return table + dense + self.transform.num_parameters


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
    ffn_size: Extent | None = None
    """Not null: a learned query attends to all tokens, then a norm and an MLP (SigLIP)."""

    @property
    def num_parameters(self) -> int:
        size = self.hidden_size
        if self.ffn_size is None:
            return size * (size + 1)
        attention, norm, query = 4 * size * (size + 1), 2 * size, size
        return query + attention + norm + 2 * size * self.ffn_size + self.ffn_size + size


class ProjectorBlock(Spec):
    """One linear layer, or two, from one tower's features to another's width (LLaVA)."""

    kind: Literal["projector"] = "projector"
    hidden_size: Extent
    """Of what it reads."""
    output_size: Extent
    num_layers: Literal[1, 2] = 2
    bias: bool = True
    middle_size: Extent | None = None
    """Between the layers; null = output_size."""
    merge: Extent = 1
    """So many neighbouring patches are read side by side as one (Qwen2-VL)."""
    norm: NormBlock | None = None
    """Over what it reads."""
    row_token: bool = False
    """A learned token ends every row of patches (LLaVA-NeXT)."""

    @property
    def num_parameters(self) -> int:
        read, middle = self.hidden_size * self.merge, self.middle_size or self.output_size
        more = self.norm.num_parameters if self.norm else 0
        more += self.output_size * self.row_token
        if self.num_layers == 1:
            return more + (read + self.bias) * self.output_size
        return more + (read + self.bias) * middle + (middle + self.bias) * self.output_size


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
