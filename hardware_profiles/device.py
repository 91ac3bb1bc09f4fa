"""The only module that names a vendor's device type or collective backend.

Everything else asks here: which kind of device this process computes on, which backend its
collectives use, how to wait for it, and how much memory it has and used. torch is imported inside
the functions, so that the planner's side can import this module without it.
"""

from __future__ import annotations

import logging
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardwright.specs.errors import InputError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

DeviceType = Literal["cpu", "cuda", "musa", "npu", "xpu"]

DEVICE_VARIABLE = "SHARDWRIGHT_DEVICE"
"""Environment variable that forces a device type, such as ``cpu`` on a machine with GPUs."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What goes with a torch device type."""

    collective_backend: str
    makers: str
    visible_devices_variable: str | None
    """Environment variable that narrows which devices a process sees."""


_KINDS: dict[DeviceType, DeviceKind] = {
    "cpu": DeviceKind("gloo", "any", None),
    # A ROCm build of torch calls its devices cuda and its collectives nccl, too.
    "cuda": DeviceKind("nccl", "NVIDIA, AMD", "CUDA_VISIBLE_DEVICES"),
    "musa": DeviceKind("mccl", "Moore Threads", "MUSA_VISIBLE_DEVICES"),
    "npu": DeviceKind("hccl", "Huawei", "ASCEND_RT_VISIBLE_DEVICES"),
    "xpu": DeviceKind("xccl", "Intel", "ZE_AFFINITY_MASK"),
}

DEVICE_TYPES: tuple[DeviceType, ...] = tuple(_KINDS)


def device_kind(device_type: DeviceType) -> DeviceKind:
    """The collective backend and makers of a device type."""
    return _KINDS[device_type]


def collective_backend(device_type: DeviceType) -> str:
    """The ``torch.distributed`` backend for tensors on this type of device."""
    return _KINDS[device_type].collective_backend


def current_device_type() -> DeviceType:
    """The type of device that this process computes on.

    ``SHARDWRIGHT_DEVICE`` where it is set, else the accelerator that torch sees, else the CPU.

    Raises:
        InputError: the variable names no known type, or one that torch cannot use here.
    """
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    found = accelerator.type if accelerator is not None else "cpu"
    wanted = os.environ.get(DEVICE_VARIABLE, found)
    for device_type in DEVICE_TYPES:
        if device_type == wanted and wanted in ("cpu", found):
            return device_type
    usable = "cpu" if found == "cpu" else f"cpu or {found}"
    if DEVICE_VARIABLE in os.environ:
        raise InputError(
            f"{DEVICE_VARIABLE} is {wanted!r}, but torch {torch.__version__} sees only {usable}",
            fix=f"unset {DEVICE_VARIABLE} or set it to {usable}",
        )
    raise InputError(
        f"torch reports an accelerator of type {found!r}, which is not supported",
        fix=f"set {DEVICE_VARIABLE}=cpu, or use one of {', '.join(DEVICE_TYPES)}",
    )


def device_count(device_type: DeviceType) -> int:
    """How many devices of this type the process sees; 1 for the CPU, which all ranks share."""
    import torch

    return 1 if device_type == "cpu" else torch.accelerator.device_count()


def torch_device(local_rank: int) -> torch.device:
    """The device of a rank on this node, made the process's current one.

    Raises:
        InputError: there are fewer devices than ranks on this node.
    """
    import torch

    device_type = current_device_type()
    if device_type == "cpu":
        return torch.device("cpu")
    count = device_count(device_type)
    if local_rank >= count:
        raise InputError(
            f"local rank {local_rank} has no device of its own: this node shows {count}"
            f" {device_type} devices",
            fix=f"start at most {count} ranks on this node, or check"
            f" {_KINDS[device_type].visible_devices_variable}",
        )
    torch.accelerator.set_device_index(local_rank)
    return torch.device(device_type, local_rank)


def synchronize(device: torch.device) -> None:
    """Wait until everything that was queued on the device is done; immediate on a CPU."""
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def device_memory_bytes(device: torch.device) -> tuple[int, int]:
    """(free, total) memory of an accelerator as the device reports it.

    On a CPU use `shardwright.hardware_profiles.discover.host_memory_bytes`, which knows of limits
    that were set on this process.
    """
    import torch

    assert device.type != "cpu"
    module: Any = torch.get_device_module(device)
    free_bytes, total_bytes = module.mem_get_info(device)
    return int(free_bytes), int(total_bytes)


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory that was in use since the last `reset_peak_memory`.

    On an accelerator the allocator's peak of allocated tensors; on a CPU the process's peak
    resident set, which also counts code, libraries and what the allocator has not given back.
    """
    import torch

    if device.type != "cpu":
        return int(torch.accelerator.max_memory_allocated(device))
    high_water = re.search(r"VmHWM:\s*(\d+) kB", _read("/proc/self/status"))
    if high_water:
        return int(high_water[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def allocated_memory_bytes(device: torch.device) -> int:
    """Memory in use now: allocated tensors on an accelerator, the resident set on a CPU."""
    import torch

    if device.type != "cpu":
        return int(torch.accelerator.memory_allocated(device))
    resident = re.search(r"VmRSS:\s*(\d+) kB", _read("/proc/self/status"))
    return int(resident[1]) * 1024 if resident else peak_memory_bytes(device)


def reset_peak_memory(device: torch.device) -> bool:
    """Start a new peak from now; False where the system cannot, so that the old peak stays."""
    import torch

    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")  # 5: reset VmHWM, see proc(5)
    except OSError as error:
        logger.debug("cannot reset the peak resident set: %s", error)
        return False
    return True


def _read(path: str) -> str:
    """The text of a system file; empty where the system does not have it."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
