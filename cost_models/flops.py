"""Floating-point operations of a training step, by three definitions.

`model_flops_megatron` counts what the model needs (matrix products and attention, the causal half
only), as Megatron-LM reports it; MFU is by this one. `model_flops_6n` is the rule of thumb.
`executed_flops` is what our layers really run, recomputation and masked halves included.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.cost_models.blocks.operations import Attention, BlockBooks, Matmul, Operation
from shardwright.specs import (
    AttentionBlock,
    ClassifierBlock,
    EmbeddingBlock,
    HeadBlock,
    LatentAttentionBlock,
    LayerBlock,
    LinearBlock,
    MlpBlock,
    ModelSpec,
    MoeBlock,
    PatchEmbeddingBlock,
    PoolerBlock,
    PredictionBlock,
    ProjectorBlock,
    StateSpaceBlock,
    Tower,
    TrainingSpec,
)
from shardwright.specs.bodies import BranchBody

_PASSES = 3
"""Forward, input gradient and weight gradient: the backward pass does twice the forward's work."""

_SCAN_FLOPS = 7
"""Per inner channel, state and token (``mamba_layer_flops`` of Megatron-LM)."""


def model_flops_megatron(model: ModelSpec, training: TrainingSpec) -> float:
    """FLOPs that one global batch needs, forward and backward, by Megatron-LM's definition.

    Counted: projections, MLPs, the chosen experts and the shared ones, the two products of causal
    attention (half of the square; a window narrower than the sequence is not seen), logits of the
    unpadded vocabulary, once more for each layer of multi-token prediction. Not counted: routers,
    norms, embeddings, softmax, short convolutions, recomputation. Megatron-LM pads the vocabulary,
    so that its figure depends on tp; elsewhere the two agree to the FLOP.

    Beyond what that function covers, by the same rules: attention that is not causal counts the
    whole square; a tower with a token count of its own (images) counts by that, one image a
    sample; patches, projectors and the dense layers before a head count as products; a sparse
    attention's indexer counts its projections and scores, and the attention itself in full.

    Source: ``num_floating_point_operations`` of Megatron-LM (2026), re-derived.
    """
    per_sample = 0
    for tower in model.towers:
        memory = _tokens(model.towers[0], training)
        per_sample += _tower_flops(tower, _tokens(tower, training), memory)
    return float(_PASSES * training.global_batch * per_sample)


def model_flops_6n(model: ModelSpec, training: TrainingSpec) -> float:
    """6 x parameters x tokens (Kaplan et al. 2020): ignores attention, counts the embedding.

    Of a mixture of experts the active parameters; each tower with its own tokens; multi-token
    prediction is left out.
    """
    per_sample = sum(
        tower.num_active_parameters * _tokens(tower, training) for tower in model.towers
    )
    return 6.0 * training.global_batch * per_sample


def executed_flops(blocks: Iterable[BlockBooks]) -> int:
    """What the given blocks run for one micro-batch, forward and backward, recompute apart."""
    return sum(
        operations_flops((*block.forward, *block.backward_input, *block.backward_weight))
        for block in blocks
    )


def operations_flops(operations: Iterable[Operation]) -> int:
    """FLOPs of matrix products and attention; element-wise operations and collectives have none."""
    return sum(
        operation.flops for operation in operations if isinstance(operation, Matmul | Attention)
    )


def _tokens(tower: Tower, training: TrainingSpec) -> int:
    return tower.tokens_per_sample or training.seq_len


def _tower_flops(tower: Tower, tokens: int, memory: int) -> int:
    """Forward FLOPs of one sample; ``memory``: tokens that cross-attention reads."""
    total, head = 0, None
    for block in tower.blocks:
        if isinstance(block, LayerBlock):
            total += block.repeat * _layer_flops(block, tokens, memory)
        elif isinstance(block, PredictionBlock):
            extra = 2 * (3 * block.hidden_size + 2 * block.hidden_size**2)  # norms, projection
            logits = 2 * head.hidden_size * head.vocab_size if head else 0
            each = _layer_flops(block.layer, tokens, memory) + tokens * (extra + logits)
            total += block.depth * each
        else:
            head = block if isinstance(block, HeadBlock) else head
            total += _end_flops(block, tokens)
    return total


