"""Readings of one node put together."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.topology.readings import AdapterPort, TopologyReading, merged
from tests.hardware_profiles.topology import samples


def test_merged_takes_each_part_from_the_first_that_has_it() -> None:
    parts = [samples.reading(n) for n in ("csv_bare", "markdown_pair", "csv_titles_units", "lscpu")]
    node = merged(parts)
    assert node.kinds[0] == "nvidia-smi --query-gpu"
    assert node.matrix is parts[1].matrix
    assert node.devices is parts[0].devices
    assert node.host is parts[3].host
    assert node.ports == ()
    assert merged([]) == TopologyReading()
    assert merged([]).kind == "nothing"


@pytest.mark.parametrize(
    ("state", "is_up"),
    [("Active", True), ("ACTIVE", True), ("PORT_ACTIVE", True), ("Up", True), (None, True),
     ("Down", False), ("Initializing", False)],
)  # fmt: skip
def test_which_ports_carry_traffic(state: str | None, is_up: bool) -> None:
    assert AdapterPort("mlx5_0", state).is_up is is_up


def test_numa_groups_keep_their_order() -> None:
    matrix = samples.reading("mesh_4_a100_rails").matrix
    assert matrix is not None
    assert matrix.numa_groups == {"3": ("GPU0",), "2": ("GPU1",), "1": ("GPU2",), "0": ("GPU3",)}
