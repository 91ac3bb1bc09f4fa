"""Rules 7 to 18: heads, widths, sequences and sequence parallelism."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardwright.planner.exporters.megatron.checks.case import Broken, Case, Rule
from shardwright.specs.world import divisors, nearest


def heads(case: Case) -> Iterator[Broken]:
    if case.heads % case.tp:
        yield (
            f"{case.heads} attention heads are not a multiple of tp = {case.tp}",
            f"tp in {nearest(divisors(case.heads), case.tp)}",
        )


def query_groups(case: Case) -> Iterator[Broken]:
    groups, tp = case.query_groups, case.tp
    if not case.has("--group-query-attention") or groups % tp == 0:
        return
    if not (case.version.rules.repeats_kv_heads and tp % groups == 0):
        yield (
            f"{groups} key-value heads are not a multiple of tp = {tp}",
            f"tp in {nearest(divisors(groups), tp)}",
        )


def widths(case: Case) -> Iterator[Broken]:
    arguments = case.arguments
    if case.heads and case.hidden % case.heads and not case.has("--kv-channels"):
        yield (
            f"--hidden-size {case.hidden} is not a multiple of the {case.heads} heads, and"
            " --kv-channels is not given", None,
        )  # fmt: skip
    ffn = arguments.number("--ffn-hidden-size", 4 * case.hidden) or 0
    moe_ffn = arguments.number("--moe-ffn-hidden-size", ffn) or 0
    shared = arguments.number("--moe-shared-expert-intermediate-size", 0) or 0
    has_mlp = not case.num_experts or case.has("--moe-layer-freq")
    for what, width, degree in (
        ("tp", ffn if has_mlp else 0, case.tp),
        ("tp", shared, case.tp),
        ("etp", moe_ffn if case.num_experts else 0, case.etp),
    ):
        if width % degree:
            yield (
                f"a width of {width} is not a multiple of {what} = {degree}",
                f"{what} in {nearest(divisors(width), degree)}",
            )
    if case.version.name == "core_r0.9.0" and moe_ffn != ffn and not case.has("--moe-grouped-gemm"):
        yield "core r0.9.0 has --moe-ffn-hidden-size only with --moe-grouped-gemm", None


def sequence(case: Case) -> Iterator[Broken]:
    if case.cp > 1 and case.seq_len % (2 * case.cp):
        yield (
            f"--seq-length {case.seq_len} is not a multiple of 2 x cp = {2 * case.cp}",
            f"seq_len = {case.seq_len // (2 * case.cp) * 2 * case.cp}",
        )
    if case.sequence_parallel and case.seq_len // case.cp % case.tp:
        yield (
            f"seq_len / cp = {case.seq_len // case.cp} is not a multiple of tp = {case.tp}, which"
            " --sequence-parallel needs", "sequence_parallel = false",
        )  # fmt: skip


def context_kinds(case: Case) -> Iterator[Broken]:
    kinds = case.arguments.values("--cp-comm-type") or ("p2p",)
    sizes = case.arguments.values("--hierarchical-context-parallel-sizes")
    if len(kinds) > 1 and len(kinds) != case.num_layers:
        yield f"--cp-comm-type has {len(kinds)} kinds for {case.num_layers} layers", None
    if case.cp > 1 and "a2a" in kinds:
        for what, count in (("heads", case.heads), ("key-value heads", case.query_groups)):
            local = count // case.tp
            if local % case.cp or not local:
                yield (
                    f"{local} {what} of a tensor-parallel rank are not a multiple of cp ="
                    f" {case.cp} (a2a)", "cp_kind = ring",
                )  # fmt: skip
    if "a2a+p2p" in kinds and (not sizes or math.prod(map(int, sizes)) != case.cp):
        yield (
            f"--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes whose product is"
            f" cp = {case.cp}", None,
        )  # fmt: skip
    if case.cp > 1 and case.arguments.text("--transformer-impl") == "local":
        yield "the local implementation has no context parallelism", "cp = 1"


def linear_attention(case: Case) -> Iterator[Broken]:
    arguments, part = case.arguments, case.tp * case.cp
    keys = arguments.number("--linear-num-key-heads")
    values = arguments.number("--linear-num-value-heads")
    mamba = arguments.number("--mamba-num-heads")
    groups = arguments.number("--mamba-num-groups")
    for name, count in (("key", keys), ("value", values), ("Mamba", mamba)):
        if count is not None and count % part:
            yield f"{count} {name} heads are not a multiple of tp x cp = {part}", None
    if keys and values and values % keys:
        yield f"{values} value heads are not a multiple of the {keys} key heads", None
    if groups is not None and groups % case.tp:
        yield f"{groups} Mamba groups are not a multiple of tp = {case.tp}", None


def latent_attention(case: Case) -> Iterator[Broken]:
    arguments = case.arguments
    if arguments.text("--experimental-attention-variant") == "dsa":
        if not case.has("--disable-bias-linear"):
            yield "sparse attention needs --disable-bias-linear", None
        if not case.has("--no-rope-fusion"):
            yield "sparse attention needs --no-rope-fusion", None
        if case.cp > 1 and arguments.text("--cp-comm-type") != "all_gather":
            yield "sparse attention has all_gather only under cp", "cp_kind = all_gather"
    if not case.has("--multi-latent-attention"):
        return
    for flag in arguments.present(("--group-query-attention", "--rotary-interleaved")):
        yield f"--multi-latent-attention excludes {flag}", None
    if arguments.text("--rope-type", "yarn") != "yarn" and not case.has("--no-rope-fusion"):
        yield (
            "fused rotation of --multi-latent-attention is YaRN's only; add --no-rope-fusion",
            None,
        )
    if case.has("--qk-clip"):
        low = arguments.number("--kv-lora-rank", 32) or 0
        rope = arguments.number("--qk-pos-emb-head-dim", 64) or 0
        query = arguments.number("--q-lora-rank", 0) or 0
        if query % case.tp or (low + rope) % case.tp:
            yield f"--qk-clip needs low ranks that are multiples of tp = {case.tp}", None


def positions(case: Case) -> Iterator[Broken]:
    longest = case.arguments.number("--max-position-embeddings", case.seq_len) or 0
    if longest < case.seq_len:
        yield (
            f"--max-position-embeddings {longest} is less than --seq-length {case.seq_len}",
            f"seq_len = {longest}",
        )
    without = case.arguments.text("--no-rope-freq")
    if without is not None and without.isdigit() and case.num_layers % int(without):
        yield f"--no-rope-freq {without} does not divide {case.num_layers} layers", None


def sequence_needs_tensor(case: Case) -> Iterator[Broken]:
    if case.sequence_parallel and case.tp == 1:
        yield "--sequence-parallel needs tp > 1, and is switched off", "sequence_parallel = false"


def overlap_needs_sequence(case: Case) -> Iterator[Broken]:
    if case.has("--tp-comm-overlap") and not case.sequence_parallel:
        yield "--tp-comm-overlap needs --sequence-parallel", "sequence_parallel = true"


def experts_need_sequence(case: Case) -> Iterator[Broken]:
    if case.num_experts and case.tp > 1 and not case.sequence_parallel:
        yield "experts with tp > 1 train with --sequence-parallel only", "sequence_parallel = true"


def no_distributed_activations(case: Case) -> Iterator[Broken]:
    if case.sequence_parallel and case.has("--distribute-saved-activations"):
        yield "--sequence-parallel excludes --distribute-saved-activations", None


RULES: dict[int, Rule] = {
    7: heads, 8: query_groups, 9: widths, 10: sequence, 11: context_kinds, 12: linear_attention,
    13: latent_attention, 14: positions, 15: sequence_needs_tensor, 16: overlap_needs_sequence,
    17: experts_need_sequence, 18: no_distributed_activations,
}  # fmt: skip
