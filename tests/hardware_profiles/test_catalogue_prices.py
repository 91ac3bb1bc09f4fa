"""The catalogue's parameters in the cost models that read them: complete, and near measurements."""

from __future__ import annotations

import math

import pytest

from shardwright.cost_models.blocks.operations import (
    Attention,
    Collective,
    CollectiveKind,
    Elementwise,
    Matmul,
)
from shardwright.cost_models.communication import CommunicationModel
from shardwright.cost_models.compute import ComputeModel
from shardwright.hardware_profiles.resolve import list_clusters, resolve_cluster
from shardwright.specs import SoftwareSpec

KINDS: tuple[CollectiveKind, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv",
)  # fmt: skip

# m, n, k, batch, measured TFLOP/s: bf16 on H100 SXM, from XLA's matmul interpolation table and,
# the last, from fast.cu.
H100_MATMULS = [
    (256, 256, 1024, 1, 17.85),
    (512, 512, 2048, 1, 115.31),
    (256, 2048, 4096, 1, 288.33),
    (1024, 1024, 1024, 4, 489.85),
    (1024, 2048, 4096, 1, 658.74),
    (4096, 4096, 1024, 1, 681.09),
    (2048, 4096, 4096, 1, 760.44),
    (4096, 2048, 4096, 4, 809.5),
    (8192, 8192, 8192, 1, 795.0),
]

# Cluster, nodes, kind, bus bandwidth in GB/s of messages of 8 GiB and more, as nccl-tests defines
# it. Two nodes are left out: NCCL then has algorithms of its own.
LARGE_COLLECTIVES: list[tuple[str, int, CollectiveKind, float]] = [
    ("dgx-h100", 1, "all_gather", 357.5),
    ("dgx-h100", 1, "all_reduce", 478.0),
    ("dgx-h200", 1, "all_reduce", 482.3),
    ("dgx-b200", 1, "all_reduce", 845.7),
    ("dgx-a100-80gb", 1, "all_reduce", 234.9),
    ("gb200-nvl72", 18, "all_reduce", 839.2),
    ("dgx-h100", 8, "all_reduce", 386.6),
    ("aws-p5.48xlarge", 32, "all_reduce", 321.1),
    ("aws-p5.48xlarge", 32, "all_gather", 262.8),
    ("aws-p5.48xlarge", 8, "all_to_all", 49.6),
    ("aws-p5.48xlarge", 32, "all_to_all", 40.8),
]


def bus_factor(kind: CollectiveKind, num_ranks: int) -> float:
    """Bus bandwidth x time / size, where size is the whole tensor."""
    return (2 if kind == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


@pytest.mark.parametrize("slug", list_clusters())
def test_every_node_type_prices_every_operation(slug: str) -> None:
    profile = resolve_cluster(slug)
    model = ComputeModel(profile, SoftwareSpec())
    for dtype in profile.devices.accelerator.peak_flops_per_s:
        if dtype == "fp4":  # has no whole bytes
            continue
        for operation in (
            Matmul("up", 4096, 4096, 4096, dtype),
            Attention("core", 1, 8, 4096, 4096, 128, causal=True, backward=True, dtype=dtype),
            Elementwise("rms_norm", 2**28, dtype),
        ):
            assert 0 < model.seconds(operation) < 1


@pytest.mark.parametrize("slug", list_clusters())
def test_every_node_type_prices_every_collective(slug: str) -> None:
    one = resolve_cluster(slug)
    joined = one.devices.groups[0].inter_node is not None
    profile = resolve_cluster(slug, nodes=2) if joined else one
    model = CommunicationModel(profile)
    ranks = tuple(range(profile.devices.num_devices))
    for kind in KINDS:
        assert 0 < model.seconds(Collective("c", kind, "dp", 2**24, "bf16"), ranks) < 10


def test_matmuls_on_h100_take_what_was_measured() -> None:
    model = ComputeModel(resolve_cluster("dgx-h100"), SoftwareSpec())
    ratios = []
    for m, n, k, batch, tflops in H100_MATMULS:
        matmul = Matmul("up", m, n, k, "bf16", batch)
        ratios.append(model.seconds(matmul) * tflops * 1e12 / matmul.flops)
    assert all(0.75 < ratio < 1.25 for ratio in ratios), ratios
    assert 0.95 < math.prod(ratios) ** (1 / len(ratios)) < 1.05


@pytest.mark.parametrize(("slug", "nodes", "kind", "bus_gigabytes_per_s"), LARGE_COLLECTIVES)
def test_large_collectives_take_what_was_measured(
    slug: str, nodes: int, kind: CollectiveKind, bus_gigabytes_per_s: float
) -> None:
    profile = resolve_cluster(slug, nodes=nodes)
    ranks = tuple(range(profile.devices.num_devices))
    size = 2**33
    handed_in = size // len(ranks) if kind == "all_gather" else size
    seconds = CommunicationModel(profile).seconds(
        Collective("c", kind, "dp", handed_in, "bf16"), ranks
    )
    predicted = bus_factor(kind, len(ranks)) * size / seconds / 1e9
    assert 0.75 < predicted / bus_gigabytes_per_s < 1.25, predicted
