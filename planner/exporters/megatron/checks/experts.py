"""Rules 29 to 35: experts, routers and dispatchers."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.megatron.checks.case import Broken, Case, Rule, listed
from shardwright.specs.world import divisors, nearest

_DROPPING = {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}
_QUANTIZED = ("--moe-router-padding-for-quantization", "--moe-router-padding-for-fp8")
_OVERLAP = "--overlap-moe-expert-parallel-comm"


def _is_deepep(case: Case) -> bool:
    backend = case.arguments.text("--moe-flex-dispatcher-backend")
    return backend == "deepep" or case.has("--moe-enable-deepep")


def counts(case: Case) -> Iterator[Broken]:
    if case.ep > 1 and not case.num_experts:
        yield f"ep = {case.ep}, but there are no experts", "ep = 1"
    elif case.num_experts % case.ep:
        yield (
            f"{case.num_experts} experts are not a multiple of ep = {case.ep}",
            f"ep in {nearest(divisors(case.num_experts), case.ep)}",
        )
    groups = case.arguments.number("--moe-router-num-groups")
    top = case.arguments.number("--moe-router-group-topk", 1) or 1
    if groups and case.num_experts % groups:
        yield f"{groups} groups do not divide {case.num_experts} experts", None
    if groups and top > groups:
        yield f"tokens go to {top} groups of {groups}", None


def routing(case: Case) -> Iterator[Broken]:
    if not case.num_experts:
        return
    arguments = case.arguments
    score = arguments.text("--moe-router-score-function", "softmax")
    if not case.has("--disable-bias-linear") and case.etp > 1:
        yield f"experts with biases need etp = 1, not {case.etp}", "etp = 1"
    top_k = arguments.number("--moe-router-topk", 2)
    if top_k == 1 and score == "softmax" and not case.has("--moe-router-pre-softmax"):
        yield "one expert by softmax needs --moe-router-pre-softmax", None
    if case.has("--moe-router-enable-expert-bias") and score not in ("sigmoid", "sqrtsoftplus"):
        yield f"a balancing bias needs sigmoid or sqrtsoftplus scores, not {score}", None
    if case.dispatcher == "alltoall_seq" and case.etp != case.tp:
        yield "the alltoall_seq dispatcher (core r0.9.0) needs etp = tp", f"etp = {case.tp}"


def capacity(case: Case) -> Iterator[Broken]:
    drops = case.has("--moe-expert-capacity-factor")
    pads = case.has("--moe-pad-expert-input-to-capacity")
    kinds = set(case.arguments.values("--moe-router-load-balancing-type") or ("aux_loss",))
    if drops and not kinds <= _DROPPING:
        yield f"a capacity excludes balancing by {', '.join(sorted(kinds - _DROPPING))}", None
    if pads and not drops:
        yield "--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor", None
    if pads and case.dispatcher == "flex" and _is_deepep(case):
        yield "DeepEP does not pad to capacity", None
    if case.num_experts and case.dispatcher == "allgather":
        quantized = case.arguments.present((*_QUANTIZED, "--variable-seq-lengths"))
        if quantized:
            yield f"the allgather dispatcher excludes {' and '.join(quantized)}", None


def shared_overlap(case: Case) -> Iterator[Broken]:
    if not case.has("--moe-shared-expert-overlap"):
        return
    if case.dispatcher not in ("alltoall", "flex"):
        yield f"--moe-shared-expert-overlap excludes the {case.dispatcher} dispatcher", None
    if case.has(_OVERLAP):
        yield f"--moe-shared-expert-overlap excludes {_OVERLAP}", None
    if "shared_experts" in case.recompute_modules:
        yield "--moe-shared-expert-overlap excludes recomputation of shared_experts", None


def auxiliary_losses(case: Case) -> Iterator[Broken]:
    kinds = case.arguments.values("--moe-router-load-balancing-type")
    coefficients = case.arguments.values("--moe-aux-loss-coeff")
    flat = [one for text in coefficients for one in listed(text)]
    if len(kinds) > 1 and len(flat) != len(kinds):
        yield f"{len(kinds)} kinds of balancing have {len(flat)} coefficients", None
    if _is_deepep(case):
        if case.dispatcher != "flex":
            yield f"DeepEP needs the flex dispatcher, not {case.dispatcher}", None
        if case.arguments.text("--moe-router-dtype") != "fp32":
            yield "DeepEP needs --moe-router-dtype fp32", None


def expert_overlap(case: Case) -> Iterator[Broken]:
    if not case.has(_OVERLAP):
        needs = ("--delay-wgrad-compute", "--ep-overlap-early-attn-memory-release")
        for flag in case.arguments.present(needs):
            yield f"{flag} needs {_OVERLAP}", None
        return
    if case.ep == 1:
        yield f"{_OVERLAP} needs ep > 1", None
    if case.dispatcher not in ("alltoall", "flex"):
        yield f"{_OVERLAP} excludes the {case.dispatcher} dispatcher", None
    if not case.arguments.present(("--bf16", "--fp16")):
        yield f"{_OVERLAP} needs bf16 or fp16", None
    if case.pp > 1 and case.vpp == 1:
        yield f"{_OVERLAP} with pp > 1 needs virtual stages", "vpp = 2"
    if case.recompute == "full" or "moe" in case.recompute_modules:
        yield f"{_OVERLAP} excludes recomputation of experts", "recompute = none"


def grouped_products(case: Case) -> Iterator[Broken]:
    if not case.has("--moe-grouped-gemm"):
        return
    if case.capability is not None and case.capability < 8:
        yield f"--moe-grouped-gemm needs compute capability 8, not {case.capability}", None
    if case.version.name != "main" and not case.has("--bf16"):
        yield f"--moe-grouped-gemm of {case.version.rules.version} needs bf16", "precision = bf16"


RULES: dict[int, Rule] = {
    29: counts, 30: routing, 31: capacity, 32: shared_overlap, 33: auxiliary_losses,
    34: expert_overlap, 35: grouped_products,
}  # fmt: skip
