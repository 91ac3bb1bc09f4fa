"""Node groups as clusters of their own, and all of them as one of the slowest."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.groups import (
    as_one_group,
    as_slowest,
    group_names,
    group_parameter,
    group_profile,
    network_bytes_per_s,
    slowest_device,
)
from shardwright.hardware_profiles.profile import Parameter
from shardwright.hardware_profiles.resolve import resolve_cluster

MIXED = resolve_cluster("dgx-a100-80gb:2+dgx-1v-32gb:1,between=10Gbit/s")


def test_a_group_alone_is_its_catalogue_entry() -> None:
    for index, text in enumerate(("dgx-a100-80gb:2", "dgx-1v-32gb:1")):
        found, own = group_profile(MIXED, index), resolve_cluster(text)
        assert found.devices.groups == own.devices.groups
        assert found.parameters == own.parameters


def test_parameters_that_are_named_for_a_group_are_its_own() -> None:
    name = "clock.sustained_ratio"
    stated = Parameter(
        name=group_parameter(1, name), value=0.5, unit="1", kind="derived", fitted_from="a test"
    )
    profile = MIXED.model_copy(update={"parameters": (stated,)})
    values = [
        {one.name: one.value for one in group_profile(profile, index).parameters}
        for index in range(2)
    ]
    assert values[1][name] == 0.5
    assert values[0].get(name) != 0.5
    assert group_parameter(1, name) not in values[1]


def test_groups_of_one_kind_are_numbered() -> None:
    assert group_names(MIXED.devices) == ("dgx-a100-80gb", "dgx-1v-32gb")
    twins = resolve_cluster("dgx-h100:1+dgx-h100:1,between=10Gbit/s").devices
    assert group_names(twins) == ("dgx-h100 (1)", "dgx-h100 (2)")


def test_the_slowest_device_has_no_more_of_anything() -> None:
    slowest = slowest_device(MIXED.devices)
    assert slowest.name == "v100-sxm2-32gb"
    for group in MIXED.devices.groups:
        assert slowest.usable_memory_bytes <= group.accelerator.usable_memory_bytes
        assert slowest.memory_bandwidth_bytes_per_s <= (
            group.accelerator.memory_bandwidth_bytes_per_s
        )


def test_as_slowest_keeps_the_links() -> None:
    found = as_slowest(MIXED).devices
    assert {group.accelerator.name for group in found.groups} == {"v100-sxm2-32gb"}
    for own, group in zip(found.groups, MIXED.devices.groups, strict=True):
        assert own.intra_node == group.intra_node
    assert found.between_groups == MIXED.devices.between_groups


def test_as_one_group_has_all_devices_on_the_slowest_links() -> None:
    (group,) = as_one_group(MIXED).devices.groups
    assert group.num_devices == MIXED.devices.num_devices == 24
    assert group.inter_node is not None
    assert group.inter_node.bandwidth_bytes_per_s == pytest.approx(10e9 / 8 / 8)
    slowest = min(one.intra_node.bandwidth_bytes_per_s for one in MIXED.devices.groups)
    assert group.intra_node.bandwidth_bytes_per_s == slowest


def test_few_devices_of_a_node_do_not_reach_all_of_its_network() -> None:
    group = MIXED.devices.groups[0]
    one, eight = network_bytes_per_s(group, 1), network_bytes_per_s(group, 8)
    assert group.inter_node is not None
    assert one == group.inter_node.bandwidth_bytes_per_s
    assert eight == group.node_network_bytes_per_s
    alone = group.model_copy(update={"inter_node": None})
    assert network_bytes_per_s(alone, 8) is None
