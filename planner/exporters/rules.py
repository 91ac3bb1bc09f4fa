"""Rules of other software that our own runtime does not have: which layouts it refuses, and why.

Our runtime splits heads, layers and vocabularies unevenly; these do not. Rules of the Megatron
family are what its argument and config checks assert, in its main branch of 2026 and in core
r0.9.0: ``training/arguments.py``, ``core/transformer/transformer_config.py``,
``core/parallel_state.py``, ``core/pipeline_parallel/schedules.py``,
``core/transformer/moe/moe_layer.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwright.specs import AttentionBlock, InputError, Layout, ModelSpec, TrainingSpec
from shardwright.specs.blocks import LayerBlock, PredictionBlock
from shardwright.specs.bodies import BranchBody, LatentAttentionBlock, MlpBlock, MoeBlock
from shardwright.specs.rules import Violation
from shardwright.specs.world import divisors, nearest


@dataclass(frozen=True, slots=True)
class Target:
    """What one generation of a framework can express, where generations differ."""

    name: str
    version: str
    repeats_kv_heads: bool
    """tp may be a multiple of the key-value heads."""
    places_layers_freely: bool
    """A layout string gives each virtual stage its layers; else all but the first and the last have
    the same number, and with vpp all do."""
    schedules: frozenset[str]
    has_fsdp: bool
    """Megatron-FSDP: ZeRO 2 and 3."""


_MEGATRON_SCHEDULES = frozenset({"1f1b", "interleaved-1f1b"})
_MEGATRON = Target("megatron-lm", "main of 2026", True, True, _MEGATRON_SCHEDULES, True)
_R09 = Target("mt-megatronlm", "core r0.9.0", False, False, _MEGATRON_SCHEDULES, False)

TARGETS: dict[str, Target] = {
    "megatron-lm": _MEGATRON,
    "megatron-core": _MEGATRON,
    "megatron-bridge": _MEGATRON,
    "nemo": _MEGATRON,
    "mt-megatronlm": _R09,
    "megatron-lm-r0.9.0": _R09,
}
"""By name: Megatron-Bridge and NeMo train with Megatron Core; MT-MegatronLM patches core r0.9.0."""


def broken_target_rules(
    target: str, layout: Layout, model: ModelSpec, training: TrainingSpec
) -> list[Violation]:
    """All rules of a target that a layout breaks; empty where the target takes it.

    Raises:
        InputError: nothing is known of the target's rules.
    """
    known = TARGETS.get(target.strip().lower())
    if known is None:
        raise InputError(
            f"the rules of {target!r} are not known", fix=f"choose one of {', '.join(TARGETS)}"
        )
    return broken_rules(known, layout, model, training)


def broken_rules(
    target: Target, layout: Layout, model: ModelSpec, training: TrainingSpec
) -> list[Violation]:
    """As `broken_target_rules`, of a generation that is known."""
    case = _Case(target, layout, model, training)
    return list(dict.fromkeys(broken for rule in _RULES for broken in rule(case)))


@dataclass(frozen=True)
class _Case:
    target: Target
    layout: Layout
    model: ModelSpec
    training: TrainingSpec

    @property
    def bodies(self) -> list[BranchBody]:
        found: list[BranchBody] = []
        for block in (block for tower in self.model.towers for block in tower.blocks):
            layer = block.layer if isinstance(block, PredictionBlock) else block
            if isinstance(layer, LayerBlock):
                found += [branch.body for branch in layer.branches]
        return found

    @property
    def has_experts(self) -> bool:
        return any(isinstance(body, MoeBlock) for body in self.bodies)


def _heads(case: _Case) -> Iterator[Violation]:
    tp, cp = case.layout.tp, case.layout.cp
    for body in case.bodies:
        if not isinstance(body, AttentionBlock | LatentAttentionBlock):
            continue
        if body.num_heads % tp:
            close = nearest(divisors(body.num_heads), tp)
            yield Violation(
                "heads", f"{body.num_heads} attention heads are not a multiple of tp = {tp}",
                f"tp in {close}",
            )  # fmt: skip
        if not isinstance(body, AttentionBlock):
            continue
        groups = body.num_kv_heads
        if groups % tp and not (case.target.repeats_kv_heads and tp % groups == 0):
            either = " and tp is no multiple of them" if case.target.repeats_kv_heads else ""
            yield Violation(
                "kv_heads",
                f"{groups} key-value heads (kv) are not a multiple of tp = {tp}{either}",
                f"tp in {nearest(divisors(groups), tp)}",
            )
        if case.layout.cp_kind == "all_to_all" and cp > 1 and (groups // tp) % cp:
            yield Violation(
                "context_parallel",
                f"{groups // tp} key-value heads of a rank are not a multiple of cp = {cp}"
                " (all_to_all)",
                "cp_kind = ring",
            )


def _widths(case: _Case) -> Iterator[Violation]:
    for body in case.bodies:
        if isinstance(body, MlpBlock) and body.ffn_size % case.layout.tp:
            yield Violation(
                "ffn", f"ffn_size = {body.ffn_size} is not a multiple of tp = {case.layout.tp}",
                f"tp in {nearest(divisors(body.ffn_size), case.layout.tp)}",
            )  # fmt: skip
        if isinstance(body, MoeBlock) and body.expert_size % case.layout.etp:
            yield Violation(
                "experts",
                f"the experts' ffn of {body.expert_size} is not a multiple of etp ="
                f" {case.layout.etp}",
                f"etp in {nearest(divisors(body.expert_size), case.layout.etp)}",
            )


def _sequences(case: _Case) -> Iterator[Violation]:
    layout, seq_len = case.layout, case.training.seq_len
    if layout.cp > 1 and seq_len % (2 * layout.cp):
        yield Violation(
            "context_parallel", f"seq_len = {seq_len} is not a multiple of 2 x cp = {2 * layout.cp}"
        )
    if layout.sequence_parallel and seq_len // layout.cp % layout.tp:
        yield Violation(
            "sequence_parallel",
            f"seq_len / cp = {seq_len // layout.cp} is not a multiple of tp = {layout.tp}",
            "sequence_parallel = false",
        )
    if case.has_experts and layout.tp > 1 and not layout.sequence_parallel:
        yield Violation(
            "sequence_parallel", "experts with tp > 1 train with sequence parallelism only",
            "sequence_parallel = true",
        )  # fmt: skip


def _experts(case: _Case) -> Iterator[Violation]:
    layout = case.layout
    for body in case.bodies:
        if isinstance(body, MoeBlock) and body.num_experts % layout.ep:
            yield Violation(
                "experts",
                f"ep = {layout.ep} does not divide the {body.num_experts} experts",
                f"ep in {nearest(divisors(body.num_experts), layout.ep)}",
            )
    if layout.world_size.edp is None:
        yield Violation(
            "expert_grid",
            f"tp x cp x dp = {layout.world_size.ranks_per_stage} is not a multiple of etp x ep ="
            f" {layout.etp * layout.ep}",
        )
    # Without experts the second grid exists all the same, with etp = tp.
    replicas = layout.world_size.edp if case.has_experts else layout.cp * layout.dp
    if layout.rank_order == "tp-cp-pp-dp" and layout.pp > 1 and replicas != layout.dp:
        yield Violation(
            "rank_order", "with pp before dp, the expert grid must have as many replicas as dp",
            "rank_order = tp-cp-dp-pp",
        )  # fmt: skip


def _stages(case: _Case) -> Iterator[Violation]:
    layout, counts = case.layout, [stage.num_layers for stage in case.layout.stages]
    if layout.pp == 1 or case.target.places_layers_freely:
        return
    inner = counts if layout.vpp > 1 else counts[1:-1]
    if len(set(inner)) > 1:
        yield Violation(
            "layers",
            f"stages of {'+'.join(map(str, counts))} layers are not alike"
            + ("" if layout.vpp > 1 else " between the first and the last"),
            "as many layers in each",
        )


def _schedule(case: _Case) -> Iterator[Violation]:
    layout = case.layout
    if layout.schedule is None:
        return
    if str(layout.schedule) not in case.target.schedules:
        yield Violation("schedule", f"{case.target.name} has no schedule {layout.schedule}", "1f1b")
    count = layout.num_microbatches
    is_uneven = isinstance(count, int) and (count < layout.pp or count % layout.pp)
    if str(layout.schedule) == "interleaved-1f1b" and is_uneven:
        yield Violation(
            "num_microbatches",
            f"num_microbatches = {count} is not a multiple of pp = {layout.pp} (interleaved)",
        )


def _batch(case: _Case) -> Iterator[Violation]:
    layout, batch = case.layout, case.training.global_batch
    if batch % (layout.dp * layout.micro_batch):
        yield Violation(
            "global_batch",
            f"global_batch = {batch} is not a multiple of micro_batch x dp ="
            f" {layout.dp * layout.micro_batch}",
        )


def _offload(case: _Case) -> Iterator[Violation]:
    layout = case.layout
    recomputes = any(one.policy != "none" for one in layout.recompute)
    if "activations" in layout.offload and (layout.pp > 1 or recomputes):
        why = f"pp = {layout.pp}" if layout.pp > 1 else "recomputation"
        yield Violation(
            "offload", f"activation offload (cpu_offloading) is refused with {why}",
            "offload = none",
        )  # fmt: skip
    if "parameters" in layout.offload:
        yield Violation("offload", "parameters cannot be offloaded", "offload = optimizer")


def _sharding(case: _Case) -> Iterator[Violation]:
    layout = case.layout
    if layout.zero >= 2 and not case.target.has_fsdp:
        yield Violation("zero", f"{case.target.version} shards by ZeRO 1 at most", "zero = 1")
    if layout.zero >= 2 and case.training.optimizer.name not in ("adamw", "sgd"):
        yield Violation(
            "zero", f"Megatron-FSDP takes adam and sgd, not {case.training.optimizer.name}",
            "zero = 1",
        )  # fmt: skip
    degree, ranks = layout.zero_shard_degree, layout.dp * layout.cp
    if layout.zero and ranks % degree:
        yield Violation("zero", f"zero_shard_degree = {degree} does not divide dp x cp = {ranks}")


_RULES: tuple[Callable[[_Case], Iterator[Violation]], ...] = (
    _heads, _widths, _sequences, _experts, _stages, _schedule, _batch, _offload, _sharding,
)  # fmt: skip
