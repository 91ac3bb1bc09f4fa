"""What `doctor` looks at. Each check reports by value and never raises for what it finds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from shardwright.specs.errors import InputError
from shardwright.specs.units import format_bytes, format_seconds

Status = Literal["ok", "warn", "fail"]

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
SMALL_MEMORY_BYTES = 4 * 2**30
SMALL_DISK_BYTES = 5 * 2**30
RENDEZVOUS_PORT = 29500
"""Where torchrun meets its ranks unless it is told otherwise."""
COLLECTIVE_TIMEOUT_S = 60
RUNTIME_FIX = "pip install 'shardwright[runtime]'"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: ``warn`` limits what works, ``fail`` stops it; both say what to do."""

    name: str
    status: Status
    detail: str
    fix: str | None = None

    def as_json(self) -> dict[str, str | None]:
        return asdict(self)


def python() -> Check:
    """The interpreter is new enough."""
    detail = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Check("python", "fail", detail, "use Python 3.11 or newer")
    return Check("python", "ok", detail)


def packaging() -> Check:
    """The four houses are parts of this installation, and not bare folders of another."""
    import shardwright

    home = Path(shardwright.__file__).parent
    houses = ("planner", "runtime", "cost_models", "hardware_profiles")
    missing = [house for house in houses if not (home / house / "__init__.py").exists()]
    if missing:
        return Check(
            "packaging", "fail", f"{home} has no {', '.join(missing)}",
            "clone with a file system that keeps symbolic links, or install the wheel",
        )  # fmt: skip
    linked = sum((home / house).is_symlink() for house in houses)
    kind = "a checkout, its links whole" if linked == len(houses) else "an installed package"
    return Check("packaging", "ok", f"shardwright {shardwright.__version__}, {kind}")


def torch_installed() -> Check:
    """torch is there in a version that the runtime is written for; planning needs none."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Check("torch", "warn", "not installed: plan works, profile and run do not",
                     RUNTIME_FIX)  # fmt: skip
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if release < OLDEST_TORCH:
        return Check("torch", "fail", f"{version} is older than 2.11", RUNTIME_FIX)
    try:
        return Check("torch", "ok", f"{version}, {_devices_in_words()}")
    except InputError as error:
        return Check("torch", "fail", f"{version}: {error.problem}", error.fix)


def _devices_in_words() -> str:
    from shardwright.hardware_profiles.device import (
        collective_backend,
        current_device_type,
        device_count,
    )

    device_type = current_device_type()
    backend = collective_backend(device_type)
    return f"{device_count(device_type)} x {device_type}, collectives by {backend}"


def cores() -> Check:
    """How many cores this process may use."""
    from shardwright.hardware_profiles.discover import usable_cores

    return Check("cores", "ok", f"{usable_cores():g} usable of {os.cpu_count()}")


def memory() -> Check:
    """Enough memory for a few ranks."""
    from shardwright.hardware_profiles.discover import host_memory_bytes

    total_bytes, available_bytes = host_memory_bytes()
    detail = f"{format_bytes(available_bytes)} available of {format_bytes(total_bytes)}"
    if available_bytes < SMALL_MEMORY_BYTES:
        return Check("memory", "warn", detail, "end other programs, or train smaller models here")
    return Check("memory", "ok", detail)


def disk() -> Check:
    """Room for checkpoints where the command was started."""
    free_bytes = shutil.disk_usage(Path.cwd()).free
    detail = f"{format_bytes(free_bytes)} free in {Path.cwd()}"
    if free_bytes < SMALL_DISK_BYTES:
        return Check("disk", "warn", detail, "free space, or run --save on another disk")
    return Check("disk", "ok", detail)


def clock() -> Check:
    """A clock that times steps finely and does not stand before this installation was made."""
    resolution_s = time.get_clock_info("perf_counter").resolution
    installed = Path(__file__).stat().st_mtime
    if time.time() < installed:
        return Check("clock", "warn", "the clock is behind the date of this installation",
                     "set the clock; dates of plans and checkpoints will be wrong")  # fmt: skip
    if resolution_s > 1e-5:
        return Check("clock", "warn", f"resolution {format_seconds(resolution_s)}",
                     "expect coarse timings of small operations")  # fmt: skip
    return Check("clock", "ok", f"resolution {format_seconds(resolution_s)}")


def host_name() -> Check:
    """This host's name leads back to it; ranks find one another by it."""
    name = socket.gethostname()
    try:
        address = socket.getaddrinfo(name, None)[0][4][0]
    except OSError as error:
        return Check("host name", "warn", f"{name} does not resolve: {error.strerror}",
                     f"add {name} to /etc/hosts, or start torchrun with --master-addr")  # fmt: skip
    return Check("host name", "ok", f"{name} is {address}")


def ports() -> Check:
    """A free port can be had, and the usual rendezvous port is free."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        return Check("ports", "fail", f"cannot listen on 127.0.0.1: {error.strerror}",
                     "allow this user to open local sockets")  # fmt: skip
    try:
        with socket.create_server(("", RENDEZVOUS_PORT)):
            pass
    except OSError:
        return Check("ports", "warn", f"port {RENDEZVOUS_PORT} is in use",
                     "start torchrun with --rdzv-endpoint=localhost:0")  # fmt: skip
    return Check("ports", "ok", f"port {RENDEZVOUS_PORT} is free")


def collectives() -> Check:
    """Two processes of this machine add a number together, through the CPU backend."""
    if importlib.util.find_spec("torch") is None:
        return Check("gloo", "warn", "not tried: torch is not installed", RUNTIME_FIX)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        problem = _all_reduce_by_two_ranks(Path(folder) / "store")
    if problem is not None:
        return Check("gloo", "fail", f"two ranks could not all_reduce: {problem}",
                     "check the host name, a firewall on loopback, GLOO_SOCKET_IFNAME")  # fmt: skip
    taken = format_seconds(time.perf_counter() - started)
    return Check("gloo", "ok", f"two ranks started and did an all_reduce in {taken}")


def _all_reduce_by_two_ranks(store: Path) -> str | None:
    """None where it worked, else the last line that a rank said."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "shardwright.cli._probe", str(rank), str(store)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    deadline_s = time.monotonic() + COLLECTIVE_TIMEOUT_S
    problems = []
    for rank in ranks:
        try:
            _, said = rank.communicate(timeout=max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.communicate()
            problems.append(f"no answer within {COLLECTIVE_TIMEOUT_S} s")
        else:
            if rank.returncode:
                problems.append((said.strip().splitlines() or [f"exit code {rank.returncode}"])[-1])
    return problems[0] if problems else None


CHECKS: dict[str, Callable[[], Check]] = {
    "python": python,
    "packaging": packaging,
    "torch": torch_installed,
    "cores": cores,
    "memory": memory,
    "disk": disk,
    "clock": clock,
    "host name": host_name,
    "ports": ports,
    "gloo": collectives,
}
