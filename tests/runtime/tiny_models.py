"""Small models of both kinds with odd sizes, and the layouts that tests cut them by."""

from __future__ import annotations

from typing import Any

from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.specs import (
    AttentionBlock,
    Edge,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    MlpBlock,
    ModelSpec,
    NormBlock,
    ResidualBranch,
    RotaryPositions,
    Tower,
    WorldSize,
)
from shardwright.specs.model import Block


def _decoder(
    name: str, attention: AttentionBlock, mlp: MlpBlock, norm: NormBlock, *, num_layers: int,
    vocab_size: int, max_positions: int | None, tied: bool,
) -> ModelSpec:  # fmt: skip
    size = norm.hidden_size
    branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in (attention, mlp))
    blocks: tuple[Block, ...] = (
        EmbeddingBlock(vocab_size=vocab_size, hidden_size=size, max_positions=max_positions),
        LayerBlock(branches=branches, repeat=num_layers),
        norm,
        HeadBlock(vocab_size=vocab_size, hidden_size=size, tied=tied),
    )
    edge = Edge(
        kind="tied_weight", producer="decoder/embedding", consumer="decoder/head",
        shape=(vocab_size, size),
    )  # fmt: skip
    return ModelSpec(
        name=name, family="custom", towers=(Tower(name="decoder", blocks=blocks),),
        edges=(edge,) if tied else (), max_seq_len=max_positions, source="test",
        initializer_range=0.2,
    )  # fmt: skip


def tiny_llama(
    *, num_layers: int = 3, heads: int = 6, kv_heads: int = 3, vocab_size: int = 37,
    ffn_size: int = 21, tied: bool = False, qkv_bias: bool = False, window: int | None = None,
    rotary: RotaryPositions | None = None,
) -> ModelSpec:  # fmt: skip
    """Rotary positions, root-mean-square norms, gated MLP, grouped-query attention."""
    attention = AttentionBlock(
        hidden_size=20, num_heads=heads, num_kv_heads=kv_heads, head_dim=4, qkv_bias=qkv_bias,
        output_bias=False, rotary=rotary or RotaryPositions(base=10000.0), sliding_window=window,
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=20, ffn_size=ffn_size, activation="silu", gated=True, bias=False)
    norm = NormBlock(type="rms_norm", hidden_size=20, bias=False, epsilon=1e-5)
    return _decoder(
        "tiny-llama", attention, mlp, norm, num_layers=num_layers, vocab_size=vocab_size,
        max_positions=None, tied=tied,
    )  # fmt: skip


def tiny_gpt2(*, num_layers: int = 3, heads: int = 5, vocab_size: int = 37) -> ModelSpec:
    """Learned positions, layer norms with biases, plain MLP, tied embedding."""
    attention = AttentionBlock(
        hidden_size=20, num_heads=heads, num_kv_heads=heads, head_dim=4, qkv_bias=True,
        output_bias=True, rotary=None,
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=20, ffn_size=26, activation="gelu_tanh", gated=False, bias=True)
    norm = NormBlock(type="layer_norm", hidden_size=20, bias=True, epsilon=1e-5)
    return _decoder(
        "tiny-gpt2", attention, mlp, norm, num_layers=num_layers, vocab_size=vocab_size,
        max_positions=16, tied=True,
    )  # fmt: skip


MODELS: dict[str, ModelSpec] = {
    "gpt2": tiny_gpt2(),
    "llama": tiny_llama(),
    "llama-tied-biased": tiny_llama(tied=True, qkv_bias=True),
    "llama-shared-kv": tiny_llama(heads=8, kv_heads=2, qkv_bias=True),
    "llama-window": tiny_llama(heads=4, kv_heads=4, window=4),
}
"""Shared kv heads at tp = 3: ranks hold 3, 3 and 2 query heads of 2 groups of 4."""


def tensor_parallel_groups(tp: int, *, pp: int = 1, stage: int = 0) -> ParallelGroups:
    """The groups of a rank of one stage, where the world is that stage's tp ranks alone."""
    import torch.distributed as dist

    sizes = WorldSize(tp=tp, pp=pp)
    rank = dist.get_rank() if tp > 1 else 0
    at = sizes.coordinates(sizes.ranks_per_stage * stage + rank)
    arguments: dict[str, Any] = {"rank": rank, "sizes": sizes, "coordinates": at}
    if tp > 1:
        arguments |= {"tp": dist.group.WORLD, "world": dist.group.WORLD}
    return ParallelGroups(**arguments)
