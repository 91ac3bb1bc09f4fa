"""Devices through NVML, where its Python binding (``pynvml``) happens to be installed."""

from __future__ import annotations

import importlib
from typing import Any

from shardwright.hardware_profiles.topology.readings import DeviceRow


def read_devices() -> tuple[DeviceRow, ...]:
    """Each device with its memory and power limit; nothing without the binding or a driver."""
    try:
        library: Any = importlib.import_module("pynvml")
        library.nvmlInit()
    except Exception:  # the binding is absent, or raises errors of its own without a driver
        return ()
    try:
        handles = map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
        return tuple(_row(library, handle) for handle in handles)
    except library.NVMLError:
        return ()
    finally:
        library.nvmlShutdown()


def _row(library: Any, handle: Any) -> DeviceRow:
    name = library.nvmlDeviceGetName(handle)
    return DeviceRow(
        name=name.decode() if isinstance(name, bytes) else name,
        memory_bytes=int(library.nvmlDeviceGetMemoryInfo(handle).total),
        power_watts=_optional(library, "nvmlDeviceGetEnforcedPowerLimit", handle),
        is_sliced=_is_sliced(library, handle),
    )


def _optional(library: Any, function: str, handle: Any) -> float | None:
    """A power in W, which NVML gives in mW; None where the device does not tell."""
    try:
        return float(getattr(library, function)(handle)) / 1000
    except library.NVMLError:
        return None


def _is_sliced(library: Any, handle: Any) -> bool:
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0])
    except (library.NVMLError, AttributeError):
        return False
