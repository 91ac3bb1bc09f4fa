"""Attention blocks as parts: grouped-query, windows, cross-attention, multi-head latent."""

from __future__ import annotations

from dataclasses import replace

from shardwright.cost_models.stacks.linear import (
    enter_tensor_parallel,
    leave_tensor_parallel,
    projection,
)
from shardwright.cost_models.stacks.operations import (
    FlashAttention,
    Message,
    Operation,
    Part,
    Product,
    Traffic,
)
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.specs import AttentionBlock, LatentAttentionBlock


def attention(block: AttentionBlock, s: Sharding, memory_tokens: float | None = None) -> list[Part]:
    """Projections and core of one block; ``memory_tokens``: per sequence, of cross-attention."""
    hidden, size = block.hidden_size, block.head_dim
    heads, kv_heads = s.heads(block.num_heads), s.kv_heads(block.num_kv_heads)
    query = heads * size * (2 if block.gated else 1)
    kv = 2 * kv_heads * size
    rotation = (heads + kv_heads) * size * s.tokens * s.item_bytes
    turned = 2 * rotation * ((block.rotary is not None) + (block.qk_norm != "none"))
    unnormed = rotation * (block.qk_norm != "none")  # kept beside the normed queries and keys
    before = enter_tensor_parallel(s, hidden)
    if block.cross:
        memory = (memory_tokens or s.local_len) * s.batch
        width = block.memory_size or hidden
        inputs = [
            projection("qkv", s, s.tokens, hidden, query, bias=block.qkv_bias, before=before,
                       extra_bytes=turned, internal_bytes=unnormed,
                       replicated_parameters=_small_parameters(block, heads, kv_heads)),
            projection("qkv", s, memory, width, kv, bias=block.qkv_bias,
                       before=enter_tensor_parallel(s, width, memory)),
        ]  # fmt: skip
        keys = memory_tokens or s.local_len
    else:
        inputs = [
            projection("qkv", s, s.tokens, hidden, query + kv, bias=block.qkv_bias, before=before,
                       extra_bytes=turned, internal_bytes=unnormed,
                       replicated_parameters=_small_parameters(block, heads, kv_heads))
        ]  # fmt: skip
        keys = float(s.seq_len)
    kernels = replace(s, flash=s.flash and (s.flash_sinks or not block.sinks))
    core = _core(kernels, heads, kv_heads, size, size, keys, _visible(block, keys), block.cross)
    if s.flash and not kernels.flash:
        # Scores around sinks are made again in backward: kept, published runs would need 2-3 times
        # the memory of their devices.
        core = replace(core, internal_bytes=4.0 * s.tokens * heads)
    return [*inputs, core, _output(block.hidden_size, heads * size, s, bias=block.output_bias)]


def _small_parameters(block: AttentionBlock, heads: int, kv_heads: int) -> int:
    """On a rank of so many heads; norms over all heads together are whole on every rank."""
    norms = {"none": 0, "head": 2 * block.head_dim, "width": block.query_size + block.kv_size}
    scales = norms[block.qk_norm] * (block.qk_norm_weight + block.qk_norm_bias)
    extra = heads * (block.sinks + (block.relative_buckets or 0))
    has_bare_keys = block.qkv_bias and not block.key_bias
    return scales + extra - kv_heads * block.head_dim * has_bare_keys


def _visible(block: AttentionBlock, keys: float) -> float:
    """Share of the score matrix that a kernel which skips masked blocks computes.

    Of a window over w of n tokens: (w / n) - (w / n)^2 / 2 where causal, - (w / n)^2 / 4 where half
    of it lies ahead; of chunks half a chunk.
    """
    if block.cross:
        return 1.0
    window = block.sliding_window
    if window is None or window >= keys:
        return 0.5 if block.causal else 1.0
    share = window / keys
    if block.chunked:
        return share / 2 if block.causal else share
    return share - share**2 / (2 if block.causal else 4)


