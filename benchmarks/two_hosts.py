"""An emulated cluster on one machine: hosts in network namespaces, joined by a slow link.

    with TwoHosts(cores=((0,), (1,))) as hosts:
        hosts.launch(["-m", "shardwright", "profile", "-o", "profile.json"], ranks_per_host=2)

Each host has cores of its own. Inside a host ranks talk over the kernel's loopback, which is not
slowed; between hosts over ``slow_link.c``, which passes frames at a given rate and delay. Needs
root, ``ip``, a C compiler and ``/dev/net/tun``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).with_name("slow_link.c")
INTERFACE = "lk0"
"""What ``slow_link.c`` calls its device in each namespace."""
ADDRESS = "10.78.0.{}"


EAGER = ("sh", "-c", 'echo -20 > /proc/self/autogroup; exec nice -n -20 "$@"', "sh")
"""Starts a rank's program with the highest priority, also of its session (`man 7 sched`)."""


class UnavailableError(RuntimeError):
    """This machine cannot emulate hosts; says why."""


def why_unavailable() -> str | None:
    """What is missing here, None where nothing is."""
    if os.geteuid() != 0:
        return "emulated hosts need root"
    missing = [tool for tool in ("ip", "cc", "taskset") if shutil.which(tool) is None]
    if missing:
        return f"emulated hosts need {' and '.join(missing)}"
    return None if Path("/dev/net/tun").exists() else "emulated hosts need /dev/net/tun"


class TwoHosts:
    """Hosts while it is entered; on leaving, all that it made is gone."""

    def __init__(
        self,
        *,
        cores: Sequence[Sequence[int]] = ((0,), (1,)),
        delay_s: float = 2e-3,
        bits_per_s: float = 200e6,
        mtu: int = 9000,
    ) -> None:
        """``cores``: of each host."""
        self._cores = cores
        self.names = [f"shardwright-{os.getpid()}-{host}" for host in range(len(cores))]
        self._arguments = [f"{delay_s * 1e6:.0f}", f"{bits_per_s / 1e6:g}", f"{mtu}"]
        self._link: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Raises `UnavailableError`."""
        reason = why_unavailable()
        if reason is not None:
            raise UnavailableError(reason)
        try:
            self._set_up()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._take_down()

    def _set_up(self) -> None:
        for name in self.names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
                raise UnavailableError("network namespaces cannot be made here")
            _run("ip", "netns", "exec", name, "ip", "link", "set", "lo", "up")
        with tempfile.TemporaryDirectory() as folder:
            program = str(Path(folder) / "slow_link")
            _run("cc", "-O2", "-o", program, str(SOURCE))
            self._link = subprocess.Popen(
                [program, *self._arguments, *self.names], stdout=subprocess.PIPE, text=True
            )
            assert self._link.stdout is not None
            if self._link.stdout.readline() != "ready\n":
                raise UnavailableError("the slow link cannot be made here")

    def _take_down(self) -> None:
        if self._link is not None:
            self._link.kill()
            self._link.wait()
            assert self._link.stdout is not None
            self._link.stdout.close()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def launch(
        self,
        arguments: Sequence[str],
        *,
        ranks_per_host: int = 2,
        timeout_s: float = 1800.0,
        eager: bool = False,
    ) -> str:
        """Run a Python program under torchrun on every host; what rank 0's host printed.

        Args:
            arguments: as behind ``python``: ``-m module ...`` or a script with its arguments.
            eager: before all other work of this machine.

        Raises:
            subprocess.CalledProcessError: a host's launch failed; with its output.
            subprocess.TimeoutExpired: it hung. No process is left behind.
        """
        port = _free_port()
        hosts = [
            self._start(host, port, arguments, ranks_per_host, eager=eager)
            for host in reversed(range(len(self.names)))
        ]
        try:
            outputs = [host.communicate(timeout=timeout_s) for host in hosts]
        finally:
            for host in hosts:
                if host.poll() is None:
                    _end(host)
        for host, (output, errors) in zip(hosts, outputs, strict=True):
            if host.returncode:
                raise subprocess.CalledProcessError(host.returncode, host.args, output, errors)
        return outputs[-1][0]

    def _start(
        self,
        host: int,
        port: int,
        arguments: Sequence[str],
        ranks_per_host: int,
        *,
        eager: bool,
    ) -> subprocess.Popen[str]:
        module = ["-m", "torch.distributed.run"]
        launch = [
            "--nnodes", f"{len(self.names)}", "--node-rank", f"{host}",
            "--nproc-per-node", f"{ranks_per_host}", "--master-addr", ADDRESS.format(1),
            "--master-port", f"{port}", "--local-addr", ADDRESS.format(host + 1), "--no-python",
        ]  # fmt: skip
        inside = ["ip", "netns", "exec", self.names[host]]
        cores = ["taskset", "-c", ",".join(map(str, self._cores[host]))]
        rank = [*(EAGER if eager else ()), sys.executable, *arguments]
        command = [*inside, *cores, sys.executable, *module, *launch, *rank]
        environment = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | environment, start_new_session=True,
        )  # fmt: skip


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _end(process: subprocess.Popen[str]) -> None:
    """The launch and, since they die with it, its ranks."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
