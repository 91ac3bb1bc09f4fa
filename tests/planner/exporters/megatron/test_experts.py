"""Experts one by one."""

from __future__ import annotations

from typing import Any

from shardwright.planner.exporters.exported import Findings
from shardwright.planner.exporters.megatron.experts import expert_options
from shardwright.planner.exporters.megatron.versions import version_of
from shardwright.specs.bodies import MoeBlock
from tests.planner.exporters.jobs import model_of

LAYERS = list(model_of("mixtral").decoder.layers())


def experts(version: str = "main", **changes: Any) -> tuple[set[tuple[str, ...]], list[str]]:
    given: dict[str, Any] = {
        "hidden_size": 256, "expert_size": 512, "num_experts": 8, "top_k": 2,
        "activation": "silu", "gated": True, **changes,
    }  # fmt: skip
    findings = Findings()
    options = set(expert_options(MoeBlock(**given), LAYERS, version_of(version), findings))
    return options, [one.problem for one in findings.refused]


def test_plain_experts() -> None:
    options, refused = experts()
    assert {
        ("--num-experts", "8"),
        ("--moe-ffn-hidden-size", "512"),
        ("--moe-grouped-gemm",),
    } <= options
    assert ("--moe-token-dispatcher-type", "alltoall") in options
    assert not any(option[0] == "--moe-layer-freq" for option in options), "all layers have them"
    assert not refused


def test_extras() -> None:
    options, refused = experts(
        shared_size=1024, shared_gate=True, capacity_factor=1.25, latent_size=128
    )
    assert ("--moe-shared-expert-intermediate-size", "1024") in options
    assert ("--moe-shared-expert-gate",) in options
    assert ("--moe-expert-capacity-factor", "1.25") in options
    assert ("--moe-latent-size", "128") in options
    assert not refused


def test_one_expert_by_softmax_keeps_its_weight() -> None:
    assert ("--moe-router-pre-softmax",) in experts(top_k=1)[0]


def test_refusals() -> None:
    assert experts(bias=True)[1]
    assert experts(router_bias=True)[1]
    assert experts(correction_bias=True)[1], "softmax scores"
    assert experts("core_r0.9.0", router="sigmoid")[1]
    assert experts("core_v0.15.0", latent_size=128)[1]
