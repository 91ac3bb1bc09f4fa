"""`Bench`: what a rank measures with, and how it reports."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.distributed as dist

from shardwright.hardware_profiles.measure.operation import (
    RuntimeOperations,
    TimedOperation,
    load_operations,
)
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.timing import Arena, Timer
from shardwright.hardware_profiles.profile import Curve, Parameter
from shardwright.specs.training import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    "fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip


REPORT_S = 0.5
"""Between two reports of progress."""

OPERATIONS_BETWEEN = 4
"""Untimed operations before a timed one: about what a first-level instruction cache holds."""


@dataclass
class Bench:
    """One rank's place in the measurement."""

    rank: int
    party: Party
    device: torch.device
    plan: MeasurePlan
    messages_fd: int | None = None
    """Rank 0's pipe to the process that started the ranks; None where nobody listens."""
    _arenas: dict[DType, Arena] = field(default_factory=dict)
    _others: list[TimedOperation] = field(default_factory=list)
    _next_other: int = 0
    _phase: tuple[str, float, float, float] = ("", 0.0, 1.0, 0.0)
    _reported: float = 0.0

    def arena(self, dtype: DType) -> Arena:
        """Operands of a dtype; made once, on first use."""
        if dtype not in self._arenas:
            self._arenas[dtype] = Arena(self.plan.arena_bytes, TORCH_DTYPES[dtype], self.device)
        return self._arenas[dtype]

    def timer(self, point_s: float) -> Timer:
        return Timer(
            self.device, point_s, self.plan.min_samples, self.plan.arena_bytes,
            between=self._run_others, finished=self.report_progress,
        )  # fmt: skip

    @cached_property
    def runtime(self) -> RuntimeOperations:
        """The operations of the runtime."""
        return load_operations(self.plan.operations)

    def _run_others(self) -> None:
        """The next few of the runtime's operations, on small tensors."""
        if not self._others:
            dtype, hidden = self.plan.dtypes[0], self.plan.hidden
            arena = self.arena(dtype)
            self._others += self.runtime.elementwise_operations(arena, dtype, hidden, hidden)
        for _ in range(OPERATIONS_BETWEEN):
            self._others[self._next_other].make_call().run()
            self._next_other = (self._next_other + 1) % len(self._others)

    @property
    def world(self) -> int:
        return self.party.world

    @property
    def leads(self) -> bool:
        """Whether this rank sends the results."""
        return self.rank == 0

    @property
    def measures_alone(self) -> bool:
        """Whether this rank measures what one rank of a set that shares cores measures alone."""
        return self.party.sharers(self.rank)[0] == self.rank

    def barrier(self) -> None:
        if self.device.type == "cpu":
            dist.barrier()
        else:
            dist.barrier(device_ids=[self.device.index])

    def send_curve(self, curve: Curve) -> None:
        self._send({"curve": curve.model_dump(mode="json")})

    def send_parameter(self, parameter: Parameter) -> None:
        self._send({"parameter": parameter.model_dump(mode="json")})

    def begin(self, doing: str, done: float, share: float) -> None:
        """Start a phase: ``done`` of the whole (0 to 1) is over, ``share`` of it comes now."""
        self._phase = (doing, done, share, time.monotonic())
        self._send({"progress": doing, "done": done})

    def report_progress(self) -> None:
        """Say how far the phase is by its planned time, now and then."""
        doing, done, share, started = self._phase
        now = time.monotonic()
        if now - self._reported >= REPORT_S:
            self._reported = now
            elapsed = (now - started) / (share * self.plan.budget_s)
            self._send({"progress": doing, "done": done + share * min(1.0, elapsed)})

    def _send(self, message: dict[str, object]) -> None:
        if self.leads and self.messages_fd is not None:
            data = (json.dumps(message) + "\n").encode()
            while data:
                data = data[os.write(self.messages_fd, data) :]
