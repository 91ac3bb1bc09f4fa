"""Cluster files: what is written reads back as the same cluster, with its origins beside."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.resolve import list_clusters, resolve_cluster
from shardwright.hardware_profiles.topology.cluster import (
    DescribedCluster,
    Stated,
    cluster_from_readings,
)
from shardwright.hardware_profiles.topology.cluster_file import cluster_toml
from shardwright.specs import ClusterSpec
from tests.hardware_profiles.topology import samples
from tests.specs.small import group, tier


@pytest.mark.parametrize("slug", list_clusters()[::7])
def test_every_cluster_survives_the_file(slug: str) -> None:
    cluster = ClusterSpec(name=slug, groups=(catalogue.node(slug),))
    value = tomllib.loads(cluster_toml(DescribedCluster(cluster)))
    assert ClusterSpec.from_value(value) == cluster


def test_groups_and_odd_names_survive_the_file() -> None:
    cluster = ClusterSpec(
        name='odd "name" \\ \t\x7f é',
        groups=(group(2, 4), group(1, 2)),
        between_groups=tier("ethernet", 1.5e9),
    )
    text = cluster_toml(DescribedCluster(cluster, guesses=("one\ntwo",)))
    assert ClusterSpec.from_value(tomllib.loads(text)) == cluster
    assert "# A guess: one two" in text


def test_the_file_says_where_numbers_come_from(tmp_path: Path) -> None:
    described = cluster_from_readings(
        [samples.reading("mesh_4_a100_rails")], Stated(accelerator="a100-sxm4-40gb")
    )
    text = cluster_toml(described)
    assert "devices_per_node = 4  # reported: matrix:nvidia-smi lists 4" in text
    assert "bandwidth_bytes_per_s = 300000000000.0  # 300 GB/s" in text
    assert "# 12 links per device, 4 to one peer, 25 GB/s per link" in text
    file = tmp_path / "my.toml"
    file.write_text(text)
    profile = resolve_cluster(str(file))
    assert profile.devices.groups == described.cluster.groups
    assert profile.provenance.host == str(file)
