"""The rules of a layout that follow from the model: who can be cut how far, and what exists.

Every function returns the broken rules of one kind, each with its numbers and the nearest valid
values. Layers, columns and heads that do not divide are split unevenly, and key-value heads fewer
than tp are replicated, so only what cannot be cut at all is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.specs.blocks import (
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    PatchEmbeddingBlock,
    PredictionBlock,
)
from shardwright.specs.bodies import (
    AttentionBlock,
    BranchBody,
    LatentAttentionBlock,
    MlpBlock,
    MoeBlock,
    StateSpaceBlock,
)
from shardwright.specs.world import divisors, nearest

if TYPE_CHECKING:
    from shardwright.specs.cluster import ClusterSpec
    from shardwright.specs.layout import Layout
    from shardwright.specs.model import ModelSpec, Tower
    from shardwright.specs.training import DType, TrainingSpec


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule with its numbers and the nearest values that obey it."""

    rule: str
    """A stable slug, such as ``world_size``."""
    problem: str
    nearest: str | None = None

    def __str__(self) -> str:
        return f"{self.problem}; nearest: {self.nearest}" if self.nearest else self.problem


def model_violations(layout: Layout, model: ModelSpec, training: TrainingSpec) -> list[Violation]:
    """All rules that the model's blocks set, of every tower."""
    bodies = list(_bodies(model))
    return list(
        dict.fromkeys(
            [
                *_tensor(layout, model, bodies),
                *_sequence(layout, model, training),
                *_context(layout, model, training, bodies),
                *_experts(layout, bodies),
                *_recompute(layout, bodies),
                *_loss(layout, model, training),
            ]
        )
    )


def precision_violations(cluster: ClusterSpec, training: TrainingSpec) -> list[Violation]:
    """Dtypes of the precision that some accelerator of the cluster does not have.

    A processor computes in any of them, and units for bf16 take fp16 too.
    """
    dtypes, found = training.dtypes, []
    for group in cluster.groups:
        device = group.accelerator
        own: set[DType] = set(device.peak_flops_per_s)
        if device.vendor == "cpu":
            continue
        own |= {"fp32", "fp64"}
        if "bf16" in own:
            own.add("fp16")
        needed: list[DType] = [dtypes.parameter, dtypes.matmul]
        if training.precision in ("mxfp8", "nvfp4"):
            needed.append("fp4")  # block-scaled products came with the units for four bits
        missing = dict.fromkeys(dtype for dtype in needed if dtype not in own)
        valid = sorted(own & {"bf16", "fp16"})
        found += [
            Violation(
                "precision",
                f"precision = {training.precision} needs {dtype}, which {device.name} lacks",
                f"precision = {valid[0] if valid else 'fp32'}",
            )
            for dtype in missing
        ]
    return list(dict.fromkeys(found))


def num_experts_of(model: ModelSpec) -> tuple[int, ...]:
    """The different counts of routed experts in the model's layers, ascending."""
    return tuple(sorted({b.num_experts for b in _bodies(model) if isinstance(b, MoeBlock)}))


def recompute_modules_of(model: ModelSpec) -> frozenset[str]:
    """Modules that selective recomputation can name in this model."""
    return frozenset(_modules(_bodies(model)))


def _bodies(model: ModelSpec) -> Iterator[BranchBody]:
    for tower in model.towers:
        for block in tower.blocks:
            if isinstance(block, PredictionBlock):
                yield from (branch.body for branch in block.layer.branches)
            elif isinstance(block, LayerBlock):
                yield from (branch.body for branch in block.branches)


def _tensor(layout: Layout, model: ModelSpec, bodies: list[BranchBody]) -> Iterator[Violation]:
    """Every tensor-parallel rank needs a head, a column and a row of the vocabulary at least."""
    tp = layout.tp
    for body in bodies:
        if isinstance(body, AttentionBlock | LatentAttentionBlock) and tp > body.num_heads:
            yield Violation(
                "attention_heads",
                f"tp = {tp} exceeds the {body.num_heads} attention heads",
                f"tp <= {body.num_heads}",
            )
        if isinstance(body, MlpBlock) and tp > body.ffn_size:
            yield Violation(
                "ffn_size", f"tp = {tp} exceeds ffn_size = {body.ffn_size}",
                f"tp <= {body.ffn_size}",
            )  # fmt: skip
        if isinstance(body, StateSpaceBlock):
            # Where heads of a state space share B and C, a rank computes the groups it reads.
            parts = body.num_heads or body.inner_size
            what = "state-space heads" if body.num_heads else "state-space channels"
            if tp > parts:
                yield Violation(
                    "state_space_heads", f"tp = {tp} exceeds the {parts} {what}", f"tp <= {parts}"
                )
    for tower in model.towers:
        for block in tower.blocks:
            if isinstance(block, EmbeddingBlock | HeadBlock) and tp > block.vocab_size:
                yield Violation(
                    "vocab_size",
                    f"tp = {tp} exceeds the vocabulary of {block.vocab_size}",
                    f"tp <= {block.vocab_size}",
                )


