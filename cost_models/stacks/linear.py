"""Parts that every block is made of: projections with their collectives, and norms."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.cost_models.stacks.operations import (
    Message,
    Operation,
    Part,
    Product,
    Traffic,
    Width,
)
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.specs import NormBlock


def norm(
    block: NormBlock | None, s: Sharding, name: str = "norm", *, is_operand: bool = False
) -> Part | None:
    """A fused norm: reads its input, writes its output; backward reads both and the gradient.

    ``is_operand``: only products read its output.
    """
    if block is None:
        return None
    size = s.stream_tokens * block.hidden_size * s.item_bytes
    return Part(
        name,
        forward=(Traffic(2 * size),),
        backward_input=(Traffic(4 * size, 2),),  # with the residual stream's own gradient
        internal_bytes=8 * s.stream_tokens,  # statistics
        output_bytes=size * s.operand_bytes / s.item_bytes if is_operand else size,
        drops_output=True,
        parameters=block.num_parameters,
    )


def enter_tensor_parallel(
    s: Sharding, hidden: int, tokens: float | None = None
) -> tuple[Sequence[Message], Sequence[Message]]:
    """Collectives before a column-parallel projection: (forward, backward).

    With sequence parallelism the input is gathered; backward scatters its gradient and gathers the
    input once more for the weight gradient, beside other work (Korthikanti et al. 2022).
    ``tokens``: of the input, where they are not the layer's own.
    """
    if s.tp == 1:
        return (), ()
    part = (s.tokens if tokens is None else tokens) / s.tp * hidden * s.item_bytes
    if s.is_sequence_parallel:
        gather = Message("all_gather", part, "tp")
        again = () if s.frozen else (Message("all_gather", part, "tp", overlaps=True),)
        return (gather,), (Message("reduce_scatter", part * s.tp, "tp"), *again)
    return (), (Message("all_reduce", part * s.tp, "tp"),)


def leave_tensor_parallel(s: Sharding, hidden: int) -> tuple[Sequence[Message], Sequence[Message]]:
    """Collectives after a row-parallel projection: (forward, backward)."""
    if s.tp == 1:
        return (), ()
    part = s.tokens / s.tp * hidden * s.item_bytes
    if s.is_sequence_parallel:
        return (Message("reduce_scatter", part * s.tp, "tp"),), (Message("all_gather", part, "tp"),)
    return (Message("all_reduce", part * s.tp, "tp"),), ()


def products(
    s: Sharding,
    rows: float,
    inputs: float,
    outputs: float,
    *,
    batch: float = 1,
    width: Width = "matmul",
    adapted: bool = True,
) -> tuple[list[Operation], list[Operation], list[Operation], float]:
    """A projection's products, forward, input gradient, weight gradient; and adapter parameters."""
    forward: list[Operation] = [Product(rows, outputs, inputs, batch, width)]
    d_input: list[Operation] = [Product(rows, inputs, outputs, batch, width)]
    d_weight: list[Operation] = [] if s.frozen else [Product(inputs, outputs, rows, batch, width)]
    if width == "matmul" and s.matmul_bytes < s.item_bytes:
        quantise = s.item_bytes + s.matmul_bytes
        both = (inputs + outputs) * rows * batch * quantise
        forward.append(Traffic(rows * inputs * batch * quantise))
        d_input.append(Traffic(both))  # the gradient, and both transposed for the weight gradient
    adapters = 0.0
    if s.adapter_rank and s.weight_bytes < s.item_bytes:
        widened = Traffic(inputs * outputs * batch * (s.weight_bytes + s.item_bytes))
        forward.append(widened)
        d_input.append(widened)
    if s.adapter_rank and adapted:
        rank = s.adapter_rank
        adapters = batch * rank * (inputs + outputs)
        low = [
            Product(rows, rank, inputs, batch, "compute"),
            Product(rows, outputs, rank, batch, "compute"),
        ]
        forward += low
        d_input += low
        d_weight += low
    return forward, d_input, d_weight, adapters


def projection(
    name: str,
    s: Sharding,
    rows: float,
    inputs: float,
    outputs: float,
    *,
    bias: bool = False,
    before: tuple[Sequence[Message], Sequence[Message]] = ((), ()),
    after: tuple[Sequence[Message], Sequence[Message]] = ((), ()),
    extra_bytes: float = 0.0,
    keeps_output: bool = True,
    output_bytes: float | None = None,
    internal_bytes: float = 0.0,
    replicated_parameters: float = 0.0,
) -> Part:
    """One linear layer of this rank's ``inputs`` x ``outputs`` over ``rows`` tokens.

    ``extra_bytes``: of what is fused behind it, in forward and again in backward (residual, rope).
    ``internal_bytes``: kept besides input and output (a dropout mask).
    """
    forward, d_input, d_weight, adapters = products(s, rows, inputs, outputs)
    tail = (Traffic(extra_bytes),) if extra_bytes else ()
    size = rows * outputs * s.item_bytes if output_bytes is None else output_bytes
    return Part(
        name,
        forward=(*before[0], *forward, *tail, *after[0]),
        backward_input=(*after[1], *tail, *d_input, *before[1]),
        backward_weight=tuple(d_weight),
        internal_bytes=internal_bytes,
        output_bytes=size if keeps_output else 0.0,
        parameters=inputs * outputs + outputs * bias + replicated_parameters,
        adapters=adapters,
    )
