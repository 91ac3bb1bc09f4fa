"""Hosts: what the fixtures do not hold."""

from __future__ import annotations

from shardwright.hardware_profiles.topology.host import read_lscpu, read_numactl


def test_other_texts_tell_of_no_host() -> None:
    assert read_lscpu("node 0 cpus: 0 1") is None
    assert read_numactl("CPU(s): 4") is None


def test_a_host_without_numa_nodes() -> None:
    host = read_lscpu("CPU(s):   4\nModel name:  Something\n")
    assert host is not None
    assert (host.num_cpus, host.model, host.numa_cpus) == (4, "Something", None)
