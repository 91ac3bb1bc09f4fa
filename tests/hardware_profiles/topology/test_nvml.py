"""NVML through a binding that a test plays."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from shardwright.hardware_profiles.topology.nvml import read_devices


class NVMLError(Exception):
    pass


def unsupported(handle: int) -> None:
    raise NVMLError


def binding(**changes: object) -> SimpleNamespace:
    names = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: b"NVIDIA L4",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=23034 * 2**20),
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 72_000,
        "nvmlDeviceGetMigMode": unsupported,
    }
    return SimpleNamespace(**(names | changes))


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", binding())
    first, second = read_devices()
    assert first == second
    assert first.as_json() == {"name": "NVIDIA L4", "memory_mib": 23034, "power_w": 72.0}


def test_without_binding_or_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise NVMLError

    monkeypatch.setitem(sys.modules, "pynvml", binding(nvmlInit=no_driver))
    assert read_devices() == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_devices() == ()


def test_a_device_that_tells_no_power(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = binding(nvmlDeviceGetEnforcedPowerLimit=unsupported)
    monkeypatch.setitem(sys.modules, "pynvml", changed)
    assert read_devices()[0].power_watts is None
