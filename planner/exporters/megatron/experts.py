"""Mixtures of experts as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.exported import Findings
from shardwright.planner.exporters.megatron.arguments import Option
from shardwright.planner.exporters.megatron.versions import MegatronVersion
from shardwright.specs.blocks import LayerBlock
from shardwright.specs.bodies import BranchBody, MoeBlock


def expert_options(
    body: BranchBody, layers: list[LayerBlock], version: MegatronVersion, findings: Findings
) -> Iterator[Option]:
    """Experts, router and which layers have them."""
    assert isinstance(body, MoeBlock)
    for word in _unusual(body, version):
        findings.refuse("experts", word)
    yield ("--num-experts", str(body.num_experts))
    yield ("--moe-ffn-hidden-size", str(body.expert_size))
    yield ("--moe-router-topk", str(body.top_k))
    yield from _router(body)
    if body.shared_size is not None:
        yield ("--moe-shared-expert-intermediate-size", str(body.shared_size))
    if body.shared_gate:
        yield ("--moe-shared-expert-gate",)
    if body.latent_size is not None:
        yield ("--moe-latent-size", str(body.latent_size))
    if body.capacity_factor is not None:
        yield ("--moe-expert-capacity-factor", f"{body.capacity_factor:g}")
    yield from _layer_pattern(layers)
    yield ("--moe-token-dispatcher-type", "alltoall")
    yield ("--moe-grouped-gemm",)
    findings.note(
        "router: coefficients of auxiliary losses and scaling of its weights are Megatron-LM's"
        " defaults; a plan does not state them"
    )


def _unusual(body: MoeBlock, version: MegatronVersion) -> Iterator[str]:
    if body.bias or body.router_bias:
        yield "experts or their router have a bias, which pretrain_gpt.py has no option for"
    if not version.has_sigmoid_router and (body.router == "sigmoid" or body.correction_bias):
        yield f"{version.rules.version} has no sigmoid router and no balancing bias"
    if body.correction_bias and body.router != "sigmoid":
        yield "a balancing bias needs a sigmoid router"
    if body.latent_size is not None and not version.has_latent_experts:
        yield f"{version.rules.version} has no latent experts"
    if body.shared_gate and not version.has_sigmoid_router:
        yield f"{version.rules.version} has no gate on shared experts"


def _router(body: MoeBlock) -> Iterator[Option]:
    if body.router == "sigmoid":
        yield ("--moe-router-score-function", "sigmoid")
    elif body.top_k == 1:
        yield ("--moe-router-pre-softmax",)  # else the one weight is always 1
    if body.correction_bias:
        yield ("--moe-router-enable-expert-bias",)
    if body.num_groups > 1:
        yield ("--moe-router-num-groups", str(body.num_groups))
        yield ("--moe-router-group-topk", str(body.top_groups))


def _layer_pattern(layers: list[LayerBlock]) -> Iterator[Option]:
    """A list of 1 for layers with experts and 0 for others, in runs; nothing where all have."""
    has = [any(isinstance(b.body, MoeBlock) for b in layer.branches) for layer in layers]
    if all(has):
        return
    runs: list[list[int]] = []
    for one in map(int, has):
        if runs and runs[-1][0] == one:
            runs[-1][1] += 1
        else:
            runs.append([one, 1])
    yield ("--moe-layer-freq", "(" + "+".join(f"[{one}]*{count}" for one, count in runs) + ")")
