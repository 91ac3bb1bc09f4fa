"""Floating-point operations of a training step, by three definitions.

`model_flops_megatron` counts what the model needs (matrix products and attention, the causal half
only), as Megatron-LM reports it; MFU is by this one. `model_flops_6n` is the rule of thumb.
`executed_flops` is what our layers really run, recomputation and masked halves included.

Symbols: T tokens, B sequences, S tokens per sequence, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.cost_models.blocks.operations import Attention, BlockBooks, Matmul, Operation
from shardwright.specs import AttentionBlock, LayerBlock, MlpBlock, ModelSpec, TrainingSpec

_PASSES = 3
"""Forward, input gradient and weight gradient: the backward pass does twice the forward's work."""


def model_flops_megatron(model: ModelSpec, training: TrainingSpec) -> float:
    """FLOPs that one global batch needs, forward and backward, by Megatron-LM's definition.

    Counted: projections, MLPs, the two products of causal attention (half of the square; a sliding
    window narrower than the sequence is not seen), logits of the unpadded vocabulary. Not counted:
    norms, embeddings, softmax, recomputation. Megatron-LM pads the vocabulary, so that its figure
    depends on tp; elsewhere the two agree to the FLOP.

    Source: ``num_floating_point_operations`` of Megatron-LM (2026), re-derived.
    """
    tokens = training.tokens_per_step
    squares = training.global_batch * training.seq_len**2
    per_token = 2 * model.head.hidden_size * model.head.vocab_size
    per_square = 0
    for block in model.decoder.blocks:
        if isinstance(block, LayerBlock):
            for branch in block.branches:
                per_token += block.repeat * _per_token(branch.body)
                per_square += block.repeat * _per_square(branch.body)
    return float(_PASSES * (tokens * per_token + squares * per_square))


def model_flops_6n(model: ModelSpec, training: TrainingSpec) -> float:
    """6 x parameters x tokens (Kaplan et al. 2020): ignores attention, counts the embedding."""
    return 6.0 * model.num_parameters * training.tokens_per_step


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


def _per_token(body: AttentionBlock | MlpBlock) -> int:
    """Forward FLOPs per token of the weights of a branch: 2 per weight."""
    if isinstance(body, MlpBlock):
        return 2 * (3 if body.gated else 2) * body.hidden_size * body.ffn_size
    projections = body.query_size + 2 * body.kv_size + body.query_size
    return 2 * body.hidden_size * projections


def _per_square(body: AttentionBlock | MlpBlock) -> int:
    """Forward FLOPs per squared sequence length: scores and weighted sum, half where causal."""
    if isinstance(body, MlpBlock):
        return 0
    whole = 2 * 2 * body.query_size
    return whole // 2 if body.causal else whole
