"""Feed-forward blocks as parts: MLPs and mixtures of experts; and Nemotron-NAS's linear layers."""

from __future__ import annotations

import math
from dataclasses import replace

from shardwright.cost_models.stacks.linear import (
    enter_tensor_parallel,
    leave_tensor_parallel,
    products,
    projection,
)
from shardwright.cost_models.stacks.operations import Message, Part, Product, Traffic
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.specs import LinearBlock, MlpBlock, MoeBlock

_XIELU_PARAMETERS = 2
"""Learned slopes of the activation xIELU (arXiv 2411.13010)."""


def mlp(block: MlpBlock, s: Sharding) -> list[Part]:
    """Up projection, activation, down projection with residual."""
    hidden, own = block.hidden_size, s.columns(block.ffn_size)
    up = own * (2 if block.gated else 1)
    stream = s.stream_tokens * hidden * s.item_bytes
    mask = s.stream_tokens * hidden * s.dropout
    return [
        projection("mlp", s, s.tokens, hidden, up, bias=block.bias,
                   before=enter_tensor_parallel(s, hidden)),
        _activation("mlp_act", s, s.tokens, own, up,
                    parameters=_XIELU_PARAMETERS * (block.activation == "xielu")),
        projection("mlp", s, s.tokens, own, hidden, bias=block.bias, extra_bytes=3 * stream + mask,
                   after=leave_tensor_parallel(s, hidden), output_bytes=stream,
                   internal_bytes=mask),
    ]  # fmt: skip


def _activation(
    name: str, s: Sharding, rows: float, own: int, up: int, *, parameters: int = 0
) -> Part:
    size, inputs = rows * own * s.item_bytes, rows * up * s.item_bytes
    return Part(
        name,
        forward=(Traffic(size + inputs),),
        backward_input=(Traffic(size + 2 * inputs),),
        output_bytes=rows * own * s.operand_bytes,
        drops_output=True,
        parameters=parameters,
    )


def linear(block: LinearBlock, s: Sharding) -> list[Part]:
    """One projection, split by columns and gathered."""
    hidden = block.hidden_size
    stream = s.stream_tokens * hidden * s.item_bytes
    return [
        projection("mlp", s, s.tokens, hidden, s.columns(hidden), bias=block.bias,
                   before=enter_tensor_parallel(s, hidden), extra_bytes=3 * stream,
                   after=leave_tensor_parallel(s, hidden), output_bytes=stream)
    ]  # fmt: skip


def moe(block: MoeBlock, s: Sharding) -> list[Part]:
    """Router, dispatch, experts, combine, and the shared experts beside them.

    Each tensor-parallel rank sends its own part of the tokens; where the stream is whole on all of
    them (no sequence parallelism) the parts are gathered again at the end. Loads are taken as even;
    `capacity_factor` pads them.
    """
    parts = [_router(block, s)]
    own_tokens = s.tokens / s.tp
    rows = own_tokens * block.top_k
    if block.capacity_factor is not None:
        rows *= block.capacity_factor
    item = s.item_bytes
    hidden, width = block.hidden_size, block.latent_size or block.hidden_size
    stream = s.stream_tokens * hidden * item
    forward, backward = _exchange(block, s, rows * width * item)
    moved = Traffic(2 * rows * width * item, 8)
    is_split = s.tp > 1 and not s.is_sequence_parallel
    whole = (Message("all_gather", own_tokens * hidden * item, "tp"),) if is_split else ()
    if block.latent_size is not None:
        parts.append(projection("moe", s, own_tokens, hidden, width))
    parts.append(Part("moe", (moved, *forward), (*backward, moved, *whole),
                      output_bytes=rows * s.etp * width * s.operand_bytes))  # fmt: skip
    parts += _experts(block, s, rows * s.etp)
    combine = Traffic((rows * width * item) * 2 + 3 * stream, 8)
    back, again = _exchange(block, s, rows * width * item, leaving=True)
    if block.latent_size is None:
        parts.append(Part("moe", (*back, combine, *whole), (combine, *again), output_bytes=stream,
                          internal_bytes=8 * rows))  # fmt: skip
    else:
        parts.append(Part("moe", (*back, combine), (combine, *again), internal_bytes=8 * rows,
                          output_bytes=own_tokens * width * item))  # fmt: skip
        parts.append(projection("moe", s, own_tokens, width, hidden, after=(whole, ()),
                                output_bytes=stream))  # fmt: skip
    if block.shared_size:
        parts += _shared_experts(block, s)
    return parts


def _router(block: MoeBlock, s: Sharding) -> Part:
    """Scores in fp32, chosen and sorted."""
    rows, experts = s.stream_tokens, block.num_experts
    score = Product(rows, experts, block.hidden_size, 1, "compute")
    work = Traffic(rows * experts * 4 * 6, 40)
    return Part(
        "router",
        forward=(score, work),
        backward_input=(work, score),
        backward_weight=() if s.frozen else (score,),
        internal_bytes=rows * experts * 8 + 12.0 * rows * block.top_k,
        parameters=experts * (block.hidden_size + block.router_bias + block.correction_bias),
    )


def _exchange(
    block: MoeBlock, s: Sharding, num_bytes: float, *, leaving: bool = False
) -> tuple[list[Message], list[Message]]:
    """All-to-all over ep, and gathering (scattering) over etp: forward, backward."""
    calls: list[Message] = []
    if s.ep > 1:
        limit = block.top_groups if block.num_groups > 1 else 0
        calls.append(Message("all_to_all", num_bytes, "ep", copies=block.top_k, most_domains=limit))
    back = list(calls)
    if s.etp > 1:
        gather = Message("all_gather", num_bytes, "etp")
        scatter = Message("reduce_scatter", num_bytes * s.etp, "etp")
        calls.append(scatter if leaving else gather)
        back.append(gather if leaving else scatter)
    return calls, back


def _experts(block: MoeBlock, s: Sharding, rows: float) -> list[Part]:
    """Grouped products of this rank's experts over ``rows`` token copies in all."""
    local = block.num_experts / s.ep
    own = math.ceil(block.expert_size / s.etp)
    up = own * (2 if block.gated else 1)
    each = rows / local
    hidden = block.latent_size or block.hidden_size
    parts = []
    for name, inputs, outputs in (("moe", hidden, up), ("moe_act", 0, 0), ("moe", own, hidden)):
        if name == "moe_act":
            parts.append(_activation(name, s, rows, own, up))
            continue
        forward, d_input, d_weight, adapters = products(
            s, each, inputs, outputs, batch=local, adapted=False
        )
        weights = local * (inputs * outputs + outputs * block.bias)
        parts.append(Part(name, tuple(forward), tuple(d_input), tuple(d_weight),
                          output_bytes=rows * outputs * s.item_bytes,
                          expert_parameters=weights, adapters=adapters))  # fmt: skip
    return parts


def _shared_experts(block: MoeBlock, s: Sharding) -> list[Part]:
    assert block.shared_size is not None
    dense = MlpBlock(
        hidden_size=block.hidden_size, ffn_size=block.shared_size, activation=block.activation,
        gated=block.gated, bias=False,
    )  # fmt: skip
    parts = [replace(part, name="shared_experts", drops_output=False) for part in mlp(dense, s)]
    gate = block.hidden_size * block.shared_gate
    return [replace(parts[0], parameters=parts[0].parameters + gate), *parts[1:]]
