from __future__ import annotations

from typing import Any

import pytest

from shardwright.hardware_profiles import catalogue
from shardwright.planner.validation.clusters import node_bandwidth_bytes_per_s, profile_of
from shardwright.planner.validation.shapes import Assumptions
from shardwright.specs import InputError, NodeGroup
from tests.planner.validation import rows


def group_of(network: str | None = None, **changes: Any) -> NodeGroup:
    row = rows.row(hardware=changes | {"inter_node": network})
    (group,) = profile_of(row, Assumptions()).devices.groups
    return group


def notes_of(**changes: Any) -> list[str]:
    assumed = Assumptions()
    profile_of(rows.row(hardware=changes), assumed)
    return assumed.notes


class TestBandwidth:
    @pytest.mark.parametrize(
        ("network", "gbit_per_s"),
        [
            ("8x HDR 200Gb/s InfiniBand per node (application) (Selene)", 1600),
            ("1600 Gb/s RoCE per node", 1600),
            ("4x HDR 200Gb/s per node (800 Gb/s in its simulator config)", 800),
            ("400Gb/s RDMA per GPU", 3200),
            ("InfiniBand 8x50GB/s per node", 3200),
            ("400Gbps per node", 400),
            ("8x 400Gb/s EFA v4 per node", 3200),
            ("EFA 3200 Gbps", 3200),
            ("EFA 16x200Gb/s (instance default; not stated)", 3200),
            ("4x Omni-Path 100Gb/s per node (from memory; Jean Zay)", 400),
            ("InfiniBand NDR 400Gb/s per GPU (DGX H100 default; not stated)", 3200),
            ("InfiniBand NDR 400Gb/s", 3200),
            ("Omni-Path 100Gb/s links (Jean Zay; from memory)", 800),
            ("3.2 Tbps RoCE", 3200),
        ],
    )
    def test_of_a_node_of_eight(self, network: str, gbit_per_s: float) -> None:
        assert node_bandwidth_bytes_per_s(network, 8) == pytest.approx(gbit_per_s * 1e9 / 8)

    @pytest.mark.parametrize("network", ["", "RoCE RDMA", "InfiniBand NDR", "0 Gb/s"])
    def test_that_is_not_stated(self, network: str) -> None:
        assert node_bandwidth_bytes_per_s(network, 8) is None


class TestNodes:
    def test_a_part_of_a_node(self) -> None:
        group = group_of(gpus=4)
        assert (group.num_nodes, group.devices_per_node) == (1, 4)

    def test_whole_nodes_share_the_stated_network(self) -> None:
        group = group_of("8x HDR 200Gb/s per node", gpus=32)
        assert (group.num_nodes, group.devices_per_node) == (4, 8)
        assert group.inter_node is not None
        assert group.inter_node.bandwidth_bytes_per_s == pytest.approx(25e9)

    def test_devices_that_fill_no_whole_nodes_are_spread_evenly(self) -> None:
        group = group_of(gpus=12)
        assert (group.num_nodes, group.devices_per_node) == (2, 6)

    def test_the_vendors_node_fills_in_what_is_not_stated(self) -> None:
        group = group_of(gpus=32, gpus_per_node=None, accelerator="H100-SXM5-80GB")
        assert group.devices_per_node == 8
        assert group.inter_node is not None
        assert group.inter_node.bandwidth_bytes_per_s == pytest.approx(50e9)
        noted = notes_of(gpus=32, gpus_per_node=None, accelerator="H100-SXM5-80GB")
        assert noted[0] == "gpus_per_node = 8"
        assert noted[1].startswith("network = ")

    @pytest.mark.parametrize("accelerator", ["GB200", "GB300"])
    def test_racks_are_one_domain(self, accelerator: str) -> None:
        group = group_of(accelerator=accelerator, gpu_mem_gb=None, gpus=256, gpus_per_node=4)
        assert (group.num_nodes, group.devices_per_node) == (64, 4)
        assert group.scale_up_domain_gpus == 72

    def test_a_rack_takes_the_stated_network(self) -> None:
        group = group_of(
            "800Gb/s per GPU", accelerator="GB300", gpu_mem_gb=None, gpus=8, gpus_per_node=4
        )
        assert group.inter_node is not None
        assert group.inter_node.bandwidth_bytes_per_s == pytest.approx(100e9)

    @pytest.mark.parametrize("slug", catalogue.list_accelerators())
    def test_every_accelerator_makes_a_cluster_of_several_nodes(self, slug: str) -> None:
        group = group_of(accelerator=slug, gpu_mem_gb=None, gpus=16, gpus_per_node=4)
        assert group.num_devices == 16
        assert group.accelerator.name == slug


class TestAccelerator:
    def test_the_sources_own_name_will_do(self) -> None:
        group = group_of(accelerator=None, gpu="A100-SXM4-40GB (Grand Teton)", gpu_mem_gb=None)
        assert group.accelerator.name == "a100-sxm4-40gb"

    def test_a_part_that_no_vendor_lists(self) -> None:
        gpu = "H100 96GB HBM2e, 2.4TB/s, 500W limit (Grand Teton)"
        device = group_of(accelerator=None, gpu=gpu, gpu_mem_gb=96).accelerator
        assert device.name == "h100-sxm5-80gb"
        assert device.memory_bytes == 95 * 2**30
        assert device.memory_bandwidth_bytes_per_s == 2.4e12

    @pytest.mark.parametrize("stated", [80, 79.6, None])
    def test_its_own_memory_changes_nothing(self, stated: float | None) -> None:
        assert group_of(gpu_mem_gb=stated).accelerator == catalogue.accelerator("a100-sxm4-80gb")

    def test_another_memory_counts(self) -> None:
        own = catalogue.accelerator("a100-sxm4-80gb")
        device = group_of(gpu_mem_gb=40).accelerator
        assert device.memory_bytes == pytest.approx(own.memory_bytes / 2, rel=0.1)
        assert (
            device.memory_bytes - device.usable_memory_bytes
            == own.memory_bytes - own.usable_memory_bytes
        )

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"accelerator": "Q9000", "gpu": "Q9000"}, "Q9000 is no accelerator"),
            ({"accelerator": None, "gpu": None}, "accelerator is not stated"),
            ({"gpu_mem_gb": 0.1}, "less than a context"),
        ],
    )
    def test_what_is_not_known_is_refused(self, changes: dict[str, Any], told: str) -> None:
        with pytest.raises(InputError, match=told):
            group_of(**changes)

    def test_without_a_number_of_devices_there_is_no_cluster(self) -> None:
        row = rows.row(hardware={"gpus": None}, parallel={"tp": None})
        with pytest.raises(InputError, match="number of GPUs"):
            profile_of(row, Assumptions())


def test_rows_of_one_cluster_share_its_profile() -> None:
    first, second = (profile_of(rows.row(id=i), Assumptions()) for i in ("a", "b"))
    assert first is second
