"""Tiers from matrices: switches, meshes, islands, bridges, PCIe."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.topology.links import NodeLinks, node_links
from shardwright.hardware_profiles.topology.matrix import read_matrix
from tests.hardware_profiles.topology import samples


def links(name: str, slug: str, rates: tuple[float, ...] = ()) -> NodeLinks:
    matrix = samples.reading(name).matrix
    assert matrix is not None
    return node_links(matrix, catalogue.accelerator_entry(slug), len(matrix.names), rates)


@pytest.mark.parametrize(
    ("name", "slug", "tier", "gb_per_s", "pair_gb_per_s", "domain"),
    [
        ("nvswitch_8_nics_tabs", "h100-sxm5-80gb", "nvlink", 450, None, 8),
        ("cube_mesh_8_v100", "v100-sxm2-32gb", "nvlink", 150, 25, 8),
        ("mesh_4_a100_rails", "a100-sxm4-40gb", "nvlink", 300, 100, 4),
        ("mthreads_8_pairs", "mtt-s5000-80gb", "mtlink", 392, 56, 8),
        ("rocm_4_with_numa", "mi300x-192gb", "xgmi", 448, 64, 2),
        ("markdown_pair", "rtx-a6000-48gb", "nvlink", 56.25, None, 2),
        ("pcie_10_two_sockets", "l40s-48gb", "pcie", 15.5, None, 10),
        ("peer_access_before", "l40s-48gb", "pcie", 31, None, 2),
        ("peer_access_before", "rtx-4090-24gb", "pcie", 15.5, None, 2),
        ("one_device", "h100-sxm5-80gb", "nvlink", 450, None, 1),
    ],
)
def test_tiers(
    name: str, slug: str, tier: str, gb_per_s: float, pair_gb_per_s: float | None, domain: int
) -> None:
    found = links(name, slug)
    pair = found.intra.pair_bandwidth_bytes_per_s
    assert found.intra.name == tier
    assert found.intra.bandwidth_bytes_per_s == pytest.approx(gb_per_s * 1e9)
    assert (pair and pair / 1e9) == (pair_gb_per_s and pytest.approx(pair_gb_per_s))
    assert found.domain_devices == domain
    assert found.between_islands is None


def test_islands_are_domains_with_the_host_between() -> None:
    rows = [[" X ", "NV4", "SYS", "SYS"], ["NV4", " X ", "SYS", "SYS"],
            ["SYS", "SYS", " X ", "NV4"], ["SYS", "SYS", "NV4", " X "]]  # fmt: skip
    matrix = read_matrix(samples.matrix_text(rows))
    found = node_links(matrix, catalogue.accelerator_entry("rtx-3090"), 4)
    assert (found.domain_devices, found.intra.bandwidth_bytes_per_s) == (2, 56.25e9)
    assert found.between_islands is not None
    assert found.between_islands.bandwidth_bytes_per_s == 15.5e9


def test_uneven_islands_are_priced_as_the_host() -> None:
    rows = [[" X ", "NV12", "SYS"], ["NV12", " X ", "SYS"], ["SYS", "SYS", " X "]]
    matrix = read_matrix(samples.matrix_text(rows))
    found = node_links(matrix, catalogue.accelerator_entry("a100-pcie-80gb"), 3)
    assert (found.domain_devices, found.intra.name) == (3, "pcie")
    assert "0-1, 2" in found.doubts[0]


def test_reported_rates_and_lost_links_count() -> None:
    slower = links("nvswitch_8_nics_tabs", "h100-sxm5-80gb", (20e9,) * 18)
    assert slower.intra.bandwidth_bytes_per_s == 360e9
    rows = [[" X ", "NV18", "NV16"], ["NV18", " X ", "NV16"], ["NV16", "NV16", " X "]]
    matrix = read_matrix(samples.matrix_text(rows))
    found = node_links(matrix, catalogue.accelerator_entry("h100-sxm5-80gb"), 3)
    assert found.intra.bandwidth_bytes_per_s == 400e9


def test_without_a_matrix_the_usual_is_a_guess() -> None:
    found = node_links(None, catalogue.accelerator_entry("h100-sxm5-80gb"), 8)
    assert found.intra.bandwidth_bytes_per_s == 450e9
    assert found.doubts


@pytest.mark.parametrize(("link", "share"), [("PIX", 1), ("SYS", 0.5)])
def test_a_slot_that_is_reported_counts(link: str, share: float) -> None:
    matrix = read_matrix(samples.matrix_text([[" X ", link], [link, " X "]]))
    entry = catalogue.accelerator_entry("l40s-48gb")
    found = node_links(matrix, entry, 2, host_bytes_per_s=16e9)
    assert found.intra.bandwidth_bytes_per_s == share * 16e9
    assert "as it reports it" in found.words
