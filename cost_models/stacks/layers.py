"""What a whole layer, or an end of the model, asks of one rank: its parts under recomputation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from shardwright.cost_models.stacks import attention, ends, feedforward, linear, state_space
from shardwright.cost_models.stacks.operations import Message, Operation, Part, Product
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.specs import (
    AttentionBlock,
    ClassifierBlock,
    EmbeddingBlock,
    HeadBlock,
    InputError,
    LatentAttentionBlock,
    LayerBlock,
    LinearBlock,
    MlpBlock,
    MoeBlock,
    NormBlock,
    PatchEmbeddingBlock,
    PoolerBlock,
    PredictionBlock,
    ProjectorBlock,
    Recompute,
    ResidualBranch,
    StateSpaceBlock,
)

Policy = frozenset[str] | None
"""Modules that are recomputed; None = the whole layer."""

_COVERS = {
    "mlp": ("mlp", "mlp_act"),
    "moe": ("router", "moe", "moe_act", "shared_experts"),
    "shared_experts": ("shared_experts",),
}
"""Modules that are recomputed as one: only their last output stays."""


OPERATORS = "operators"
"""A policy's module: keep attention's output and every second product's (PyTorch's selective
activation checkpointing as torchtitan sets it)."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """The trained matrices of a unit on one rank: what optimizers that look at shapes keep."""

    dense: float = 0.0
    """Parameters in them, routed experts apart."""
    dense_sides: float = 0.0
    """Their rows and columns."""
    expert: float = 0.0
    expert_sides: float = 0.0
    table_sides: float = 0.0
    """Rows and columns of a unit that is a table."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One layer (or end) on one rank for one micro-batch."""

    forward: tuple[Operation, ...]
    backward_input: tuple[Operation, ...]
    backward_weight: tuple[Operation, ...]
    again: tuple[Operation, ...]
    """The forward operations that backward runs once more."""
    saved_bytes: float
    """Kept from forward to backward."""
    whole_bytes: float
    """What it would keep without recomputation: alive while its backward runs."""
    widest_bytes: float
    """The largest value inside: in backward its gradient and the next one are alive."""
    parameters: float
    """On this rank, routed experts apart."""
    expert_parameters: float
    adapters: float
    matrices: Matrices = Matrices()
    tied_parameters: float = 0.0
    """Of a table that another unit owns, and a stage of its own needs a copy of."""


def policy_of(recompute: Recompute, layer: int) -> Policy:
    """What is recomputed in the ``layer``-th layer of a stage."""
    if recompute.policy == "none":
        return frozenset()
    if recompute.policy == "full":
        whole = recompute.num_layers is None or layer < recompute.num_layers
        return None if whole else frozenset()
    return frozenset(recompute.modules or ("core_attn",))


def work(
    parts: Sequence[Part],
    policy: Policy,
    tied_parameters: float = 0.0,
    *,
    early_stop: bool = False,
) -> Work:
    """Parts as one unit of work under a recomputation policy.

    ``early_stop``: recomputation of the whole unit ends with the last value that backward needs.
    """
    again, saved = _recomputed(parts, policy)
    if policy is None and early_stop:
        again = _before_last_product(again)
    return Work(
        forward=_flat(part.forward for part in parts),
        backward_input=_flat(part.backward_input for part in parts),
        backward_weight=_flat(part.backward_weight for part in parts),
        again=tuple(again),
        saved_bytes=saved,
        whole_bytes=sum(part.saved_bytes for part in parts),
        widest_bytes=max(max(part.output_bytes, part.scratch_bytes) for part in parts),
        parameters=sum(part.parameters for part in parts),
        expert_parameters=sum(part.expert_parameters for part in parts),
        adapters=sum(part.adapters for part in parts),
        matrices=_matrices(parts),
        tied_parameters=tied_parameters,
    )


def _recomputed(parts: Sequence[Part], policy: Policy) -> tuple[list[Operation], float]:
    """What runs again in backward, and the bytes that are kept until then."""
    if policy is None:
        return [op for part in parts for op in part.forward], parts[-1].output_bytes
    if OPERATORS in policy:
        return _half_recomputed(parts)
    again: list[Operation] = []
    saved = 0.0
    dropped = _dropped(parts, policy)
    for index, part in enumerate(parts):
        if index not in dropped:
            saved += part.saved_bytes
            continue
        again += part.forward
        saved += part.output_bytes * (not dropped[index])
    return again, saved


def _before_last_product(operations: Sequence[Operation]) -> list[Operation]:
    """Without the last product and what follows: only its input is needed for gradients."""
    products = [i for i, op in enumerate(operations) if isinstance(op, Product)]
    return list(operations[: products[-1]] if products else operations)


def _half_recomputed(parts: Sequence[Part]) -> tuple[list[Operation], float]:
    """`OPERATORS`: of products one half is kept, of the rest attention and the layer's input."""
    again: list[Operation] = []
    saved = parts[-1].output_bytes
    for part in parts:
        if part.name == "core_attn":
            saved += part.saved_bytes
            continue
        has_product = False
        for op in part.forward:
            if isinstance(op, Product):
                has_product = True
                again.append(op._replace(n=op.n / 2))
            else:
                again.append(op)
        saved += part.output_bytes / 2 * has_product
    return again, saved


def _matrices(parts: Sequence[Part]) -> Matrices:
    """From the products that make gradients of weights: [m, n] each."""
    totals = [0.0, 0.0, 0.0, 0.0]
    for part in parts:
        at = 2 if part.expert_parameters else 0
        for op in part.backward_weight:
            if isinstance(op, Product) and part.parameters + part.expert_parameters:
                totals[at] += op.batch * op.m * op.n
                totals[at + 1] += op.batch * (op.m + op.n)
    tables = sum(part.table_sides for part in parts)
    dense, sides, expert, expert_sides = totals
    return Matrices(dense, sides, expert, expert_sides, tables)


