"""Lists of hosts and counts of GPUs in all their spellings."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.topology.slurm import expand_hosts, read_hostnames, read_nodes


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a[01-03,7]-ib,b4", ["a01-ib", "a02-ib", "a03-ib", "a7-ib", "b4"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert list(expand_hosts(text)) == hosts


def test_words_are_no_hosts() -> None:
    assert read_hostnames("no hosts at all") == ()
    assert read_hostnames("node1\nnode2\nnode1\n") == ("node1", "node2")


@pytest.mark.parametrize(
    ("fields", "kind", "gpus", "allocated"),
    [
        ("Gres=gpu:4", None, 4, None),
        ("Gres=gpu:a100:4(S:0-1)", "a100", 4, None),
        ("Gres=gpu:a100_3g.20gb:2 GresUsed=gpu:a100_3g.20gb:1(IDX:0)", "a100_3g.20gb", 2, 1),
        ("Gres=(null) CfgTRES=cpu=4,gres/gpu:h200=8 AllocTRES=", "h200", 8, 0),
        ("Gres=gpu:gh200:1,gpu:gh200:1", "gh200", 2, None),
        ("Gres=", None, 0, None),
    ],
)
def test_gpus_of_a_node(fields: str, kind: str | None, gpus: int, allocated: int | None) -> None:
    (node,) = read_nodes(f"NodeName=n1 CPUTot=4 {fields} State=IDLE*")
    assert (node.gpu_type, node.num_gpus, node.num_gpus_allocated) == (kind, gpus, allocated)
    assert node.state == "IDLE*"