def _output(hidden: int, inputs: int, s: Sharding, *, bias: bool) -> Part:
    """Output projection, dropout and residual."""
    stream = s.stream_tokens * hidden * s.item_bytes
    mask = s.stream_tokens * hidden * s.dropout
    return projection(
        "attn_proj", s, s.tokens, inputs, hidden, bias=bias, extra_bytes=3 * stream + mask,
        after=leave_tensor_parallel(s, hidden), output_bytes=stream, internal_bytes=mask,
    )  # fmt: skip


def _core(
    s: Sharding,
    heads: int,
    kv_heads: int,
    qk_size: int,
    v_size: int,
    keys: float,
    visible: float,
    cross: bool = False,
) -> Part:
    """Scores, softmax, weighted sum, and what context parallelism exchanges for them."""
    all_to_all = s.cp > 1 and s.cp_kind == "all_to_all" and not cross
    own_heads = heads / s.cp if all_to_all else float(heads)
    queries = float(s.seq_len) if all_to_all else s.local_len
    output = s.tokens * heads * v_size * s.item_bytes
    if s.flash:
        # A ring meets the keys in as many parts as there are ranks, and adds up its results.
        rounds = s.cp if s.cp_kind == "ring" and not cross else 1
        part, merged = keys / rounds, Traffic(3 * output)
        shape = (s.batch, own_heads, queries, part, qk_size, v_size, visible)
        core: list[Operation] = [FlashAttention(*shape, False)] * rounds
        core += [merged] * (rounds - 1)
        back: list[Operation] = [FlashAttention(*shape, True)] * rounds
        back += [merged] * rounds  # row sums of gradient x output, and the parts' sums
        internal, scratch = 4.0 * s.tokens * heads, 0.0
    else:
        scratch = s.batch * own_heads * queries * keys * s.item_bytes
        core, back, internal = _unfused(s, own_heads, queries, keys, qk_size, v_size)
    forward, backward = _context_messages(s, heads, kv_heads, qk_size, v_size, cross)
    return Part(
        "core_attn",
        forward=(*forward, *core),
        backward_input=(*back, *backward),
        internal_bytes=internal + output * (s.operand_bytes / s.item_bytes) * s.keeps_narrow_copy,
        output_bytes=output,
        scratch_bytes=scratch,
    )


def _unfused(
    s: Sharding, heads: float, queries: float, keys: float, qk_size: int, v_size: int
) -> tuple[list[Operation], list[Operation], float]:
    """Two batched products around a fused scale-mask-softmax; the scores are stored."""
    batch, square = s.batch * heads, s.batch * heads * queries * keys
    item = s.item_bytes
    scores = Product(queries, keys, qk_size, batch, "compute")
    weigh = Product(queries, v_size, keys, batch, "compute")
    softmax, dropout = square * 2 * item, square * (2 * item + 1) * s.dropout
    forward: list[Operation] = [scores, Traffic(softmax, 1), weigh]
    backward: list[Operation] = [
        weigh, Product(keys, v_size, queries, batch, "compute"), Traffic(square * 3 * item, 1),
        scores, Product(keys, qk_size, queries, batch, "compute"),
    ]  # fmt: skip
    if s.dropout:
        forward.insert(2, Traffic(dropout, 1))
        backward.insert(2, Traffic(dropout, 1))
    return forward, backward, square * (item + (item + 1) * s.dropout)


def _context_messages(
    s: Sharding, heads: int, kv_heads: int, qk_size: int, v_size: int, cross: bool
) -> tuple[list[Message], list[Message]]:
    """Ring: keys and values go round beside the attention blocks, and back with their gradients."""
    if s.cp == 1 or cross:
        return [], []
    pair = s.tokens * kv_heads * (qk_size + v_size) * s.item_bytes
    if s.cp_kind == "ring":
        rounds = s.cp - 1
        return (
            [Message("send_recv", pair, "cp", overlaps=True)] * rounds,
            [Message("send_recv", 2 * pair, "cp", overlaps=True)] * rounds,
        )
    if s.cp_kind == "all_gather":
        return (
            [Message("all_gather", pair, "cp")],
            [Message("all_gather", pair, "cp"), Message("reduce_scatter", pair * s.cp, "cp")],
        )
    queries = s.tokens * heads * (qk_size + v_size) * s.item_bytes
    exchange = [Message("all_to_all", pair + queries, "cp")]
    return exchange, exchange


