"""Selective state spaces as parts (Mamba, arXiv 2312.00752; Mamba-2, arXiv 2405.21060)."""

from __future__ import annotations

import math

from shardwright.cost_models.stacks.linear import (
    enter_tensor_parallel,
    leave_tensor_parallel,
    projection,
)
from shardwright.cost_models.stacks.operations import Operation, Part, Product, Traffic
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.specs import StateSpaceBlock


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
                   before=enter_tensor_parallel(s, hidden), extra=2 * turned,
                   replicated_parameters=small),
        _scan(block, s, own),
        projection("attn_proj", s, s.tokens, own, hidden, bias=block.bias, extra=3 * stream,
                   after=leave_tensor_parallel(s, hidden), output_bytes=stream),
    ]  # fmt: skip


def _scan(block: StateSpaceBlock, s: Sharding, own: int) -> Part:
    item = s.item_bytes
    if block.version == "mamba":
        return _selective_scan(block, s, own)
    heads = math.ceil((block.num_heads or 1) / s.tp)
    head_dim = block.inner_size // (block.num_heads or 1)
    chunk = min(block.chunk_size, s.seq_len)
    chunks = s.batch * s.local_len / chunk
    # Within chunks: C B^T and the masked product with x; between: states made and read.
    forward: tuple[Operation, ...] = (
        Product(chunk, chunk, block.state_size, chunks * block.num_groups, "compute"),
        Product(chunk, head_dim, chunk, chunks * heads, "compute"),
        Product(block.state_size, head_dim, chunk, chunks * heads, "compute"),
        Product(chunk, head_dim, block.state_size, chunks * heads, "compute"),
        Traffic(6 * s.tokens * own * item, 5),
    )
    states = chunks * heads * block.state_size * head_dim * 4.0
    return Part(
        "core_attn",
        forward=forward,
        backward_input=(*forward, *forward),
        internal_bytes=states + s.tokens * (own + block.conv_size / s.tp) * item,
        output_bytes=s.tokens * own * item,
        parameters=3 * heads + own,
    )


def _selective_scan(block: StateSpaceBlock, s: Sharding, own: int) -> Part:
    """The fused scan moves its inputs and outputs; states stay on chip, and are made again."""
    rank, item = block.time_step_rank or 1, s.item_bytes
    low = Product(s.tokens, rank + 2 * block.state_size, own)
    step = Product(s.tokens, own, rank)
    moved = Traffic(s.tokens * (4 * own + 2 * block.state_size) * item, 2)
    selection = own * (rank + 2 * block.state_size) + rank * own + own
    return Part(
        "core_attn",
        forward=(low, step, moved),
        backward_input=(low, step, moved, moved),
        backward_weight=(low, step),
        internal_bytes=s.tokens * 3 * own * item,
        output_bytes=s.tokens * own * item,
        parameters=selection + own * (block.state_size + 1),
    )
