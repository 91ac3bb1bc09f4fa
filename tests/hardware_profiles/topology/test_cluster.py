"""Whole clusters from readings."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.topology import read_topology
from shardwright.hardware_profiles.topology.cluster import Stated, cluster_from_readings
from shardwright.specs import InputError
from tests.hardware_profiles.topology import samples

IBSTAT = "".join(
    f"CA 'mlx5_{i}'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n"
    for i in range(8)
)
H100 = "\n".join(["name, memory.total [MiB]", *["NVIDIA H100 80GB HBM3, 81559 MiB"] * 8])


def test_a_node_of_eight_with_its_network() -> None:
    readings = [samples.reading("nvswitch_8_nics_tabs"), read_topology(H100), read_topology(IBSTAT)]
    found = cluster_from_readings(readings, Stated(num_nodes=16))
    (group,) = found.cluster.groups
    assert found.cluster.in_words() == "16 nodes x 8 = 128 x H100-SXM5-80GB (78.6 GiB usable)"
    assert group.intra_node.bandwidth_bytes_per_s == 450e9
    assert group.inter_node is not None
    assert group.inter_node.bandwidth_bytes_per_s == 50e9
    assert group.scale_up_domain_gpus == 8
    assert found.guesses == ()
    assert found.origins["groups.0.num_nodes"] == "stated: --nodes"
    assert "79.6 GiB that the tool reports" in found.origins["groups.0.accelerator.memory_bytes"]
    assert "NUMA" in found.notes[0]


def test_a_tray_is_part_of_a_rack() -> None:
    rows = [[" X " if i == j else "NV18" for j in range(4)] for i in range(4)]
    tray = read_topology(samples.matrix_text(rows))
    stated = Stated(accelerator="gb200-186gb", num_nodes=18)
    guessed = cluster_from_readings([tray], stated)
    assert guessed.cluster.groups[0].scale_up_domain_gpus == 72
    assert any("rack of 72" in guess for guess in guessed.guesses)
    known = cluster_from_readings([tray, samples.reading("slurm_topology")], stated)
    assert known.cluster.groups[0].scale_up_domain_gpus == 72
    assert not any("rack" in guess for guess in known.guesses)


def test_the_scheduler_alone_describes_groups() -> None:
    text = "".join(
        f"NodeName=n{i} Gres=gpu:{kind}:4 RealMemory=1000 State={state}\n"
        for i, (kind, state) in enumerate([("a100", "IDLE"), ("a100", "DOWN*"), ("v100", "MIXED")])
    )
    with pytest.raises(InputError, match="nothing is known of the network"):
        cluster_from_readings([read_topology(text)])
    found = cluster_from_readings([read_topology(text)], Stated(inter_bytes_per_s=25e9))
    assert [g.num_nodes for g in found.cluster.groups] == [2, 1]
    assert found.cluster.between_groups is not None
    assert any("may be any of" in guess for guess in found.guesses)
    assert any("1 nodes are down" in note for note in found.notes)
    with pytest.raises(InputError, match="--nodes 3 does not say"):
        cluster_from_readings([read_topology(text)], Stated(num_nodes=3))


def test_the_scheduler_counts_nodes_like_the_one_that_was_read() -> None:
    nodes = read_topology("".join(f"NodeName=n{i} Gres=gpu:h100:8 State=IDLE\n" for i in range(5)))
    found = cluster_from_readings(
        [samples.reading("nvswitch_8_nics_tabs"), read_topology(H100), read_topology(IBSTAT), nodes]
    )
    assert found.cluster.groups[0].num_nodes == 5


def test_slices_and_unlike_devices_are_told() -> None:
    sliced = cluster_from_readings([samples.reading("box_h200_mig")])
    assert any("MIG is on" in note for note in sliced.notes)
    mixed = read_topology("NVIDIA L4, 23034 MiB\nNVIDIA L40S, 46068 MiB\n")
    found = cluster_from_readings([mixed])
    assert found.cluster.accelerator.name == "l4-24gb"
    assert any("devices of a node differ" in guess for guess in found.guesses)


def test_islands_and_a_network_are_priced_as_the_slower() -> None:
    rows = [["NV4" if i // 2 == j // 2 else "SYS" for j in range(4)] for i in range(4)]
    matrix = read_topology(samples.matrix_text(
        [[" X " if i == j else cell for j, cell in enumerate(row)] for i, row in enumerate(rows)]
    ))  # fmt: skip
    stated = Stated(accelerator="rtx-a6000-48gb", inter_bytes_per_s=4e9)
    found = cluster_from_readings([matrix], stated)
    (group,) = found.cluster.groups
    assert group.scale_up_domain_gpus == 2
    assert group.inter_node is not None
    assert group.inter_node.bandwidth_bytes_per_s == 1e9
    assert any("islands" in guess for guess in found.guesses)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nvswitch_8_nics_tabs"], "no text says which accelerators the 8"),
        (["metax_4", "metax_box"], "does not know the accelerator 'MetaX C500'"),
        (["lscpu"], "no text tells how many accelerators"),
        ([], "no text tells how many accelerators"),
    ],
)
def test_what_is_missing_is_named(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        cluster_from_readings([samples.reading(name) for name in names])
    assert caught.value.fix