def latent_attention(block: LatentAttentionBlock, s: Sharding) -> list[Part]:
    """Multi-head latent attention (arXiv 2405.04434), with keys and values brought up to heads.

    The low-rank down-projections are whole on each tensor-parallel rank, as in Megatron-Core.
    """
    hidden, heads = block.hidden_size, s.heads(block.num_heads)
    qk_size, v_size = block.qk_head_dim, block.v_head_dim
    rows = s.stream_tokens
    down = block.kv_lora_rank + block.qk_rope_head_dim
    parts = []
    gather = enter_tensor_parallel(s, block.q_lora_rank or hidden)
    if block.q_lora_rank is None:
        parts.append(projection("qkv", s, s.tokens, hidden, heads * qk_size, before=gather))
    else:
        rank = block.q_lora_rank
        parts.append(projection("qkv", s, rows, hidden, rank, bias=block.bias,
                                extra_bytes=2 * rows * rank * s.item_bytes,
                                replicated_parameters=rank))  # fmt: skip
        parts.append(_up(s, rank, heads * qk_size, gather))
    parts.append(projection("qkv", s, rows, hidden, down, bias=block.bias,
                            extra_bytes=2 * rows * down * s.item_bytes,
                            replicated_parameters=block.kv_lora_rank))  # fmt: skip
    up = heads * (block.qk_nope_head_dim + v_size)
    parts.append(_up(s, block.kv_lora_rank, up, enter_tensor_parallel(s, down)))
    if block.indexer is not None:
        parts.append(_indexer(block, s))
    keys = float(s.seq_len)
    visible = 0.5 if block.causal else 1.0
    if block.indexer is not None and block.indexer.top_k < keys:
        share = block.indexer.top_k / keys
        visible = share - share**2 / 2
    parts.append(_core(s, heads, heads, qk_size, v_size, keys, visible))
    parts.append(_output(hidden, heads * v_size, s, bias=block.bias))
    return parts


def _up(s: Sharding, rank: int, outputs: int, gather: tuple[object, object]) -> Part:
    part = projection(
        "mla_up_proj", s, s.tokens, rank, outputs, before=gather,  # type: ignore[arg-type]
        extra_bytes=2 * s.tokens * outputs * s.item_bytes,
    )  # fmt: skip
    return Part(
        part.name, part.forward, part.backward_input, part.backward_weight,
        output_bytes=part.output_bytes, drops_output=True, parameters=part.parameters,
        adapters=part.adapters,
    )  # fmt: skip


def _indexer(block: LatentAttentionBlock, s: Sharding) -> Part:
    """Scores of every query with every key, in few narrow heads (DeepSeek-V3.2)."""
    indexer = block.indexer
    assert indexer is not None
    size = indexer.num_heads * indexer.head_dim
    inputs = block.q_lora_rank or block.hidden_size
    query = Product(s.tokens, size, inputs)
    keys = Product(s.tokens, indexer.head_dim + indexer.num_heads, block.hidden_size)
    scores = Product(s.local_len, s.seq_len / 2, indexer.head_dim, s.batch * indexer.num_heads)
    parameters = inputs * size + block.hidden_size * (indexer.head_dim + indexer.num_heads)
    return Part(
        "indexer",
        forward=(query, keys, scores),
        backward_input=(query, keys, scores, scores),
        backward_weight=() if s.frozen else (query, keys),
        internal_bytes=s.tokens * (size + indexer.head_dim) * s.item_bytes,
        parameters=parameters + 2 * indexer.head_dim,
    )
