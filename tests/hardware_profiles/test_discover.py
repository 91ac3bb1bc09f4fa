"""What the system reports, read from made-up system files, and once from this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardwright.hardware_profiles import catalogue, discover
from shardwright.hardware_profiles.discover import (
    Host,
    cpu_cluster,
    host_memory_bytes,
    local_cluster,
    read_host,
    slug_of,
    usable_cores,
)
from tests.hardware_profiles.topology import samples

GIB = 2**30
CPU_INFO = """processor\t: 0
model name\t: AMD EPYC 7763 64-Core Processor
cpu MHz\t\t: 2450.000

processor\t: 1
model name\t: AMD EPYC 7763 64-Core Processor
"""
MEMORY_INFO = "MemTotal:       67108864 kB\nMemFree:  100 kB\nMemAvailable:   33554432 kB\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 64 cores allowed to this process and 64 GiB, 32 of them available."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    write(tmp_path / "proc/cpuinfo", CPU_INFO)
    write(tmp_path / "proc/meminfo", MEMORY_INFO)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_limits_the_machine_counts(root: Path) -> None:
    assert read_host(root) == Host(
        cpu_model="AMD EPYC 7763 64-Core Processor",
        cores=64,
        clock_hertz=2.45e9,
        memory_bytes=64 * GIB,
        available_memory_bytes=32 * GIB,
    )


def test_affinity_limits_the_cores(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5}, raising=False)
    assert usable_cores(root) == 2


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)
def test_quotas_limit_the_cores(root: Path, files: dict[str, str], cores: float) -> None:
    for name, text in files.items():
        write(root / "sys/fs/cgroup" / name, text)
    assert usable_cores(root) == cores


def test_groups_around_the_own_one_limit_too(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/outer/inner\n")
    write(root / "sys/fs/cgroup/outer/cpu.max", "200000 100000\n")
    write(root / "sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n")
    assert usable_cores(root) == 2


@pytest.mark.parametrize(
    ("files", "sizes"),
    [
        ({}, (64 * GIB, 32 * GIB)),
        ({"memory.max": "max", "memory.current": "1"}, (64 * GIB, 32 * GIB)),
        (
            {
                "memory.max": str(8 * GIB),
                "memory.current": str(3 * GIB),
                "memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            (8 * GIB, 6 * GIB),
        ),
        (
            {
                "memory/memory.limit_in_bytes": str(8 * GIB),
                "memory/memory.usage_in_bytes": str(9 * GIB),
            },
            (8 * GIB, 0),
        ),
    ],
)
def test_memory_limits(root: Path, files: dict[str, str], sizes: tuple[int, int]) -> None:
    for name, text in files.items():
        write(root / "sys/fs/cgroup" / name, text)
    assert host_memory_bytes(root) == sizes


def test_a_system_without_such_files_still_has_cores_and_memory(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    assert host.cores >= 1
    assert host.memory_bytes > 2**20


def test_ranks_share_the_cores_and_split_the_memory(root: Path) -> None:
    cluster = cpu_cluster(read_host(root), 4)
    (group,) = cluster.groups
    assert cluster.name == "cpu-amd-epyc-7763-64-core-64c"
    assert (group.devices_per_node, group.inter_node) == (4, None)
    assert group.accelerator.usable_memory_bytes == 8 * GIB
    assert group.host_memory_bytes == 64 * GIB
    (cores,) = group.shared_resources
    assert (cores.kind, cores.capacity, cores.ranks) == ("cores", 64, 4)
    assert group.accelerator.peak_flops_per_s["fp32"] == 8 * 2.45e9 * 64 / 4


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("???", "unknown"),
    ],
)
def test_slugs(text: str, slug: str) -> None:
    assert slug_of(text) == slug


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "current_device_type", lambda: "cpu")
    cluster = local_cluster(3)
    assert cluster.num_devices == 3
    assert cluster.accelerator.usable_memory_bytes > 2**20
    assert local_cluster().num_devices == 2


def test_without_torch_the_machine_is_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(discover, "current_device_type", missing)
    assert local_cluster(2).accelerator.vendor == "cpu"


def test_a_machine_without_accelerators_is_described_as_its_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discover, "current_device_type", lambda: "cpu")
    monkeypatch.setattr(discover, "read_this_node", lambda: ())
    described = discover.describe_this_node()
    assert described.cluster.accelerator.vendor == "cpu"
    assert described.guesses


def test_tools_describe_the_links_of_a_machine_with_accelerators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = catalogue.accelerator_entry("a100-sxm4-40gb")
    monkeypatch.setattr(discover, "device_count", lambda kind: 4)
    monkeypatch.setattr(discover, "current_device_type", lambda: "cuda")
    monkeypatch.setattr(discover, "_describe_accelerator", lambda kind: (entry, entry.to_spec()))
    matrix = samples.reading("mesh_4_a100_rails").matrix
    monkeypatch.setattr(discover, "read_links", lambda: matrix)
    (group,) = local_cluster().groups
    assert group.intra_node.pair_bandwidth_bytes_per_s == 100e9
    assert group.scale_up_domain_gpus == 4
    (part,) = local_cluster(2).groups
    assert part.intra_node.bandwidth_bytes_per_s == 100e9