def _flat(groups: Iterable[tuple[Operation, ...]]) -> tuple[Operation, ...]:
    return tuple(op for group in groups for op in group)


def _dropped(parts: Sequence[Part], policy: frozenset[str]) -> dict[int, bool]:
    """Which parts are recomputed, and whether their outputs go too."""
    found: dict[int, bool] = {}
    for module in policy:
        names = _COVERS.get(module)
        if names is None:
            found |= {i: p.drops_output for i, p in enumerate(parts) if p.name == module}
            continue
        covered = [index for index, part in enumerate(parts) if part.name in names]
        found |= {index: index != covered[-1] for index in covered}
    return found


@lru_cache(maxsize=65536)
def layer_parts(
    layer: LayerBlock, s: Sharding, memory_tokens: float | None = None
) -> tuple[Part, ...]:
    """The parts of one layer in order.

    ``memory_tokens``: per sequence, of the tower that cross-attention reads.
    """
    found: list[Part] = []
    last = len(layer.branches) - 1
    for index, branch in enumerate(layer.branches):
        parts = _branch(branch, s, memory_tokens)
        if layer.parallel and isinstance(branch.body, AttentionBlock | MlpBlock):
            # Outputs are added before they are summed over ranks, and a shared input is gathered
            # (its gradient summed) once, as in GPT-NeoX's ``gpt_j_residual``.
            if index < last:
                parts[-1] = _without_messages(parts[-1])
            if layer.shared_norm and index > 0:
                parts[0] = _without_messages(parts[0])
        found += parts
    return tuple(found) or (Part("norm"),)


def _without_messages(part: Part) -> Part:
    return replace(
        part,
        forward=tuple(op for op in part.forward if not isinstance(op, Message)),
        backward_input=tuple(op for op in part.backward_input if not isinstance(op, Message)),
    )


def _branch(branch: ResidualBranch, s: Sharding, memory_tokens: float | None) -> list[Part]:
    is_operand = not isinstance(branch.body, MoeBlock)  # a router reads it too
    before = linear.norm(branch.pre_norm, s, is_operand=is_operand)
    after = linear.norm(branch.post_norm, s)
    body = _body(branch, s, memory_tokens)
    if branch.learned_scale:  # fused with the residual
        last = body[-1]
        body[-1] = replace(last, parameters=last.parameters + branch.body.hidden_size)
    return [*([before] if before else []), *body, *([after] if after else [])]


def _body(branch: ResidualBranch, s: Sharding, memory_tokens: float | None) -> list[Part]:
    match branch.body:
        case AttentionBlock():
            return attention.attention(branch.body, s, memory_tokens)
        case LatentAttentionBlock():
            return attention.latent_attention(branch.body, s)
        case MlpBlock():
            return feedforward.mlp(branch.body, s)
        case MoeBlock():
            return feedforward.moe(branch.body, s)
        case StateSpaceBlock():
            return state_space.state_space(branch.body, s)
        case LinearBlock():
            return feedforward.linear(branch.body, s)


@lru_cache(maxsize=65536)
def layer_work(
    layer: LayerBlock, s: Sharding, policy: Policy, memory_tokens: float | None = None
) -> Work:
    """One layer as a unit of work."""
    return work(layer_parts(layer, s, memory_tokens), policy, early_stop=s.early_stop)


EndBlock = (
    EmbeddingBlock
    | PatchEmbeddingBlock
    | NormBlock
    | HeadBlock
    | ClassifierBlock
    | PoolerBlock
    | ProjectorBlock
)


@lru_cache(maxsize=16384)
def end_work(block: EndBlock, s: Sharding, loss_chunks: int = 1, fused_loss: bool = False) -> Work:
    """An embedding, a head or another block outside the layers as a unit of work."""
    match block:
        case EmbeddingBlock():
            parts = ends.embedding(block, s)
        case PatchEmbeddingBlock():
            parts = ends.patch_embedding(block, s)
        case HeadBlock():
            parts = ends.head(block, s, loss_chunks=loss_chunks, fused=fused_loss)
        case ClassifierBlock():
            parts = ends.classifier(block, s)
        case PoolerBlock():
            parts = ends.pooler(block, s)
        case ProjectorBlock():
            parts = ends.projector(block, s)
        case NormBlock():
            normed = linear.norm(block, s)
            assert normed is not None
            parts = [normed]
        case _:
            raise InputError(f"there are no costs for a {block.kind} block here")
    return work(parts, frozenset(), _tied_parameters(block, s))


@lru_cache(maxsize=16384)
def shared_work(work: Work) -> Work:
    """The same work with the weights of another unit: it holds none of its own."""
    return replace(
        work, parameters=0.0, expert_parameters=0.0, matrices=Matrices(), tied_parameters=0.0
    )


@lru_cache(maxsize=16384)
def forward_work(work: Work) -> Work:
    """The same work without a backward pass."""
    return replace(work, backward_input=(), backward_weight=(), again=())


def _tied_parameters(block: EndBlock, s: Sharding) -> float:
    if isinstance(block, HeadBlock) and block.tied:
        return s.columns(block.vocab_size) * float(block.table_size or block.hidden_size)
    return 0.0


@lru_cache(maxsize=1024)
def prediction_work(block: PredictionBlock, s: Sharding, policy: Policy) -> Work:
    """One depth of multi-token prediction, without its logits."""
    entry = ends.prediction_entry(block.hidden_size, s, 3 * block.norm.num_parameters)
    return work((entry, *layer_parts(block.layer, s)), policy, early_stop=s.early_stop)
