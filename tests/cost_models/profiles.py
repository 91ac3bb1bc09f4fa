"""Small profiles with round numbers for tests of pricing."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.hardware_profiles.profile import (
    Curve,
    HardwareProfile,
    Parameter,
    ProfileProvenance,
)
from shardwright.specs import AcceleratorSpec, ClusterSpec, LinkTier, NodeGroup, SharedResource

PARAMETERS = {
    "matmul_efficiency.bf16": 0.5,
    "attention_efficiency.forward": 0.5,
    "attention_efficiency.backward": 0.25,
    "matmul_tile_m": 128,
    "matmul_tile_n": 64,
    "num_sm": 100,
    "memory_bandwidth_efficiency": 0.8,
    "launch_overhead_s": 5e-6,
    "collective_efficiency.intra_node": 0.5,
    "collective_efficiency.inter_node": 0.8,
    "collective_latency.base_s": 10e-6,
    "collective_latency.intra_node_s": 1e-6,
    "collective_latency.inter_node_s": 5e-6,
}


def cluster(
    *,
    num_nodes: int = 1,
    ranks_per_node: int = 8,
    pair_bytes_per_s: float | None = None,
    shared: tuple[SharedResource, ...] = (),
) -> ClusterSpec:
    """Devices of 1 PFLOP/s bf16 and 1 TB/s; links of 100 GB/s inside and 10 GB/s between nodes."""
    device = AcceleratorSpec(
        name="device", vendor="test", memory_bytes=2**36, usable_memory_bytes=2**36,
        memory_bandwidth_bytes_per_s=1e12, peak_flops_per_s={"bf16": 1e15},
        provenance="user", source="test",
    )  # fmt: skip
    intra = LinkTier(
        name="inside", bandwidth_bytes_per_s=100e9, pair_bandwidth_bytes_per_s=pair_bytes_per_s,
        latency_s=1e-6, provenance="user", source="test",
    )  # fmt: skip
    inter = LinkTier(
        name="between", bandwidth_bytes_per_s=10e9, latency_s=5e-6, provenance="user",
        source="test",
    )  # fmt: skip
    group = NodeGroup(
        name="node", num_nodes=num_nodes, devices_per_node=ranks_per_node, accelerator=device,
        intra_node=intra, inter_node=inter if num_nodes > 1 else None,
        scale_up_domain_gpus=ranks_per_node, shared_resources=shared,
    )  # fmt: skip
    return ClusterSpec(name="test", groups=(group,))


def profile(
    devices: ClusterSpec | None = None,
    curves: Iterable[Curve] = (),
    parameters: dict[str, float] | None = None,
) -> HardwareProfile:
    named = PARAMETERS if parameters is None else parameters
    return HardwareProfile(
        provenance=ProfileProvenance(created_at="2026-01-01", host="test", software={}),
        devices=devices or cluster(),
        curves=tuple(curves),
        parameters=tuple(
            Parameter(name=name, value=value, unit="1", kind="user", fitted_from="test")
            for name, value in named.items()
        ),
    )