def _sequence(layout: Layout, model: ModelSpec, training: TrainingSpec) -> Iterator[Violation]:
    local_len = max(1, training.seq_len // layout.cp)
    if layout.sequence_parallel and layout.tp == 1:
        yield Violation(
            "sequence_parallel", "sequence_parallel needs tp > 1", "sequence_parallel = false"
        )
    if layout.sequence_parallel and layout.tp > local_len:
        where = f"seq_len / cp = {local_len}" if layout.cp > 1 else f"seq_len = {local_len}"
        yield Violation(
            "sequence_parallel", f"tp = {layout.tp} exceeds {where}", f"tp <= {local_len}"
        )
    if model.max_seq_len is not None and training.seq_len > model.max_seq_len:
        yield Violation(
            "seq_len",
            f"seq_len = {training.seq_len} exceeds the {model.max_seq_len} positions of"
            f" {model.name}",
            f"seq_len <= {model.max_seq_len}",
        )


def _context(
    layout: Layout, model: ModelSpec, training: TrainingSpec, bodies: list[BranchBody]
) -> Iterator[Violation]:
    """Ring attention gives each rank one early and one late piece, so that causal work is even."""
    cp, kind = layout.cp, layout.cp_kind
    if cp == 1:
        return
    pieces = 2 if kind == "ring" else 1
    for tower in model.towers:
        if _is_image(tower):
            continue  # every rank runs the whole tower
        tokens = tower.tokens_per_sample or training.seq_len
        if tokens % (pieces * cp):
            valid = [d for d in divisors(tokens) if tokens % (pieces * d) == 0] or [1]
            yield Violation(
                "context_parallel",
                f"{tokens} tokens of the {tower.name} are not a multiple of"
                f" {'2 x ' if pieces == 2 else ''}cp = {pieces * cp} ({kind})",
                f"cp in {nearest(valid, cp) or valid}",
            )
    if kind != "all_to_all":
        return
    for body in bodies:
        if isinstance(body, AttentionBlock | LatentAttentionBlock):
            heads = body.num_heads // layout.tp
            if cp > heads:
                yield Violation(
                    "context_parallel",
                    f"cp = {cp} exceeds the {heads} attention heads of a tensor-parallel rank"
                    " (all_to_all)",
                    f"cp <= {heads}, or cp_kind = ring" if heads else "cp_kind = ring",
                )


def _is_image(tower: Tower) -> bool:
    return any(isinstance(block, PatchEmbeddingBlock) for block in tower.blocks)


def _experts(layout: Layout, bodies: list[BranchBody]) -> Iterator[Violation]:
    moes = [body for body in bodies if isinstance(body, MoeBlock)]
    if not moes:
        for name, degree in (("ep", layout.ep), ("etp", layout.etp)):
            if degree > 1:
                yield Violation(
                    "experts", f"{name} = {degree}, but the model has no experts", f"{name} = 1"
                )
    for moe in moes:
        if moe.num_experts % layout.ep:
            close = nearest(divisors(moe.num_experts), layout.ep)
            yield Violation(
                "experts",
                f"ep = {layout.ep} does not divide the {moe.num_experts} experts",
                f"ep in {close}",
            )
        if layout.etp > moe.expert_size:
            yield Violation(
                "experts",
                f"etp = {layout.etp} exceeds the experts' ffn of {moe.expert_size}",
                f"etp <= {moe.expert_size}",
            )


def _modules(bodies: Iterable[BranchBody]) -> Iterator[str]:
    yield "norm"
    for body in bodies:
        match body:
            case LatentAttentionBlock():
                yield from ("core_attn", "attn_proj", "mla_up_proj")
            case AttentionBlock():
                yield from ("core_attn", "attn_proj")
            case MlpBlock():
                yield from ("mlp", "mlp_act")
            case MoeBlock():
                yield from ("moe", "moe_act")
                if body.shared_size:
                    yield "shared_experts"
            case _:
                pass


def _recompute(layout: Layout, bodies: list[BranchBody]) -> Iterator[Violation]:
    known = frozenset(_modules(bodies))
    for stage, entry in zip(layout.stages, layout.recompute, strict=True):
        if entry.modules is not None and entry.policy != "selective":
            yield Violation(
                "recompute",
                f"recompute of modules ({'+'.join(entry.modules)}) with policy {entry.policy}",
                "policy selective",
            )
        unknown = sorted(set(entry.modules or ()) - known)
        if entry.policy == "selective" and entry.modules is None and "core_attn" not in known:
            unknown = ["core_attn"]
        if unknown:
            yield Violation(
                "recompute",
                f"the model has no {' and no '.join(unknown)} to recompute",
                f"one of {', '.join(sorted(known))}",
            )
        if entry.num_layers is None:
            continue
        if entry.policy != "full":
            yield Violation(
                "recompute",
                f"recompute of {entry.num_layers} layers with policy {entry.policy}",
                "policy full",
            )
        elif entry.num_layers > stage.num_layers:
            yield Violation(
                "recompute",
                f"stage {stage.stage} recomputes {entry.num_layers} layers, but holds"
                f" {stage.num_layers}",
                f"full:{stage.num_layers}",
            )


def _loss(layout: Layout, model: ModelSpec, training: TrainingSpec) -> Iterator[Violation]:
    if layout.loss_chunks == 1:
        return
    if not model.is_language_model:
        yield Violation(
            "loss_chunks",
            f"loss_chunks = {layout.loss_chunks}, but {model.name} has no loss over a vocabulary",
            "loss_chunks = 1",
        )
        return
    tokens = layout.micro_batch * training.seq_len // layout.cp
    if layout.loss_chunks > tokens:
        yield Violation(
            "loss_chunks",
            f"loss_chunks = {layout.loss_chunks} exceeds the {tokens} tokens of a micro-batch",
            f"loss_chunks <= {tokens}",
        )
