"""Devices and backends; accelerators are stood in for by a fake torch.accelerator."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from shardwright.hardware_profiles.device import (
    DEVICE_TYPES,
    DEVICE_VARIABLE,
    DeviceType,
    allocated_memory_bytes,
    collective_backend,
    current_device_type,
    device_count,
    peak_memory_bytes,
    reset_peak_memory,
    synchronize,
    torch_device,
)
from shardwright.specs import InputError

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")


def pretend(monkeypatch: pytest.MonkeyPatch, device_type: str | None, count: int = 2) -> list[int]:
    """Make torch see ``count`` devices of a type; returns the indices that get selected."""
    selected: list[int] = []
    found = None if device_type is None else SimpleNamespace(type=device_type)
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    monkeypatch.setattr(torch.accelerator, "set_device_index", selected.append)
    return selected


@pytest.mark.parametrize(
    ("device_type", "backend"),
    [("cpu", "gloo"), ("cuda", "nccl"), ("musa", "mccl"), ("npu", "hccl"), ("xpu", "xccl")],
)
def test_backends(device_type: DeviceType, backend: str) -> None:
    assert collective_backend(device_type) == backend


def test_every_type_has_a_backend() -> None:
    assert len({collective_backend(device_type) for device_type in DEVICE_TYPES}) == 5


@pytest.mark.parametrize("device_type", ["cuda", "xpu"])
def test_the_accelerator_that_torch_sees(monkeypatch: pytest.MonkeyPatch, device_type: str) -> None:
    pretend(monkeypatch, device_type)
    assert current_device_type() == device_type


def test_without_one_it_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, None)
    assert current_device_type() == "cpu"
    assert device_count("cpu") == 1
    assert torch_device(7) == CPU


def test_the_variable_forces_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "cuda")
    monkeypatch.setenv(DEVICE_VARIABLE, "cpu")
    assert current_device_type() == "cpu"


@pytest.mark.parametrize(("seen", "wanted"), [("cuda", "npu"), (None, "cuda"), (None, "gpu")])
def test_the_variable_cannot_conjure_devices(
    monkeypatch: pytest.MonkeyPatch, seen: str | None, wanted: str
) -> None:
    pretend(monkeypatch, seen)
    monkeypatch.setenv(DEVICE_VARIABLE, wanted)
    with pytest.raises(InputError, match=f"{DEVICE_VARIABLE} is '{wanted}'"):
        current_device_type()


def test_an_unknown_accelerator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "mps")
    with pytest.raises(InputError, match="'mps', which is not supported"):
        current_device_type()


def test_each_local_rank_gets_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    selected = pretend(monkeypatch, "cuda", count=2)
    assert torch_device(1) == torch.device("cuda", 1)
    assert selected == [1]
    with pytest.raises(InputError, match="this node shows 2 cuda devices"):
        torch_device(2)


def test_memory_of_a_cpu_process_is_its_resident_set() -> None:
    synchronize(CPU)
    could_reset = reset_peak_memory(CPU)
    before = peak_memory_bytes(CPU)
    assert 0 < allocated_memory_bytes(CPU) <= before + 2**20
    block = torch.ones(2**24)  # 64 MiB, touched
    grown = peak_memory_bytes(CPU)
    assert grown - before > (32 if could_reset else 0) * 2**20
    del block
    # The kernel counts pages of each thread in batches, so that figures may differ by a little.
    assert peak_memory_bytes(CPU) == pytest.approx(grown, abs=2**21)
    if could_reset:
        reset_peak_memory(CPU)
        assert peak_memory_bytes(CPU) < grown - 32 * 2**20


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys, shardwright.hardware_profiles.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
