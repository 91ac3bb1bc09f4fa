"""Embeddings, heads with their loss, and the smaller blocks at the ends of towers, as parts."""

from __future__ import annotations

import math

from shardwright.cost_models.stacks.linear import norm, products, projection
from shardwright.cost_models.stacks.operations import Message, Operation, Part, Traffic
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
        kind = "reduce_scatter" if s.is_sequence_parallel else "all_reduce"
        reduce = (Message(kind, size, "tp"),)
        if s.is_sequence_parallel:
            gather = (Message("all_gather", stream, "tp"),)
    extra = block.num_parameters - block.vocab_size * hidden * (not block.shared)
    table = 0 if block.shared else rows * hidden
    parts = [
        Part(
            "embedding",
            forward=(Traffic(2 * size), *reduce),
            backward_weight=() if s.frozen else (*gather, Traffic(3 * size)),
            internal_bytes=s.stream_tokens * hidden * s.dropout,
            output_bytes=stream,
            parameters=table + max(0, extra),
        )
    ]
    normed = norm(block.norm, s, "embedding_norm")
    return parts if normed is None else [*parts, normed]


def patch_embedding(block: PatchEmbeddingBlock, s: Sharding) -> list[Part]:
    """One convolution with stride equal to its kernel: a product over patches."""
    pixels = block.num_channels * block.patch_size**2
    return [
        projection("embedding", s, s.tokens, pixels, block.hidden_size,
                   replicated_parameters=block.num_parameters - pixels * block.hidden_size)
    ]  # fmt: skip


def head(block: HeadBlock, s: Sharding, *, loss_chunks: int = 1, fused: bool = False) -> list[Part]:
    """Logits over this rank's vocabulary, and the loss in fp32.

    ``loss_chunks`` > 1: logits of one chunk of tokens at a time, made again in backward.
    ``fused``: the loss kernel works on the logits in place, in their own dtype.
    """
    hidden, own = block.hidden_size, math.ceil(block.vocab_size / s.tp)
    parts = _transform(block, s)
    forward, d_input, d_weight, adapters = products(
        s, s.tokens, hidden, own, width="compute", adapted=False
    )
    logits = s.tokens * own
    size = s.tokens * hidden * s.item_bytes
    messages = _loss_messages(s, hidden)
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
    if block.transform is None:
        return []
    dense = projection("head", s, s.stream_tokens, block.hidden_size, block.hidden_size, bias=True)
    after = norm(block.transform, s, "head")
    assert after is not None
    return [dense, after]


def _loss_messages(s: Sharding, hidden: int) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The input gathered, three small sums for the loss; backward, the input's gradient."""
    if s.tp == 1:
        return (), ()
    part = s.tokens / s.tp * hidden * s.item_bytes
    sums = (Message("all_reduce", s.tokens * 4.0, "tp"),) * 3
    if s.is_sequence_parallel:
        return (
            (Message("all_gather", part, "tp"), *sums),
            (Message("reduce_scatter", part * s.tp, "tp"),),
        )
    return sums, (Message("all_reduce", part * s.tp, "tp"),)


def classifier(block: ClassifierBlock, s: Sharding) -> list[Part]:
    """One token's logits."""
    return [projection("head", s, s.batch, block.hidden_size, block.num_labels, bias=block.bias)]


def pooler(block: PoolerBlock, s: Sharding) -> list[Part]:
    """A dense layer on one token."""
    return [projection("head", s, s.batch, block.hidden_size, block.hidden_size, bias=True)]


def projector(block: ProjectorBlock, s: Sharding) -> list[Part]:
    """An MLP between towers."""
    parts = [projection("projector", s, s.tokens, block.hidden_size, block.output_size,
                        bias=block.bias)]  # fmt: skip
    if block.num_layers == 2:
        parts.append(projection("projector", s, s.tokens, block.output_size, block.output_size,
                                bias=block.bias))  # fmt: skip
    return parts


def prediction_entry(hidden: int, s: Sharding, norm_parameters: int) -> Part:
    """MTP: the projection of [hidden; embedding], with norms before."""
    rows = s.stream_tokens
    return projection("mtp", s, rows, 2 * hidden, hidden, extra=6 * rows * hidden * s.item_bytes,
                      replicated_parameters=norm_parameters)  # fmt: skip
