"""Small specs that the tests of this folder share."""

from __future__ import annotations

from shardwright.specs import (
    AcceleratorSpec,
    Breakdown,
    Certificate,
    ClusterSpec,
    Layout,
    LinkTier,
    MemoryParts,
    ModelSpec,
    NodeGroup,
    Plan,
    PlanProvenance,
    Prediction,
    Schedule,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.sources import model_from_config

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def model() -> ModelSpec:
    return model_from_config(CONFIG, name="small", source="a test").spec


def training() -> TrainingSpec:
    return TrainingSpec(global_batch=8, seq_len=32)


def tier(name: str, bandwidth_bytes_per_s: float) -> LinkTier:
    return LinkTier(
        name=name,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=1e-6,
        provenance="user",
        source="a test",
    )


def group(num_nodes: int = 2, devices: int = 4, domain: int | None = None) -> NodeGroup:
    device = AcceleratorSpec(
        name="toy-1gb",
        vendor="none",
        memory_bytes=10**9,
        usable_memory_bytes=9 * 10**8,
        memory_bandwidth_bytes_per_s=1e11,
        peak_flops_per_s={"bf16": 1e12, "fp32": 5e11},
        provenance="user",
        source="a test",
    )
    return NodeGroup(
        name="toy",
        num_nodes=num_nodes,
        devices_per_node=devices,
        accelerator=device,
        intra_node=tier("nvlink", 1e11),
        inter_node=tier("infiniband", 1e10),
        scale_up_domain_gpus=domain or devices,
    )


def cluster() -> ClusterSpec:
    return ClusterSpec(name="toy:2", groups=(group(),))


def plan() -> Plan:
    """A plan with every part, two pipeline ranks of one micro-batch each."""
    layout = Layout.of(model(), training(), tp=2, pp=2, dp=2, micro_batch=4)
    schedule = Schedule.model_validate({
        "name": "1f1b",
        "num_stages": 2,
        "num_micro_batches": 1,
        "ranks": ["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"],
    })  # fmt: skip
    parts = MemoryParts(
        weights=1, gradients=2, optimizer_state=3, activations=4, gathered_weights=5,
        transient=6, fixed=7,
    )  # fmt: skip
    prediction = Prediction(
        step_time_s=0.1,
        step_time_band_s=(0.09, 0.12),
        tokens_per_s=2560.0,
        tokens_per_s_per_gpu=320.0,
        mfu=None,
        bubble_fraction=1 / 3,
        peak_memory_bytes=(28, 28),
        memory_capacity_bytes=9 * 10**8,
        memory_verdict="fits",
        breakdown=Breakdown(compute_forward=0.1),
        memory=(parts, parts),
    )
    certificate = Certificate(
        considered=3, excluded_by_rules=1, excluded_by_memory=0, excluded_by_bound=1,
        excluded_by_dominance=0, simulated=1, optimal=True, gap=0.0, space="tp, dp", search_s=0.5,
    )  # fmt: skip
    return Plan(
        model=model(),
        training=training(),
        cluster=cluster(),
        software=SoftwareSpec(),
        layout=layout,
        schedule=schedule,
        environment={"OMP_NUM_THREADS": "1"},
        prediction=prediction,
        certificate=certificate,
        assumed={"precision": "bf16"},
        provenance=PlanProvenance(
            shardwright_version="0.1.0",
            created_at="2026-11-30T00:00:00Z",
            model_hash=model().content_hash(),
            cluster_hash=cluster().content_hash(),
            profile_source="toy",
        ),
    )
