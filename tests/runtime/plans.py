"""Small plans for the runtime's tests: real specs, a placeholder prediction."""

from __future__ import annotations

from typing import Any

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.specs import (
    AcceleratorSpec,
    AttentionBlock,
    Breakdown,
    Certificate,
    ClusterSpec,
    Edge,
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
    OptimizerSpec,
    Plan,
    PlanProvenance,
    Precision,
    Prediction,
    ResidualBranch,
    RotaryPositions,
    SoftwareSpec,
    Tower,
    TrainingSpec,
)


def small_model(*, tied: bool = False, num_layers: int = 4, vocab_size: int = 307) -> ModelSpec:
    """A Llama of a few ten thousand parameters, whose vocabulary no tp > 1 divides."""
    hidden, heads, kv_heads, head_dim, ffn = 32, 4, 2, 8, 48
    norm = NormBlock(type="rms_norm", hidden_size=hidden, bias=False, epsilon=1e-5)
    attention = AttentionBlock(
        hidden_size=hidden, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
        qkv_bias=False, output_bias=False, rotary=RotaryPositions(base=10_000.0),
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=hidden, ffn_size=ffn, activation="silu", gated=True, bias=False)
    branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in (attention, mlp))
    tie = Edge(
        kind="tied_weight", producer="decoder/embedding", consumer="decoder/head",
        shape=(vocab_size, hidden),
    )  # fmt: skip
    return ModelSpec(
        name="small",
        family="llama",
        towers=(
            Tower(
                name="decoder",
                blocks=(
                    EmbeddingBlock(vocab_size=vocab_size, hidden_size=hidden),
                    LayerBlock(branches=branches, repeat=num_layers),
                    norm,
                    HeadBlock(vocab_size=vocab_size, hidden_size=hidden, tied=tied),
                ),
            ),
        ),
        edges=(tie,) if tied else (),
        max_seq_len=256,
        source="tests",
    )


def cluster_of(num_ranks: int, accelerator: AcceleratorSpec | None = None) -> ClusterSpec:
    """One machine; by default with an accelerator that no machine has."""
    accelerator = accelerator or AcceleratorSpec(
        name="test-device", vendor="tests", memory_bytes=2**33, usable_memory_bytes=2**32,
        memory_bandwidth_bytes_per_s=1e10, peak_flops_per_s={"fp32": 1e11, "bf16": 2e11},
        provenance="user", source="tests",
    )  # fmt: skip
    link = LinkTier(
        name="shared-memory", bandwidth_bytes_per_s=1e9, latency_s=1e-5,
        provenance="user", source="tests",
    )  # fmt: skip
    group = NodeGroup(
        name="test-node", num_nodes=1, devices_per_node=num_ranks, accelerator=accelerator,
        intra_node=link, inter_node=None, scale_up_domain_gpus=num_ranks,
    )  # fmt: skip
    return ClusterSpec(name="test", groups=(group,))


def training_of(**choices: Any) -> TrainingSpec:
    """Eight sequences of 16 tokens a step in fp32."""
    return TrainingSpec(
        **{
            "global_batch": 8,
            "seq_len": 16,
            "precision": Precision.FP32,
            "optimizer": OptimizerSpec(learning_rate=1e-2, warmup_steps=2),
            **choices,
        }
    )


def plan_of(
    model: ModelSpec | None = None,
    training: TrainingSpec | None = None,
    *,
    cluster: ClusterSpec | None = None,
    **choices: Any,
) -> Plan:
    """A plan of the given layout choices, priced with round numbers."""
    model = model or small_model()
    training = training or training_of()
    layout = Layout.of(model, training, **choices)
    cluster = cluster or cluster_of(layout.world)
    memory = MemoryParts(
        weights=0, gradients=0, optimizer_state=0, activations=0, gathered_weights=0,
        transient=0, fixed=2**20,
    )  # fmt: skip
    prediction = Prediction(
        step_time_s=1.0, step_time_band_s=(0.5, 2.0), tokens_per_s=128.0,
        tokens_per_s_per_gpu=128.0 / layout.world, mfu=None, bubble_fraction=0.0,
        peak_memory_bytes=(2**20,) * layout.pp, memory_capacity_bytes=2**32,
        memory_verdict="fits", breakdown=Breakdown(compute_forward=1.0),
        memory=(memory,) * layout.pp,
    )  # fmt: skip
    certificate = Certificate(
        considered=1, excluded_by_rules=0, excluded_by_memory=0, excluded_by_bound=0,
        excluded_by_dominance=0, simulated=1, optimal=True, gap=0.0, space="one", search_s=0.0,
    )  # fmt: skip
    return Plan(
        model=model,
        training=training,
        cluster=cluster,
        software=SoftwareSpec(),
        layout=layout,
        schedule=None if layout.schedule is None else schedule_of(layout),
        environment={},
        prediction=prediction,
        certificate=certificate,
        provenance=PlanProvenance(
            shardwright_version="0",
            created_at="2026-01-01T00:00:00Z",
            model_hash=model.content_hash(),
            cluster_hash=cluster.content_hash(),
            profile_source="tests",
        ),
    )
