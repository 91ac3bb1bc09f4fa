"""How much memory one rank used in a run, beside what the plan predicted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from shardwright.hardware_profiles.device import (
    allocated_memory_bytes,
    peak_memory_bytes,
    reset_peak_memory,
)
from shardwright.runtime.ledger import Ledger
from shardwright.runtime.summary import RankMemory
from shardwright.specs import Plan


class MemoryMeter:
    """Measures from its construction, which must come before the model is built."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_own_peak = reset_peak_memory(device)
        self._bytes_before = allocated_memory_bytes(device)
        self._ledger = Ledger() if device.type == "cpu" else None
        self._live_bytes: int | None = None

    def building(self) -> AbstractContextManager[object]:
        """Note the tensors that are made in the body: weights, gradients, optimizer state."""
        return nullcontext() if self._ledger is None else self._ledger

    @contextmanager
    def measuring(self, *, is_due: bool) -> Iterator[None]:
        """Find the most bytes of tensors alive in the body, where it is due: that slows it down."""
        if self._ledger is None or not is_due:
            yield
            return
        self._ledger.reset_peak()
        with self._ledger:
            yield
        self._live_bytes = self._ledger.peak_bytes

    def result(self, plan: Plan, rank: int, pp_rank: int) -> RankMemory:
        """What was used up to now."""
        parts = plan.prediction.memory[pp_rank]
        on_cpu = self._device.type == "cpu"
        if self._has_own_peak:
            used = peak_memory_bytes(self._device)
        else:
            used = allocated_memory_bytes(self._device)
        return RankMemory(
            rank=rank,
            pp_rank=pp_rank,
            predicted_peak_bytes=plan.prediction.peak_memory_bytes[pp_rank],
            predicted_tensor_bytes=parts.total_bytes - parts.fixed,
            live_tensor_bytes=self._live_bytes,
            allocator_peak_bytes=None if on_cpu else used,
            resident_growth_bytes=max(0, used - self._bytes_before) if on_cpu else None,
        )
