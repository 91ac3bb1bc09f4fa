"""Tables of links, whole and cut."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.topology import read_topology
from shardwright.hardware_profiles.topology.matrix import read_matrix
from tests.hardware_profiles.topology import samples


def test_a_row_that_was_cut_off_is_read_from_the_others() -> None:
    text = (
        "        GPU0    GPU1    GPU2\nGPU0     X      NV4     SYS\nGPU1    NV4      X      PHB\n"
    )
    matrix = read_matrix(text)
    assert matrix is not None
    assert matrix.links == (("X", "NV4", "SYS"), ("NV4", "X", "PHB"), ("SYS", "PHB", "X"))


def test_cells_that_nothing_tells_are_unknown() -> None:
    matrix = read_matrix("        GPU0    GPU1    GPU2\nGPU0     X      NV4     SYS\n")
    assert matrix is not None
    assert matrix.links[1] == ("NV4", "X", None)
    assert matrix.classes == ("NV4", "SYS")


def test_a_table_of_peer_access_alone_is_no_matrix() -> None:
    text = samples.text("peer_access_before").split("$ nvidia-smi topo -m")[0]
    assert read_matrix(text) is None


def test_hops_and_weights_are_no_links() -> None:
    text = samples.text("rocm_4_with_numa").split("=============================== Link")[0]
    assert read_matrix(text) is None


@pytest.mark.parametrize(
    ("row", "affinity"),
    [
        ("0-7\t1\t\tN/A", ("0-7", "1", "N/A")),
        ("\t1\t\tN/A", (None, "1", "N/A")),
        ("0-7\t\t\t3", ("0-7", None, "3")),
        ("0-7", ("0-7", None, None)),
    ],
)
def test_affinities_behind_tabs(row: str, affinity: tuple[str | None, ...]) -> None:
    header = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    matrix = read_matrix(f"{header}GPU0\t X \tPIX\t{row}\nGPU1\tPIX\t X \t{row}\n")
    assert matrix is not None
    found = (matrix.cpu_affinity, matrix.numa, matrix.device_numa)
    assert tuple(part and part["GPU1"] for part in found) == affinity


def test_prose_about_devices_is_no_header() -> None:
    assert read_matrix("GPU0 to GPU3 talk over NIC0\nGPU1 is fine\n") is None


@pytest.mark.parametrize(
    ("row", "affinity"),
    [
        ("                0               N/A", (None, "0", "N/A")),  # tabs that became spaces
        ("                        0               N/A", (None, "0", "N/A")),  # under the titles
        ("        0-7     1", ("0-7", "1", None)),
    ],
)
def test_affinities_behind_spaces(row: str, affinity: tuple[str | None, ...]) -> None:
    header = "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
    matrix = read_matrix(f"{header}GPU0     X      PIX{row[3:]}\nGPU1    PIX      X {row[3:]}\n")
    assert matrix is not None
    found = (matrix.cpu_affinity, matrix.numa, matrix.device_numa)
    assert tuple(part and part["GPU0"] for part in found) == affinity


def test_comments_quotes_and_one_device() -> None:
    commented = "# GPU0 GPU1\n# GPU0 X PIX\n# GPU1 PIX X\n"
    matrix = read_topology(commented).matrix
    assert matrix is not None
    assert matrix.classes == ("PIX",)
    alone = "== Link Type between two GPUs ==\n       GPU0\nGPU0   0\n"
    matrix = read_topology(alone).matrix
    assert matrix is not None
    assert (matrix.tool, matrix.links) == ("rocm-smi", (("X",),))


def test_a_list_of_cpus_that_met_its_numa_node_is_taken_apart() -> None:
    matrix = read_matrix(
        "         GPU0     GPU1     CPU Affinity   NUMA Affinity\n"
        "GPU0     X        MT2      0-63,128-191   0\n"
        "GPU1     MT2      X        64-127,192-238,240-2551\n"
    )
    assert matrix is not None
    assert matrix.cpu_affinity == {"GPU0": "0-63,128-191", "GPU1": "64-127,192-238,240-255"}
    assert matrix.numa == {"GPU0": "0", "GPU1": "1"}
