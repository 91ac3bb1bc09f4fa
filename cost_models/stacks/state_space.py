"""State spaces as parts: Mamba (arXiv 2312.00752), Mamba-2 (2405.21060), gated delta nets."""

from __future__ import annotations

from shardwright.cost_models.stacks.linear import (
    enter_tensor_parallel,
    leave_tensor_parallel,
    projection,
)
from shardwright.cost_models.stacks.operations import Message, Operation, Part, Product, Traffic
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.specs import StateSpaceBlock

_DELTA_CHUNK = 64
"""Tokens per chunk in the kernels of flash-linear-attention (``chunk_gated_delta_rule``)."""


def state_space(block: StateSpaceBlock, s: Sharding) -> list[Part]:
    """Input projection, short convolution, scan, output projection with residual."""
    hidden = block.hidden_size
    own = s.columns(block.inner_size)
    conv = s.columns(block.conv_size)
    inputs = s.columns(block.input_size)
    stream = s.stream_tokens * hidden * s.item_bytes
    turned = s.tokens * conv * s.item_bytes
    small = (block.conv_kernel + block.conv_bias) * conv
    return [
        projection("qkv", s, s.tokens, hidden, inputs, bias=block.bias,
                   before=enter_tensor_parallel(s, hidden), extra_bytes=2 * turned,
                   replicated_parameters=small),
        _scan(block, s, own),
        projection("attn_proj", s, s.tokens, own, hidden, bias=block.bias, extra_bytes=3 * stream,
                   after=leave_tensor_parallel(s, hidden), output_bytes=stream),
    ]  # fmt: skip


def _scan(block: StateSpaceBlock, s: Sharding, own: int) -> Part:
    if block.version == "mamba":
        return _selective_scan(block, s, own)
    item = s.item_bytes
    num_heads = block.num_heads or 1
    heads, head_dim = s.heads(num_heads), block.inner_size // num_heads
    make = _delta_products if block.version == "gated_delta" else _dual_products
    chunk, products = make(block, s, heads, head_dim)
    chunks = s.tokens / chunk
    forward: tuple[Operation, ...] = (*products, Traffic(6 * s.tokens * own * item, 5))
    states = chunks * heads * block.state_size * head_dim * 4.0
    if block.version == "gated_delta":
        small = 2 * heads + head_dim
    else:
        small = 3 * heads + own * block.gate_norm
    return Part(
        "core_attn",
        forward=forward,
        backward_input=(*forward, *forward),
        internal_bytes=states + s.tokens * (own + block.conv_size / s.tp) * item,
        output_bytes=s.tokens * own * item,
        parameters=small,
    )


def _dual_products(
    block: StateSpaceBlock, s: Sharding, heads: int, head_dim: int
) -> tuple[int, tuple[Product, ...]]:
    """Mamba-2, chunk by chunk: C B^T and its product with x; states made and read."""
    chunk, size = min(block.chunk_size, s.seq_len), block.state_size
    chunks = s.tokens / chunk
    return chunk, (
        Product(chunk, chunk, size, chunks * s.kv_heads(block.num_groups), "compute"),
        Product(chunk, head_dim, chunk, chunks * heads, "compute"),
        Product(size, head_dim, chunk, chunks * heads, "compute"),
        Product(chunk, head_dim, size, chunks * heads, "compute"),
    )


def _delta_products(
    block: StateSpaceBlock, s: Sharding, heads: int, head_dim: int
) -> tuple[int, tuple[Product, ...]]:
    """Gated delta rule, chunk by chunk (arXiv 2412.06464, section 3.3): keys with keys, whose
    triangle is solved for new keys and values; queries with keys, and the result with the values;
    and three products with the state: values corrected by it, queries that read it, its update."""
    chunk, size = min(_DELTA_CHUNK, s.seq_len), block.state_size
    count = s.tokens / chunk * heads
    return chunk, (
        Product(chunk, chunk, size, count, "compute"),
        Product(chunk, size, chunk, count, "compute"),
        Product(chunk, head_dim, chunk, count, "compute"),
        Product(chunk, chunk, size, count, "compute"),
        Product(chunk, head_dim, chunk, count, "compute"),
        Product(chunk, head_dim, size, count, "compute"),
        Product(chunk, head_dim, size, count, "compute"),
        Product(size, head_dim, chunk, count, "compute"),
    )


def _selective_scan(block: StateSpaceBlock, s: Sharding, own: int) -> Part:
    """The fused scan moves its inputs and outputs; states stay on chip, and are made again."""
    rank, item = block.time_step_rank or 1, s.item_bytes
    selected = rank + 2 * block.state_size
    low = Product(s.tokens, selected, own)
    step = Product(s.tokens, own, rank)
    # Every tensor-parallel rank reads a part of the channels: B, C and the step are sums.
    total = (Message("all_reduce", s.tokens * selected * item, "tp"),) if s.tp > 1 else ()
    moved = Traffic(s.tokens * (4 * own + 2 * block.state_size) * item, 2)
    selection = own * selected + rank * own + own + selected * block.selection_norms
    return Part(
        "core_attn",
        forward=(low, *total, step, moved),
        backward_input=(moved, moved, step, *total, low),
        backward_weight=() if s.frozen else (low, step),
        internal_bytes=s.tokens * 3 * own * item,
        output_bytes=s.tokens * own * item,
        parameters=selection + own * (block.state_size + 1),
    )
