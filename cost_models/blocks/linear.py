"""Linear layers and what surrounds them: matrix products, and collectives along the sequence.

The steps of ``runtime/parallel/layers.py``; `gather` and `reduce` are its ``TensorParallel``'s.
"""

from __future__ import annotations

from shardwright.cost_models.blocks.operations import (
    Collective,
    DeferredGradient,
    Elementwise,
    Matmul,
    Operation,
    ParameterBooks,
    dtype_bytes,
)
from shardwright.cost_models.blocks.splits import sequence_split
from shardwright.cost_models.blocks.steps import Context, Step
from shardwright.specs.training import DType


def column_linear(
    name: str, context: Context, out: int, inner: int, parameters: tuple[ParameterBooks, ...]
) -> Step:
    """[B, t, inner] -> [B, T, out]."""
    tokens, item = context.tokens, context.item
    forward, input_gradient, weight_gradient = linear_matmuls(
        name, tokens, out, inner, context.dtype
    )
    has_bias = len(parameters) > 1
    bias = Elementwise("bias_gradient", (tokens * out + out) * item, context.dtype)
    gather = gather_operations(name, context, inner)
    gather_peak, gathered = gather_bytes(context, inner)
    dx, d_weight, d_bias = context.local_tokens * inner * item, out * inner * item, out * item
    d_bias = d_bias if has_bias else 0
    out_bytes = tokens * out * item
    return Step(
        forward=(*gather, forward),
        backward_input=(input_gradient, *reduce_operations(name, context, inner)),
        backward_weight=(
            *((bias,) if has_bias else ()),
            *gather,
            weight_gradient,
            *accumulate_gradient(context, *(parameter.numel for parameter in parameters)),
        ),
        parameters=parameters,
        output_bytes=out_bytes,
        forward_transient_bytes=max(gather_peak - out_bytes, gathered),
        backward_transient_bytes=max(
            reduce_peak(context, inner),
            dx + d_bias + gather_peak,
            dx + d_bias + gathered + d_weight,
        ),
        input_transient_bytes=reduce_peak(context, inner) if context.tp > 1 else dx,
        deferred=(
            DeferredGradient(
                held_bytes=dx + out_bytes,
                transient_bytes=d_bias + max(gather_peak, gathered + d_weight),
                gradient_bytes=d_bias + d_weight,
            ),
        ),
    )


def row_linear(
    name: str, context: Context, out: int, inner: int, parameters: tuple[ParameterBooks, ...]
) -> Step:
    """[B, T, inner] -> [B, t, out], plus bias and residual."""
    tokens, local_tokens, item = context.tokens, context.local_tokens, context.item
    forward, input_gradient, weight_gradient = linear_matmuls(
        name, tokens, out, inner, context.dtype
    )
    has_bias = len(parameters) > 1
    y = local_tokens * out * item
    adds: list[Operation] = [Elementwise("residual_add", 3 * y, context.dtype)]
    if has_bias:
        adds.insert(0, Elementwise("bias_add", 2 * y + out * item, context.dtype))
    bias = Elementwise("bias_gradient", y + out * item, context.dtype)
    gather_peak, gathered = gather_bytes(context, out)
    dx, d_weight = tokens * inner * item, out * inner * item
    d_bias = out * item if has_bias else 0
    return Step(
        forward=(forward, *reduce_operations(name, context, out), *adds),
        backward_input=(*gather_operations(name, context, out), input_gradient),
        backward_weight=(
            *((bias,) if has_bias else ()),
            weight_gradient,
            *accumulate_gradient(context, *(parameter.numel for parameter in parameters)),
        ),
        parameters=parameters,
        output_bytes=y,
        forward_transient_bytes=reduce_peak(context, out) - y,
        backward_transient_bytes=max(gather_peak, gathered + dx + d_bias + d_weight),
        input_transient_bytes=max(gather_peak, gathered + dx),
        deferred=(
            DeferredGradient(
                held_bytes=dx + gathered,
                transient_bytes=d_bias + d_weight,
                gradient_bytes=d_bias + d_weight,
                stream_bytes=0 if gathered and not has_bias else y,
            ),
        ),
    )


def linear_matmuls(name: str, rows: int, out: int, inner: int, dtype: DType) -> tuple[Matmul, ...]:
    """Forward, input gradient and weight gradient of ``[rows, inner] @ [inner, out]``."""
    return (
        Matmul(f"{name}.forward", rows, out, inner, dtype),
        Matmul(f"{name}.input_gradient", rows, inner, out, dtype),
        Matmul(f"{name}.weight_gradient", out, inner, rows, dtype),
    )


def accumulate_gradient(context: Context, *numels: int) -> tuple[Elementwise, ...]:
    """Adding each parameter's gradient to the buffer of the gradient dtype."""
    each = context.item + 2 * dtype_bytes(context.gradient_dtype)
    return tuple(
        Elementwise("accumulate_gradient", numel * each, context.gradient_dtype) for numel in numels
    )


def gather_operations(name: str, context: Context, hidden: int) -> tuple[Operation, ...]:
    """From [B, t, D] to [B, T, D]; nothing where the sequence is whole."""
    if not context.shards_sequence:
        return ()
    shard_bytes = context.local_tokens * hidden * context.item
    operations: list[Operation] = [
        Collective(f"{name}.gather", "all_gather", "tp", shard_bytes, context.dtype)
    ]
    if context.batch > 1:
        copied = 2 * context.tokens * hidden * context.item
        operations.append(
            Elementwise("sequence_copy", copied, context.dtype, _parts_with_positions(context))
        )
    return tuple(operations)


def gather_bytes(context: Context, hidden: int) -> tuple[int, int]:
    """(most alive, alive after) of the buffers of a gather beside its input."""
    if not context.shards_sequence:
        return 0, 0
    gathered = context.tp * context.local_tokens * hidden * context.item
    if context.batch == 1:
        return gathered, gathered
    full = context.tokens * hidden * context.item
    return gathered + full, full


def reduce_operations(name: str, context: Context, hidden: int) -> tuple[Operation, ...]:
    """The sum over tp of [B, T, D]: reduce_scatter along the sequence, or all_reduce."""
    if context.tp == 1:
        return ()
    full = context.tokens * hidden * context.item
    if not context.shards_sequence:
        return (Collective(f"{name}.reduce", "all_reduce", "tp", full, context.dtype),)
    padded = context.tp * context.local_tokens * hidden * context.item
    copies: tuple[Operation, ...] = ()
    if not context.is_rank_major:
        zeros = padded if padded > full else 0
        kernels = _parts_with_positions(context) + (1 if zeros else 0)
        copies = (Elementwise("sequence_copy", 2 * full + zeros, context.dtype, kernels),)
    return (
        *copies,
        Collective(f"{name}.reduce", "reduce_scatter", "tp", padded, context.dtype),
    )


def reduce_peak(context: Context, hidden: int) -> int:
    """Most alive while [B, T, D] is summed over tp, from the partial sum to the result, both
    included."""
    full = context.tokens * hidden * context.item
    if not context.shards_sequence:
        return full
    local = context.local_tokens * hidden * context.item
    if context.is_rank_major:
        return full + local
    padded = context.tp * local
    return padded + max(full, local)


def _parts_with_positions(context: Context) -> int:
    ranks = range(context.tp)
    return sum(1 for rank in ranks if sequence_split(context.seq_len, context.tp, rank))
