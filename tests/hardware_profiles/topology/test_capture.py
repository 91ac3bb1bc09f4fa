"""Asking this machine: tools that answer, fail, hang or are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.hardware_profiles.topology import capture, nvml
from shardwright.hardware_profiles.topology.readings import DeviceRow
from tests.hardware_profiles.topology import samples


def put(folder: Path, name: str, script: str) -> None:
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(nvml, "read_devices", lambda: ())
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    capture.read_this_node.cache_clear()
    capture.read_links.cache_clear()
    return folder


def test_what_answers_is_read_and_what_fails_is_left_out(tools: Path, tmp_path: Path) -> None:
    table = samples.FIXTURES / "nvswitch_8_nics_tabs.txt"
    put(tools, "nvidia-smi", f'[ "$1" = topo ] && exec /bin/cat {table}; exit 9')
    put(tools, "rocm-smi", "echo no such device; exit 1")
    put(tools, "npu-smi", "echo something else")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    found = capture.read_this_node(tmp_path)
    assert [reading.kind for reading in found] == ["matrix:nvidia-smi", "/sys/class/infiniband"]
    assert found[1].ports[0].rate_bytes_per_s == 50e9
    assert capture.read_links() == found[0].matrix


def test_a_machine_without_tools_says_nothing(tools: Path, tmp_path: Path) -> None:
    assert capture.read_this_node(tmp_path) == ()
    assert capture.read_links() is None


def test_an_allocation_tells_its_hosts(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    row = DeviceRow("NVIDIA L4")
    monkeypatch.setattr(nvml, "read_devices", lambda: (row,))
    devices, hosts = capture.read_this_node(tmp_path)
    assert (devices.kind, devices.devices) == ("nvml", (row,))
    assert hosts.hostnames == ("n1", "n2", "n3")


def test_a_tool_that_hangs_is_given_up(tools: Path) -> None:
    put(tools, "slow", "exec /bin/sleep 30")
    assert capture.run(("slow",), limit_s=0.2) == ""
    assert capture.run(("absent",)) == ""
