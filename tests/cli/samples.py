"""A small model, a plan of it and its parts, made by hand so that tests know every number."""

from __future__ import annotations

from typing import Any

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.specs import (
    AcceleratorSpec,
    AttentionBlock,
    Breakdown,
    Candidate,
    Certificate,
    ClusterSpec,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    Layout,
    LinkTier,
    MemoryParts,
    MlpBlock,
    ModelSpec,
    NodeGroup,
    NormBlock,
    Plan,
    PlanProvenance,
    Prediction,
    ResidualBranch,
    SoftwareSpec,
    Tower,
    TrainingSpec,
)

GIB = 2**30


def model(*, max_seq_len: int | None = 4096, layers: int = 4) -> ModelSpec:
    norm = NormBlock(type="rms_norm", hidden_size=8, bias=False, epsilon=1e-5)
    attention = AttentionBlock(
        hidden_size=8, num_heads=2, num_kv_heads=2, head_dim=4, qkv_bias=False,
        output_bias=False, rotary=None,
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=8, ffn_size=16, activation="silu", gated=True, bias=False)
    branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in (attention, mlp))
    blocks = (
        EmbeddingBlock(vocab_size=32, hidden_size=8),
        LayerBlock(branches=branches, repeat=layers),
        norm,
        HeadBlock(vocab_size=32, hidden_size=8, tied=False),
    )
    return ModelSpec(
        name="tiny", family="llama", towers=(Tower(name="decoder", blocks=blocks),),
        max_seq_len=max_seq_len, source="this file",
    )  # fmt: skip


def cluster(num_devices: int = 4) -> ClusterSpec:
    device = AcceleratorSpec(
        name="chip-16gb", vendor="test", memory_bytes=16 * GIB, usable_memory_bytes=15 * GIB,
        memory_bandwidth_bytes_per_s=1e12, peak_flops_per_s={"bf16": 1e14},
        provenance="user", source="this file",
    )  # fmt: skip
    link = LinkTier(
        name="wire", bandwidth_bytes_per_s=1e11, latency_s=1e-6, provenance="user", source="here"
    )
    group = NodeGroup(
        name="box", num_nodes=1, devices_per_node=num_devices, accelerator=device,
        intra_node=link, inter_node=None, scale_up_domain_gpus=num_devices,
    )  # fmt: skip
    return ClusterSpec(name="box", groups=(group,))


def training() -> TrainingSpec:
    return TrainingSpec(global_batch=8, seq_len=16)


def prediction(step_time_s: float = 2.0, **changes: Any) -> Prediction:
    parts = MemoryParts(
        weights=GIB, gradients=GIB, optimizer_state=2 * GIB, activations=GIB,
        gathered_weights=0, transient=0, fixed=GIB,
    )  # fmt: skip
    breakdown = Breakdown(
        compute_forward=0.2 * step_time_s, compute_backward=0.5 * step_time_s,
        bubble=0.2 * step_time_s, tp_comm=0.1 * step_time_s,
    )  # fmt: skip
    values = {
        "step_time_s": step_time_s,
        "step_time_band_s": (0.9 * step_time_s, 1.1 * step_time_s),
        "tokens_per_s": 128 / step_time_s,
        "tokens_per_s_per_gpu": 32 / step_time_s,
        "mfu": 0.4,
        "bubble_fraction": 0.2,
        "peak_memory_bytes": (6 * GIB, 6 * GIB),
        "memory_capacity_bytes": 15 * GIB,
        "memory_verdict": "fits",
        "breakdown": breakdown,
        "memory": (parts, parts),
    }
    return Prediction.model_validate(values | changes)


def layout(**choices: Any) -> Layout:
    return Layout.of(model(), training(), **({"pp": 2, "dp": 2} | choices))


def certificate(**changes: Any) -> Certificate:
    values = {
        "considered": 1000, "excluded_by_rules": 300, "excluded_by_memory": 200,
        "excluded_by_bound": 480, "excluded_by_dominance": 0, "simulated": 20, "optimal": True,
        "gap": 0.0, "space": "tp, pp, dp", "search_s": 0.25,
    }  # fmt: skip
    return Certificate.model_validate(values | changes)


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "model": model(),
        "training": training(),
        "cluster": cluster(),
        "software": SoftwareSpec(),
        "layout": layout(),
        "schedule": schedule_of(layout()),
        "environment": {},
        "prediction": prediction(),
        "certificate": certificate(),
        "alternatives": (
            Candidate(layout=layout(pp=1, tp=2), prediction=prediction(3.0)),
            Candidate(layout=layout(zero=1), prediction=prediction(2.1)),
        ),
        "ties": (Candidate(layout=layout(zero=1), prediction=prediction(2.1)),),
        "assumed": {"precision": "bf16"},
        "provenance": PlanProvenance(
            shardwright_version="0.1.0", created_at="2026-01-01T00:00:00Z", profile_source="box",
            model_hash=model().content_hash(), cluster_hash=cluster().content_hash(),
        ),
    }  # fmt: skip
    return Plan(**(values | changes))
