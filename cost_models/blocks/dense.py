"""The blocks of dense decoders: embedding, norm, attention, MLP, head with loss.

Each function gives one rank's `BlockBooks` for one micro-batch, in the runtime's own order of
operations (``runtime/parallel/layers.py``, ``runtime/models``); tests hold the two together.
Element-wise bytes are counted kernel by kernel, reads plus writes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.cost_models.blocks.linear import (
    accumulate_gradient,
    column_linear,
    gather_bytes,
    gather_operations,
    reduce_operations,
    reduce_peak,
    row_linear,
)
from shardwright.cost_models.blocks.operations import (
    Attention,
    BlockBooks,
    Collective,
    DeferredGradient,
    Elementwise,
    Operation,
    ParameterBooks,
    SavedTensor,
)
from shardwright.cost_models.blocks.splits import (
    attention_split,
    column_split,
    kv_heads_are_shared,
    sequence_split,
    vocabulary_split,
)
from shardwright.cost_models.blocks.steps import Context, Step, chain
from shardwright.specs.model import (
    AttentionBlock,
    EmbeddingBlock,
    HeadBlock,
    MlpBlock,
    NormBlock,
)

_INDEX_BYTES = 8


def _whole(name: str, shape: tuple[int, ...], context: Context) -> ParameterBooks:
    """A parameter that every tp rank holds; its gradient is partial under sequence parallelism."""
    return ParameterBooks(name, shape, shape, context.shards_sequence, len(shape) > 1)


# Norm


@lru_cache(maxsize=4096)
def norm_books(block: NormBlock, name: str, context: Context, *, in_branch: bool) -> BlockBooks:
    """A norm; ``in_branch``: it hands the residual stream through and adds its gradient."""
    make = _layer_norm if block.bias else _rms_norm
    step = make(block, name, context, in_branch)
    return chain(name, [step], input_bytes=0)


def _rms_norm(block: NormBlock, name: str, context: Context, in_branch: bool) -> Step:
    rows, size = context.local_tokens, block.hidden_size
    item, wide = context.item, context.wide
    x, wide_x, column, weight = rows * size * item, rows * size * wide, rows * wide, size * item
    cast = wide_x + x if context.is_promoted else 0
    forward_bytes = (x + column) + 8 * column + (x + column + wide_x) + (2 * wide_x + weight) + cast
    weight_bytes = (2 * wide_x + x) + (wide_x + size * wide)  # product, its sum over rows
    input_bytes = (x + column + wide_x) + (2 * wide_x + weight) + (wide_x + column)
    input_bytes += (x + wide_x + size * wide) + (3 * wide_x + column) + (2 * wide_x + column) + cast
    if in_branch:
        input_bytes += 2 * wide_x + x
    if context.is_promoted:  # the weight's gradient to its dtype, the weight from it
        weight_bytes += size * (wide + item)
        input_bytes += size * (wide + item)
    promoted = 1 if context.is_promoted else 0
    vectors = weight + promoted * size * wide  # the weight's gradient, and the wide weight
    peak = 2 * wide_x + column + vectors
    return Step(
        forward=(Elementwise("rms_norm.forward", forward_bytes, context.dtype, 7 + promoted),),
        backward_input=(
            Elementwise(
                "rms_norm.backward", input_bytes, context.dtype, 6 + 2 * promoted + in_branch
            ),
        ),
        backward_weight=(
            Elementwise("rms_norm.weight_gradient", weight_bytes, context.dtype, 2 + promoted),
            *accumulate_gradient(context, size),
        ),
        parameters=(_whole(f"{name}.weight", (size,), context),),
        kept=(SavedTensor("scale", column),),
        output_bytes=x,
        forward_transient_bytes=wide_x if context.is_promoted else 0,
        backward_transient_bytes=peak + (x if in_branch else 0),
        deferred=(DeferredGradient(weight, 0, 0),),
    )


def _layer_norm(block: NormBlock, name: str, context: Context, in_branch: bool) -> Step:
    rows, size, item = context.local_tokens, block.hidden_size, context.item
    x, statistics, vectors = rows * size * item, 2 * rows * item, 2 * size * item
    backward = 3 * x + statistics + size * item
    add = (Elementwise("residual_add", 3 * x, context.dtype),) if in_branch else ()
    return Step(
        forward=(Elementwise("layer_norm.forward", 2 * x + statistics + vectors, context.dtype),),
        backward_input=(Elementwise("layer_norm.backward", backward, context.dtype), *add),
        backward_weight=(
            Elementwise("layer_norm.weight_gradient", vectors, context.dtype, 0),
            *accumulate_gradient(context, size, size),
        ),
        parameters=(
            _whole(f"{name}.weight", (size,), context),
            _whole(f"{name}.bias", (size,), context),
        ),
        kept=(SavedTensor("mean", statistics // 2), SavedTensor("scale", statistics // 2)),
        output_bytes=x,
        backward_transient_bytes=x + vectors + (x if in_branch else 0),
        deferred=(DeferredGradient(vectors, 0, 0),),
    )


# Attention


@lru_cache(maxsize=4096)
def attention_books(block: AttentionBlock, context: Context) -> BlockBooks:
    """Fused qkv projection, rotary positions, core, output projection, residual."""
    hidden = block.hidden_size
    heads = attention_split(block, context.tp, context.tp_rank)
    query = len(heads.query) * block.head_dim
    qkv = query + 2 * len(heads.kv) * block.head_dim
    shared = kv_heads_are_shared(block, context.tp)
    rows = block.query_size + 2 * block.kv_size
    parameters = [
        ParameterBooks("attention.qkv.weight", (rows, hidden), (qkv, hidden), shared, True)
    ]
    if block.qkv_bias:
        parameters.append(ParameterBooks("attention.qkv.bias", (rows,), (qkv,), shared, False))
    output = [
        ParameterBooks(
            "attention.output.weight", (hidden, block.query_size), (hidden, query), False, True
        )
    ]
    if block.output_bias:
        output.append(_whole("attention.output.bias", (hidden,), context))
    steps = [
        column_linear("qkv", context, qkv, hidden, tuple(parameters)),
        _attention_core(block, context),
        row_linear("attention_output", context, hidden, query, tuple(output)),
    ]
    y = context.local_tokens * hidden * context.item
    return chain("attention", steps, input_bytes=y, adds_to_stream=True)


def _attention_core(block: AttentionBlock, context: Context) -> Step:
    heads = attention_split(block, context.tp, context.tp_rank)
    num_query, num_kv, size = len(heads.query), len(heads.kv), block.head_dim
    per_head = context.tokens * size * context.item
    out, kv = num_query * per_head, num_kv * per_head
    qkv = out + 2 * kv
    expanded = 0 if heads.is_grouped else 2 * out
    index = 2 * num_query * _INDEX_BYTES
    kept = [SavedTensor("log_sum_exp", context.tokens * num_query * context.wide)]
    expand: tuple[Operation, ...] = ()
    reduce: tuple[Operation, ...] = ()
    if expanded:
        kept.append(SavedTensor("expanded keys and values", expanded))
        expand = (Elementwise("kv_expand", 2 * expanded + index, context.dtype, 2),)
        reduce = (
            Elementwise("kv_expand.backward", 3 * expanded + 2 * kv + index, context.dtype, 4),
        )
    rotary, rotated_half = _rotary(block, num_query + num_kv, context)
    core = {
        backward: Attention(
            "attention.backward" if backward else "attention.forward", context.batch, num_query,
            context.seq_len, context.seq_len, size, block.causal, backward, context.dtype,
        )
        for backward in (False, True)
    }  # fmt: skip
    d_expanded = (out + expanded + kv) if expanded else 0  # two of three reduced, one just made
    return Step(
        forward=(*rotary, *expand, core[False]),
        backward_input=(
            core[True],
            *reduce,
            Elementwise("qkv_gradient", 2 * qkv, context.dtype, 3),
            *rotary,
        ),
        kept=tuple(kept),
        output_bytes=out,
        forward_transient_bytes=max(
            0, rotated_half - out - sum(tensor.num_bytes for tensor in kept)
        ),
        backward_transient_bytes=out + max(qkv, d_expanded, rotated_half),
        # The output, which backward reads, is held anyway: by the projection behind, for later.
        input_transient_bytes=max(qkv, d_expanded, rotated_half),
    )


def _rotary(
    block: AttentionBlock, num_heads: int, context: Context
) -> tuple[tuple[Elementwise, ...], int]:
    """Turning queries and keys in place, and the bytes of the one temporary."""
    if block.rotary is None:
        return (), 0
    half = context.tokens * num_heads * block.head_dim // 2 * context.item
    table = context.seq_len * block.head_dim // 2 * context.item
    return (Elementwise("rope", 12 * half + 4 * table, context.dtype, 5),), half


# MLP


@lru_cache(maxsize=4096)
def mlp_books(block: MlpBlock, context: Context) -> BlockBooks:
    """Up projection (gate and up fused), activation, down projection, residual."""
    hidden, parts = block.hidden_size, 2 if block.gated else 1
    own = len(column_split(block.ffn_size, context.tp, context.tp_rank))
    name = "gate_up" if block.gated else "up"
    rows, local_rows = parts * block.ffn_size, parts * own
    up = [ParameterBooks(f"mlp.{name}.weight", (rows, hidden), (local_rows, hidden), False, True)]
    down = [ParameterBooks("mlp.down.weight", (hidden, block.ffn_size), (hidden, own), False, True)]
    if block.bias:
        up.append(ParameterBooks(f"mlp.{name}.bias", (rows,), (local_rows,), False, False))
        down.append(_whole("mlp.down.bias", (hidden,), context))
    steps = [
        column_linear(name, context, local_rows, hidden, tuple(up)),
        _activation(block, context, own),
        row_linear("down", context, hidden, own, tuple(down)),
    ]
    y = context.local_tokens * hidden * context.item
    return chain("mlp", steps, input_bytes=y, adds_to_stream=True)


def _activation(block: MlpBlock, context: Context, own: int) -> Step:
    activated = context.tokens * own * context.item
    name = {"silu": "swiglu", "relu": "relu"}.get(block.activation, "gelu")
    if not block.gated:
        return Step(
            forward=(Elementwise(f"{name}.forward", 2 * activated, context.dtype),),
            backward_input=(Elementwise(f"{name}.backward", 3 * activated, context.dtype),),
            output_bytes=activated,
        )
    name = {"silu": "swiglu", "relu": "reglu"}.get(block.activation, "geglu")
    return Step(
        forward=(Elementwise(f"{name}.forward", 5 * activated, context.dtype, 2),),
        backward_input=(Elementwise(f"{name}.backward", 11 * activated, context.dtype, 4),),
        output_bytes=activated,
        backward_transient_bytes=activated,
    )


# Embedding


@lru_cache(maxsize=4096)
def embedding_books(
    block: EmbeddingBlock, context: Context, *, tied: bool, has_head: bool
) -> BlockBooks:
    """Token embedding, and learned positions.

    A ``tied`` weight is booked by its own unit; where the stage ``has_head`` too, autograd adds
    the two gradients out of place.
    """
    hidden = block.hidden_size
    rows = len(vocabulary_split(block.vocab_size, context.tp, context.tp_rank))
    weight = ParameterBooks(
        "embedding.weight", (block.vocab_size, hidden), (rows, hidden), False, True
    )
    lookup = _token_embedding(context, hidden, rows)
    if tied and has_head:
        size = rows * hidden * context.item
        addition = Elementwise("tied_gradient_add", 3 * size, context.dtype)
        added = 2 * size - lookup.output_bytes  # by then the output's gradient is freed
        lookup = replace(
            lookup,
            backward_weight=(
                *lookup.backward_weight[:-1], addition, lookup.backward_weight[-1],
            ),
            backward_transient_bytes=max(lookup.backward_transient_bytes, added),
        )  # fmt: skip
    if not tied:
        lookup = replace(lookup, parameters=(weight,))
    positions = None
    if block.max_positions is not None:
        positions = _positions(context, (block.max_positions, hidden))
    return _embedding_chain(lookup, positions)


def _embedding_chain(lookup: Step, positions: Step | None) -> BlockBooks:
    """Positions are added in place: the output of the first step is that of the second."""
    books = chain("embedding", [lookup], input_bytes=0)
    if positions is None:
        return books
    return replace(
        books,
        forward=(*books.forward, *positions.forward),
        backward_weight=(*positions.backward_weight, *books.backward_weight),
        parameters=(*books.parameters, *positions.parameters),
        backward_transient_bytes=max(
            positions.backward_transient_bytes, books.backward_transient_bytes
        ),
        deferred=(*positions.deferred, *books.deferred),
    )


def _token_embedding(context: Context, hidden: int, rows: int) -> Step:
    tokens, item, wide = context.tokens, context.item, context.wide
    full, wide_full = tokens * hidden * item, tokens * hidden * wide
    y = context.local_tokens * hidden * item
    index, mask = tokens * _INDEX_BYTES, tokens
    lookup = 2 * full + index
    lookup_kernels, transient = 1, 0
    if context.tp > 1:  # find what is held, look it up, blank the rest
        lookup += 6 * index + 7 * mask + 2 * full
        lookup_kernels += 6
        transient = max(index + mask + full, reduce_peak(context, hidden)) - y
    masking = 6 * (index + mask) if context.tp > 1 else 0
    d_weight, wide_d_weight = rows * hidden * item, rows * hidden * wide
    cast = full + wide_full if context.is_promoted else 0
    cast_weight = wide_d_weight + d_weight if context.is_promoted else 0
    backward = 3 * wide_full + wide_d_weight + index + masking + cast + cast_weight
    backward_kernels = 1 + 5 * (context.tp > 1) + 2 * context.is_promoted
    gather_peak, gathered = gather_bytes(context, hidden)
    index_bytes = index if context.tp > 1 else 0
    wide_copy = wide_full if context.is_promoted else 0
    weight_peak = index_bytes + max(
        gather_peak,
        gathered + wide_copy,
        (wide_copy or gathered) + wide_d_weight + (d_weight if context.is_promoted else 0),
    )
    return Step(
        forward=(
            Elementwise("embedding.forward", lookup, context.dtype, lookup_kernels),
            *reduce_operations("embedding", context, hidden),
        ),
        backward_input=(),
        backward_weight=(
            *gather_operations("embedding", context, hidden),
            Elementwise("embedding.backward", backward, context.dtype, backward_kernels),
            *accumulate_gradient(context, rows * hidden),
        ),
        output_bytes=y,
        forward_transient_bytes=transient,
        backward_transient_bytes=weight_peak,
        input_transient_bytes=0,
        deferred=(DeferredGradient(y, weight_peak, d_weight),),
    )


def _positions(context: Context, shape: tuple[int, int]) -> Step:
    at = range(context.seq_len)
    if context.shards_sequence:
        at = sequence_split(context.seq_len, context.tp, context.tp_rank)
    part = len(at) * shape[1] * context.item
    whole = shape[0] * shape[1] * context.item
    x = context.batch * part
    return Step(
        forward=(Elementwise("positions.forward", 2 * x + part, context.dtype),),
        backward_input=(),
        backward_weight=(
            Elementwise("positions.weight_gradient", whole + x + part, context.dtype, 2),
            *accumulate_gradient(context, shape[0] * shape[1]),
        ),
        parameters=(_whole("embedding.positions", shape, context),),
        backward_transient_bytes=whole,
        input_transient_bytes=0,
        deferred=(DeferredGradient(0, whole, whole),),
    )


# Head and loss


@lru_cache(maxsize=4096)
def head_books(
    block: HeadBlock,
    context: Context,
    *,
    tied: bool,
    label_smoothing: float,
    has_embedding: bool = False,
) -> BlockBooks:
    """Projection to the vocabulary and cross-entropy.

    A ``tied`` weight has its own unit; where the stage ``has_embedding`` too, its gradient is
    accumulated there, once.
    """
    hidden, item, wide = block.hidden_size, context.item, context.wide
    rows = len(vocabulary_split(block.vocab_size, context.tp, context.tp_rank))
    weight = ParameterBooks("head.weight", (block.vocab_size, hidden), (rows, hidden), False, True)
    linear = column_linear("head", context, rows, hidden, (weight,))
    logits, z = context.tokens * rows * item, context.tokens * rows * wide
    row, index, mask = context.tokens * wide, context.tokens * _INDEX_BYTES, context.tokens
    num_sums = 3 if label_smoothing else 2
    cast = logits if context.is_promoted else 0
    saved = z + row + wide
    forward_peak = max(
        linear.forward_transient_bytes + logits,
        cast + z + index + mask + (2 * num_sums + 2) * row + wide,
    )
    loss_peak = row + index + mask + max(row, cast)
    # The sums are freed, and where the loss is wide the logits' gradient is in its place.
    behind_loss = (cast - z if context.is_promoted else 0) - row
    assert linear.input_transient_bytes is not None
    return BlockBooks(
        name="head",
        forward=(*linear.forward, *_loss_forward(context, rows, num_sums)),
        backward_input=(_loss_backward(context, rows, num_sums), *linear.backward_input),
        backward_weight=linear.backward_weight[: -1 if tied and has_embedding else None],
        parameters=() if tied else (weight,),
        saved=(
            SavedTensor("exponentials", z), SavedTensor("sums", row), SavedTensor("output", wide),
        ),
        output_bytes=wide,
        forward_transient_bytes=max(0, forward_peak - saved),
        backward_transient_bytes=max(loss_peak, linear.backward_transient_bytes + behind_loss),
        input_transient_bytes=max(loss_peak, linear.input_transient_bytes + behind_loss),
        deferred=linear.deferred,
        unsaved_forward_bytes=context.local_tokens * hidden * item + forward_peak,
    )  # fmt: skip


def _loss_forward(context: Context, rows: int, num_sums: int) -> tuple[Operation, ...]:
    """Kernel by kernel: passes over the logits z, over labels and their masks, over single rows."""
    row = context.tokens * context.wide
    z = row * rows
    index, mask = context.tokens * _INDEX_BYTES, context.tokens
    cast = context.tokens * rows * context.item + z if context.is_promoted else 0
    exchange = tuple(
        Collective(f"cross_entropy.{name}", "all_reduce", "tp", size, context.wide_dtype)
        for name, size in (("maximum", row), ("sums", num_sums * row))
        if context.tp > 1
    )
    passes = cast + (z + row) + (2 * z + row) + 2 * z + (num_sums - 1) * (z + row)
    labels = 8 * index + 9 * mask
    single = (11 + 2 * num_sums + 3 * (num_sums - 1)) * row + context.wide
    kernels = 18 + 2 * (num_sums - 2) + context.is_promoted
    forward = Elementwise(
        "cross_entropy.forward", passes + labels + single, context.wide_dtype, kernels
    )
    return (*exchange[:1], forward, *exchange[1:])


def _loss_backward(context: Context, rows: int, num_sums: int) -> Elementwise:
    row = context.tokens * context.wide
    z = row * rows
    index, mask = context.tokens * _INDEX_BYTES, context.tokens
    cast = context.tokens * rows * context.item + z if context.is_promoted else 0
    passes = cast + (num_sums - 1) * (2 * z + row)
    labels = 8 * index + 9 * mask
    single = (11 + 2 * (num_sums - 2)) * row + context.wide
    kernels = 12 + 2 * (num_sums - 2) + context.is_promoted
    return Elementwise(
        "cross_entropy.backward", passes + labels + single, context.wide_dtype, kernels
    )
