"""Live tensors are counted to the byte in the step that is due, and in no other."""

from __future__ import annotations

import torch

from shardwright.runtime.memory import MemoryMeter
from tests.runtime.plans import plan_of

MIB = 1 << 20


def test_peak_of_the_due_step_counts_what_was_built_before() -> None:
    meter = MemoryMeter(torch.device("cpu"))
    with meter.building():
        weights = torch.zeros(MIB, dtype=torch.uint8)
        scratch = torch.zeros(8 * MIB, dtype=torch.uint8)
        del scratch
    with meter.measuring(is_due=False):
        torch.zeros(16 * MIB, dtype=torch.uint8)
    assert meter.result(plan_of(), 0, 0).live_tensor_bytes is None
    with meter.measuring(is_due=True):
        first = weights + 1
        del first
        second = torch.zeros(3 * MIB, dtype=torch.uint8)
        del second
    assert meter.result(plan_of(), 0, 0).live_tensor_bytes == 4 * MIB


def test_growth_of_the_process_is_what_it_touched() -> None:
    meter = MemoryMeter(torch.device("cpu"))
    kept = torch.ones(64 * MIB, dtype=torch.uint8)
    memory = meter.result(plan_of(pp=2), 1, 1)
    assert memory.resident_growth_bytes is not None
    assert 0.9 * kept.numel() < memory.resident_growth_bytes < 2 * kept.numel()
    assert memory.allocator_peak_bytes is None
    assert (memory.rank, memory.pp_rank) == (1, 1)
    assert (memory.predicted_peak_bytes, memory.predicted_tensor_bytes) == (MIB, 0)
