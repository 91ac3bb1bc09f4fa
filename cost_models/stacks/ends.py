"""Embeddings, heads with their loss, and the smaller blocks at the ends of towers, as parts."""

from __future__ import annotations

import math

from shardwright.cost_models.stacks.linear import norm, products, projection
from shardwright.cost_models.stacks.operations import (
    CollectiveKind,
    Message,
    Operation,
    Part,
    Traffic,
)
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.specs import (
    ClassifierBlock,
    EmbeddingBlock,
    HeadBlock,
    PatchEmbeddingBlock,
    PoolerBlock,
    ProjectorBlock,
)

_LOGIT_BYTES = 4
"""The loss is computed in fp32."""


def embedding(block: EmbeddingBlock, s: Sharding) -> list[Part]:
    """Vocabulary-parallel lookup, positions, dropout."""
    hidden = block.hidden_size
    rows = math.ceil(block.vocab_size / s.tp)
    size = s.tokens * hidden * s.item_bytes
    stream = s.stream_tokens * hidden * s.item_bytes
    reduce: tuple[Message, ...] = ()
    gather: tuple[Message, ...] = ()
    if s.tp > 1:
        kind: CollectiveKind = "reduce_scatter" if s.is_sequence_parallel else "all_reduce"
        reduce = (Message(kind, size, "tp"),)
        if s.is_sequence_parallel:
            gather = (Message("all_gather", stream, "tp"),)
    width = block.table_size or hidden
    projects = block.table_size is not None
    table = 0 if block.shared else rows * width
    parts = [
        Part(
            "embedding",
            forward=(Traffic(2 * size), *reduce),
            # The table's gradient is cleared in full before the rows are added.
            backward_weight=()
            if s.frozen
            else (*gather, Traffic(3 * size + rows * width * s.item_bytes)),
            internal_bytes=s.stream_tokens * hidden * s.dropout,
            output_bytes=stream,
            parameters=table + _rows_beside(block),
            table_sides=(rows + width) * (not block.shared),
        )
    ]
    if projects:  # its bias is counted with the rows
        parts.append(projection("embedding", s, s.stream_tokens, width, hidden))
    normed = norm(block.norm, s, "embedding_norm")
    return parts if normed is None else [*parts, normed]


def _rows_beside(block: EmbeddingBlock) -> int:
    """Parameters besides the table, the projection behind it and the norm."""
    width = block.table_size or block.hidden_size
    table = 0 if block.shared else block.vocab_size * width
    behind = 0 if block.table_size is None else width * block.hidden_size
    return block.num_parameters - table - behind - (block.norm.num_parameters if block.norm else 0)


def patch_embedding(block: PatchEmbeddingBlock, s: Sharding) -> list[Part]:
    """One convolution with stride equal to its kernel: a product over patches.

    Learned tokens are no patches.
    """
    pixels = block.num_channels * block.num_frames * block.patch_size**2
    rows = s.tokens * block.num_patches / block.num_tokens
    normed = norm(block.norm, s, "embedding_norm")
    beside = block.num_parameters - pixels * block.hidden_size
    beside -= block.norm.num_parameters if block.norm else 0
    parts = [
        projection("embedding", s, rows, pixels, block.hidden_size, replicated_parameters=beside,
                   output_bytes=s.tokens * block.hidden_size * s.item_bytes)
    ]  # fmt: skip
    return parts if normed is None else [*parts, normed]


