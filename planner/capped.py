"""Cost models for which a layout fits only where no rank needs more than the user allows.

Prices stay as they are; what changes is how much memory a search may use.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.bounds import Floats, Pricer, UnitBytes, UnitSeconds
from shardwright.planner.choices import Choices
from shardwright.specs import Layout, MemoryParts, Prediction
from shardwright.specs.prediction import MemoryVerdict


class CappedStackModel(StackModel):
    """A `StackModel` with its prices and their caches, and less memory to fill."""

    def __init__(self, base: StackModel, most_bytes: float) -> None:
        self.__dict__ |= base.__dict__
        self._most_bytes = most_bytes

    @property
    def capacity_bytes(self) -> int:
        """What a rank may use: the smallest device's memory, or less."""
        return int(min(self._device_bytes, self._most_bytes))

    @property
    def _device_bytes(self) -> int:
        return super().capacity_bytes

    def most_live_bytes(self, layout: Layout) -> float:
        """What tensors of a rank may take up at most for the verdict ``fits``."""
        allowed = self._memory.live_within_bytes(layout, self._most_bytes)
        return min(self._memory.most_live_bytes(layout, self._device_bytes), allowed)

    def verdict(self, memory: Sequence[MemoryParts]) -> MemoryVerdict:
        """Beyond what is allowed nothing fits; below, the device decides with its margin."""
        if max(rank.total_bytes for rank in memory) > self._most_bytes:
            return "does_not_fit"
        return self._memory.verdict(memory, self._device_bytes)


class CappedPricer:
    """A `planner.bounds.Pricer` with less memory to fill."""

    def __init__(self, base: Pricer, most_bytes: float) -> None:
        self._base, self._most_bytes = base, most_bytes

    @property
    def capacity_bytes(self) -> int:
        return int(min(self._base.capacity_bytes, self._most_bytes))

    def unit_seconds(self, choices: Choices) -> UnitSeconds:
        return self._base.unit_seconds(choices)

    def unit_bytes(self, choices: Choices) -> UnitBytes:
        return self._base.unit_bytes(choices)

    def state_bytes(self, choices: Choices) -> Floats:
        return self._base.state_bytes(choices)

    def predict(self, layout: Layout) -> Prediction:
        """As the base predicts it; what needs more than is allowed does not fit."""
        found = self._base.predict(layout)
        if max(found.peak_memory_bytes) <= self._most_bytes:
            return found
        return found.model_copy(update={"memory_verdict": "does_not_fit"})