def _end_flops(block: object, tokens: int) -> int:
    """Forward FLOPs of what stands before and behind the layers."""
    match block:
        case EmbeddingBlock(table_size=int(width)):
            return 2 * tokens * width * block.hidden_size
        case PatchEmbeddingBlock():
            pixels = block.num_channels * block.num_frames * block.patch_size**2
            return 2 * block.num_patches * pixels * block.hidden_size
        case HeadBlock():
            width = block.table_size or block.hidden_size
            narrows = block.transform is not None or block.table_size is not None
            dense = block.hidden_size * width if narrows else 0
            return 2 * tokens * (dense + width * block.vocab_size)
        case ClassifierBlock():
            return 2 * block.hidden_size * block.num_labels
        case PoolerBlock():
            return 2 * block.hidden_size**2
        case ProjectorBlock():
            read, middle = block.hidden_size * block.merge, block.middle_size or block.output_size
            weights = read * block.output_size
            if block.num_layers == 2:
                weights = read * middle + middle * block.output_size
            return 2 * (tokens // block.merge) * weights
        case _:
            return 0


def _layer_flops(layer: LayerBlock, tokens: int, memory: int) -> int:
    return sum(_body_flops(branch.body, tokens, memory) for branch in layer.branches)


def _body_flops(body: BranchBody, tokens: int, memory: int) -> int:
    """Forward FLOPs of a branch over one sample: 2 per weight and token, and attention's core."""
    match body:
        case AttentionBlock():
            return _attention_flops(body, tokens, memory)
        case LatentAttentionBlock():
            return _latent_flops(body, tokens)
        case MlpBlock():
            return 2 * tokens * (3 if body.gated else 2) * body.hidden_size * body.ffn_size
        case MoeBlock():
            products = 3 if body.gated else 2
            shared = body.hidden_size * (body.shared_size or 0)
            routed = (body.latent_size or body.hidden_size) * body.expert_size * body.top_k
            latent = 2 * body.hidden_size * (body.latent_size or 0)
            return 2 * tokens * (products * (routed + shared) + latent)
        case StateSpaceBlock():
            return tokens * _state_space_flops(body)
        case LinearBlock():
            return 2 * tokens * body.hidden_size**2


def _attention_flops(body: AttentionBlock, tokens: int, memory: int) -> int:
    keys = memory if body.cross else tokens
    key_width = (body.memory_size or body.hidden_size) if body.cross else body.hidden_size
    queries = body.query_size * (2 if body.gated else 1) + body.query_size
    projections = 2 * body.hidden_size * queries * tokens + 4 * key_width * body.kv_size * keys
    core = 4 * body.query_size * tokens * keys
    return projections + (core // 2 if body.causal else core)


def _latent_flops(body: LatentAttentionBlock, tokens: int) -> int:
    """Megatron-LM counts the two inner norms as one weight per rank."""
    hidden, heads = body.hidden_size, body.num_heads
    query_size = heads * body.qk_head_dim
    if body.q_lora_rank is None:
        queries = hidden * query_size
    else:
        queries = body.q_lora_rank * (hidden + query_size + 1)
    up = heads * (body.qk_nope_head_dim + body.v_head_dim)
    keys = body.kv_lora_rank * (hidden + up + 1) + hidden * body.qk_rope_head_dim
    output = heads * body.v_head_dim * hidden
    core = 2 * (query_size + heads * body.v_head_dim) * tokens
    index, scores = 0, 0
    if body.indexer is not None:
        width = body.indexer.num_heads * body.indexer.head_dim
        reads = (body.q_lora_rank or hidden) * width
        index = reads + hidden * (body.indexer.head_dim + body.indexer.num_heads)
        scores = 2 * width * tokens
    square = (core + scores) // 2 if body.causal else core + scores
    return tokens * (2 * (queries + keys + output + index) + square)


def _state_space_flops(body: StateSpaceBlock) -> int:
    """Forward FLOPs per token: projections and the scan.

    Source: ``mamba_layer_flops`` of Megatron-LM, whose scan takes 7 per channel and state; a gated
    delta net's recurrence (decay, read, write and query of a key x value state) takes as many.
    """
    selection = 0
    if body.version == "mamba":
        rank = body.time_step_rank or 0
        selection = body.inner_size * (rank + 2 * body.state_size) + rank * body.inner_size
    weights = body.hidden_size * (body.input_size + body.inner_size) + selection
    return 2 * weights + _SCAN_FLOPS * body.inner_size * body.state_size
