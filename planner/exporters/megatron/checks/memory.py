"""Rules 36 to 39: recomputation, offloading and CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.megatron.checks.case import Broken, Case, Rule


def recomputation(case: Case) -> Iterator[Broken]:
    method = case.arguments.text("--recompute-method")
    number = case.arguments.number("--recompute-num-layers")
    modules = set(case.recompute_modules)
    if case.recompute == "full" and (method is None or number is None):
        yield "full recomputation needs --recompute-method and --recompute-num-layers", None
    if case.recompute == "selective" and (method is not None or number is not None):
        yield "selective recomputation excludes --recompute-method and --recompute-num-layers", None
    if "moe_act" in modules and not case.has("--moe-grouped-gemm"):
        yield "recomputation of moe_act needs --moe-grouped-gemm", None
    if "mla_up_proj" in modules and not case.has("--multi-latent-attention"):
        yield "recomputation of mla_up_proj needs --multi-latent-attention", None
    if {"mhc", "mlp"} <= modules:
        yield "recomputation of mhc excludes that of mlp", None
    is_delayed = (
        case.has("--fp8-format") and case.arguments.text("--fp8-recipe", "delayed") == "delayed"
    )
    if is_delayed and modules & {"moe_act", "layernorm"}:
        yield (
            "fp8 with delayed scaling cannot recompute"
            f" {' and '.join(sorted(modules & {'moe_act', 'layernorm'}))}",
            "precision = fp8-tensor",
        )


def distributed_activations(case: Case) -> Iterator[Broken]:
    if not case.has("--distribute-saved-activations"):
        return
    if case.tp == 1 or case.recompute != "full" or not case.has("--recompute-method"):
        yield "--distribute-saved-activations needs tp > 1 and full recomputation by a method", None


def offloading(case: Case) -> Iterator[Broken]:
    layers = case.arguments.number("--cpu-offloading-num-layers", 0) or 0
    if layers and (case.pp > 1 or case.recompute is not None):
        yield "--cpu-offloading-num-layers excludes pp > 1 and recomputation", "offload = none"
    if layers and layers >= case.num_layers:
        yield f"{layers} of {case.num_layers} layers are offloaded; one must stay", None
    if not case.has("--fine-grained-activation-offloading"):
        return
    modules = case.arguments.values("--offload-modules")
    if case.arguments.text("--transformer-impl", "transformer_engine") != "transformer_engine":
        yield "fine-grained offloading needs --transformer-impl transformer_engine", None
    if case.environment.get("NVTE_CPU_OFFLOAD_V1") != "1":
        yield "fine-grained offloading needs NVTE_CPU_OFFLOAD_V1=1", None
    if "attn_proj" in modules and "core_attn" not in modules:
        yield "offloading of attn_proj needs that of core_attn", None
    inner = {"expert_fc1", "moe_act"} & set(modules)
    if inner and "moe" in case.recompute_modules:
        yield f"offloading of {' and '.join(sorted(inner))} excludes recomputation of moe", None


def graphs(case: Case) -> Iterator[Broken]:
    if not case.has_cuda_graphs:
        return
    kind = case.arguments.text("--cuda-graph-impl")
    modules = case.arguments.values("--cuda-graph-modules")
    if case.recompute == "full" and kind != "full_iteration":
        yield "CUDA graphs under full recomputation need --cuda-graph-impl full_iteration", None
    if "moe" in modules and not case.has("--moe-pad-expert-input-to-capacity"):
        yield "a CUDA graph of moe needs experts that drop and pad", None
    if case.has("--cpu-offloading-num-layers"):
        yield "CUDA graphs exclude --cpu-offloading-num-layers", None


RULES: dict[int, Rule] = {
    36: recomputation, 37: distributed_activations, 38: offloading, 39: graphs,
}  # fmt: skip
