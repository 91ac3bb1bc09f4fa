"""Rules 48 and 49: precision."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.megatron.checks.case import Broken, Case, Rule


def formats(case: Case) -> Iterator[Broken]:
    recipe = case.arguments.text("--fp8-recipe", "delayed")
    is_half = case.has("--bf16") or case.has("--fp16")
    if case.has("--bf16") and case.has("--fp16"):
        yield "--bf16 and --fp16 exclude each other", None
    if case.has("--fp8-format") and case.has("--fp4-format"):
        yield "--fp8-format and --fp4-format exclude each other", None
    sharded = case.has("--use-distributed-optimizer") or case.is_fsdp
    if case.has("--fp8-param-gather") and not sharded:
        yield "--fp8-param-gather needs the distributed optimizer or FSDP", "zero = 1"
    if case.has("--fp4-param-gather") and not case.has("--fp4-format"):
        yield "--fp4-param-gather needs --fp4-format", None
    yield from _first_and_last(case, recipe)
    if case.has("--fp8-output-proj") and recipe != "mxfp8":
        yield f"--fp8-output-proj needs the recipe mxfp8, not {recipe}", None
    if case.has("--fp32-residual-connection") and not is_half:
        yield "--fp32-residual-connection needs bf16 or fp16", None
    if case.ep > 1 and case.has("--fp16"):
        yield "expert parallelism is not there in fp16", "precision = bf16"


def _first_and_last(case: Case, recipe: str | None) -> Iterator[Broken]:
    if not case.has("--first-last-layers-bf16"):
        return
    if case.has("--fp8-format") and recipe == "delayed":
        yield "delayed scaling excludes --first-last-layers-bf16", None
    for flag in ("--num-layers-at-start-in-bf16", "--num-layers-at-end-in-bf16"):
        count = case.arguments.number(flag, 1) or 0
        if count > case.num_layers // case.pp:
            yield f"{flag} {count} is more than a stage's {case.num_layers // case.pp} layers", None


def loss_and_alignment(case: Case) -> Iterator[Broken]:
    """Quantised products want rows in blocks: 16, and 32 where 32 numbers share a scale."""
    if case.arguments.text("--cross-entropy-fusion-impl") == "te":
        yield "Transformer Engine's fused cross-entropy is refused", None
    if not (case.has("--fp8-format") or case.has("--fp4-format")):
        return
    block = 32 if case.arguments.text("--fp8-recipe") == "mxfp8" else 16
    rows = case.micro_batch * case.seq_len // case.cp
    rows = rows // case.tp if case.sequence_parallel else rows
    if rows % block:
        yield (
            f"{rows} tokens of a rank are not a multiple of {block}, as quantised products need",
            "precision = bf16",
        )


RULES: dict[int, Rule] = {48: formats, 49: loss_and_alignment}
