"""Rules 40 to 47: data parallelism, FSDP and optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.megatron.checks.case import Broken, Case, Rule
from shardwright.planner.exporters.megatron.environment import CONNECTIONS

_DISTRIBUTED = ("torch", "torch_dist")


def gather_overlap(case: Case) -> Iterator[Broken]:
    sharded = case.arguments.present(("--use-distributed-optimizer", "--use-megatron-fsdp"))
    if case.has("--overlap-param-gather"):
        if not sharded and case.optimizer != "dist_muon":
            yield "--overlap-param-gather needs the distributed optimizer or FSDP", "zero = 1"
        if not case.has("--overlap-grad-reduce"):
            yield "--overlap-param-gather needs --overlap-grad-reduce", None
    if case.has("--overlap-param-gather-with-optimizer-step"):
        if not (case.has("--overlap-param-gather") and sharded) or case.vpp == 1:
            yield (
                "--overlap-param-gather-with-optimizer-step needs --overlap-param-gather and"
                " virtual stages", None,
            )  # fmt: skip
        if case.checkpoint_format != "torch":
            yield (
                "--overlap-param-gather-with-optimizer-step excludes distributed checkpoints",
                None,
            )


def averages(case: Case) -> Iterator[Broken]:
    if not case.has("--ddp-average-in-collective"):
        return
    if case.has("--calculate-per-token-loss"):
        yield "--ddp-average-in-collective excludes --calculate-per-token-loss", None
    if case.gtp > 1:
        yield "--ddp-average-in-collective excludes generalized tensor parallelism", None


def torch_fsdp(case: Case) -> Iterator[Broken]:
    if case.checkpoint_format == "torch_dcp" and (case.tp > 1 or case.pp > 1):
        yield "--ckpt-format torch_dcp needs tp = pp = 1", None
    if not case.has("--use-torch-fsdp2"):
        return
    if case.pp > 1 or case.ep > 1:
        yield "--use-torch-fsdp2 needs pp = ep = 1", "pp = 1"
    if case.has("--use-distributed-optimizer"):
        yield "--use-torch-fsdp2 excludes --use-distributed-optimizer", None
    if not case.has("--no-gradient-accumulation-fusion"):
        yield "--use-torch-fsdp2 needs --no-gradient-accumulation-fusion", None
    if not case.has("--untie-embeddings-and-output-weights") or case.has("--fp16"):
        yield "--use-torch-fsdp2 needs untied embeddings and no fp16", None
    if case.environment.get(CONNECTIONS) == "1":
        yield f"--use-torch-fsdp2 excludes {CONNECTIONS}=1", None
    if case.checkpoint_format not in ("torch_dist", "torch_dcp"):
        yield f"--use-torch-fsdp2 excludes --ckpt-format {case.checkpoint_format}", None


def megatron_fsdp(case: Case) -> Iterator[Broken]:
    if not case.has("--use-megatron-fsdp"):
        return
    if not case.version.rules.has_fsdp:
        yield f"{case.version.rules.version} has no Megatron-FSDP", "zero = 1"
    if case.optimizer not in ("adam", "sgd"):
        yield f"Megatron-FSDP takes adam and sgd, not {case.optimizer}", "zero = 1"
    if case.checkpoint_format != "fsdp_dtensor":
        yield "Megatron-FSDP needs --ckpt-format fsdp_dtensor", None
    if case.environment.get(CONNECTIONS) == "1":
        yield f"Megatron-FSDP excludes {CONNECTIONS}=1", None
    if case.has("--moe-single-grouped-weight"):
        yield "Megatron-FSDP excludes single grouped weights of experts", None
    is_second = case.arguments.text("--megatron-fsdp-version", "1") in ("2", "v2")
    sharded = case.has("--use-distributed-optimizer")
    if is_second == sharded:
        word = "excludes" if is_second else "needs"
        yield f"this version of Megatron-FSDP {word} --use-distributed-optimizer", None
    if is_second and (
        case.tp * case.pp * case.cp > 1 or case.num_experts or not case.has("--bf16")
    ):
        yield "the second Megatron-FSDP is data parallel only, in bf16, without experts", "tp = 1"
    if case.has("--use-tp-pp-dp-mapping"):
        yield "Megatron-FSDP excludes --use-tp-pp-dp-mapping", "rank_order = tp-cp-dp-pp"


def optimizers(case: Case) -> Iterator[Broken]:
    precise = case.has("--use-precision-aware-optimizer")
    if case.optimizer not in ("adam", "sgd"):
        if case.is_fsdp:
            yield f"{case.optimizer} excludes FSDP", "zero = 1"
        if case.checkpoint_format not in _DISTRIBUTED:
            yield f"{case.optimizer} excludes --ckpt-format {case.checkpoint_format}", None
    if precise and case.optimizer != "adam":
        yield f"the precision-aware optimizer is adam, not {case.optimizer}", None
    if case.has("--optimizer-cpu-offload"):
        if not precise:
            yield "--optimizer-cpu-offload needs --use-precision-aware-optimizer", None
        recipe = case.arguments.text("--fp8-recipe", "delayed")
        if case.has("--fp8-param-gather") and recipe != "delayed":
            yield f"--optimizer-cpu-offload with --fp8-param-gather excludes {recipe}", None


def connections(case: Case) -> Iterator[Broken]:
    is_older = case.capability is None or case.capability < 10
    is_free = case.is_fsdp or case.has("--overlap-moe-expert-parallel-comm")
    if not is_older or is_free or (case.tp == 1 and case.cp == 1):
        return
    if case.environment.get(CONNECTIONS) != "1":
        yield f"tp or cp > 1 before Blackwell needs {CONNECTIONS}=1", None


def weight_shards(case: Case) -> Iterator[Broken]:
    if case.gtp == 1:
        return
    if case.has("--ddp-average-in-collective"):
        yield "generalized tensor parallelism excludes --ddp-average-in-collective", None
    if case.checkpoint_format not in _DISTRIBUTED:
        yield (
            f"generalized tensor parallelism excludes --ckpt-format {case.checkpoint_format}",
            None,
        )
    is_mx = case.arguments.text("--fp8-recipe") == "mxfp8"
    if is_mx and not (
        case.has("--fp8-param-gather") and case.has("--reuse-grad-buf-for-mxfp8-param-ag")
    ):
        yield (
            "generalized tensor parallelism under mxfp8 needs --fp8-param-gather and its buffer",
            None,
        )
    if case.has("--fp4-format") and not case.has("--fp4-param-gather"):
        yield "generalized tensor parallelism under fp4 needs --fp4-param-gather", None


def without_gloo(case: Case) -> Iterator[Broken]:
    is_off = case.has("--disable-gloo-process-groups")
    if is_off and case.has("--use-distributed-optimizer") and case.checkpoint_format == "torch":
        yield "the distributed optimizer without gloo needs distributed checkpoints", None


RULES: dict[int, Rule] = {
    40: gather_overlap, 41: averages, 42: torch_fsdp, 43: megatron_fsdp, 44: optimizers,
    45: connections, 46: weight_shards, 47: without_gloo,
}  # fmt: skip