def head(block: HeadBlock, s: Sharding, *, loss_chunks: int = 1, fused: bool = False) -> list[Part]:
    """Logits over this rank's vocabulary, and the loss in fp32.

    ``loss_chunks`` > 1: logits of one chunk of tokens at a time, made again in backward.
    ``fused``: the loss kernel works on the logits in place, in their own dtype.
    """
    width, own = block.table_size or block.hidden_size, math.ceil(block.vocab_size / s.tp)
    parts = _transform(block, s)
    forward, d_input, d_weight, adapters = products(
        s, s.tokens, width, own, width="compute", adapted=False
    )
    logits = s.tokens * own
    size = s.tokens * width * s.item_bytes
    messages = _loss_messages(s, width)
    item = s.item_bytes
    read = 2 * item if fused else item + 3 * _LOGIT_BYTES
    again: tuple[Operation, ...] = tuple(forward) if loss_chunks > 1 else ()
    kept = logits * (item if fused else s.loss_bytes) / loss_chunks
    parts.append(
        Part(
            "head",
            forward=(*messages[0], *forward, Traffic(logits * read, 3 if fused else 5)),
            backward_input=(*again, Traffic(logits * read, 2), *d_input, *messages[1]),
            backward_weight=tuple(d_weight),
            internal_bytes=kept + size * (1 + s.is_sequence_parallel),  # gradient of the input; it
            parameters=_table(block, own) + own * block.bias,
            adapters=adapters,
        )
    )
    return parts


def _table(block: HeadBlock, own: int) -> float:
    return 0 if block.tied else own * (block.table_size or block.hidden_size)


def _transform(block: HeadBlock, s: Sharding) -> list[Part]:
    """A dense layer with its norm (masked language models), or one to the table's width."""
    hidden, width = block.hidden_size, block.table_size or block.hidden_size
    rows = s.stream_tokens
    if block.transform is None:
        return [] if block.table_size is None else [projection("head", s, rows, hidden, width)]
    bias = block.transform_bias or block.table_size is not None
    after = norm(block.transform, s, "head")
    assert after is not None
    return [projection("head", s, rows, hidden, width, bias=bias), after]


def _loss_messages(s: Sharding, hidden: int) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The input gathered, three small sums for the loss; backward, the input's gradient."""
    if s.tp == 1:
        return (), ()
    part = s.tokens / s.tp * hidden * s.item_bytes
    sums = (Message("all_reduce", s.tokens * 4.0, "tp"),) * 3
    if s.is_sequence_parallel:
        again = () if s.frozen else (Message("all_gather", part, "tp", overlaps=True),)
        return (
            (Message("all_gather", part, "tp"), *sums),
            (Message("reduce_scatter", part * s.tp, "tp"), *again),
        )
    return sums, (Message("all_reduce", part * s.tp, "tp"),)


def classifier(block: ClassifierBlock, s: Sharding) -> list[Part]:
    """One token's logits."""
    return [projection("head", s, s.batch, block.hidden_size, block.num_labels, bias=block.bias)]


def pooler(block: PoolerBlock, s: Sharding) -> list[Part]:
    """A dense layer on one token; or a learned query that attends to all, and an MLP (SigLIP)."""
    hidden, rows = block.hidden_size, s.batch
    if block.ffn_size is None:
        return [projection("head", s, rows, hidden, hidden, bias=True)]
    sizes = ((hidden, hidden), (hidden, hidden), (hidden, block.ffn_size), (block.ffn_size, hidden))
    keys = projection("head", s, s.tokens, hidden, 2 * hidden, bias=True,
                      replicated_parameters=3 * hidden)  # fmt: skip
    return [keys, *(projection("head", s, rows, one, two, bias=True) for one, two in sizes)]


def projector(block: ProjectorBlock, s: Sharding) -> list[Part]:
    """An MLP between towers, over ``merge`` neighbouring patches at a time."""
    rows, read = s.tokens / block.merge, block.hidden_size * block.merge
    sizes = [block.output_size]
    if block.num_layers == 2:
        sizes.insert(0, block.middle_size or block.output_size)
    before = norm(block.norm, s, "projector")
    parts = [] if before is None else [before]
    token = block.output_size * block.row_token
    for outputs in sizes:
        parts.append(projection("projector", s, rows, read, outputs, bias=block.bias,
                                replicated_parameters=token))  # fmt: skip
        read, token = outputs, 0
    return parts


def prediction_entry(hidden: int, s: Sharding, norm_parameters: int) -> Part:
    """MTP: the projection of [hidden; embedding], with norms before."""
    rows = s.stream_tokens
    return projection("mtp", s, rows, 2 * hidden, hidden,
                      extra_bytes=6 * rows * hidden * s.item_bytes,
                      replicated_parameters=norm_parameters)  # fmt: skip
