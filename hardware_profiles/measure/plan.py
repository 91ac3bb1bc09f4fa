"""`MeasurePlan`: which sizes a profile measures, and how long each may take."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from shardwright.specs import Spec
from shardwright.specs.training import DType

MIB = 2**20


class MeasurePlan(Spec):
    """What the ranks of a profile measure; given to each of them as JSON."""

    operations: str = "shardwright.runtime.measured"
    """Module that offers the runtime's own operations (`RuntimeOperations`)."""
    dtypes: tuple[DType, ...] = ("fp32", "bf16")
    budget_s: PositiveFloat = 90.0
    """Planned length in all; a phase chooses its grid so that its share suffices."""
    smallest_extent: PositiveInt = 32
    """Of the grid of matrix products."""
    largest_extent: PositiveInt = 2048
    longest_call_s: PositiveFloat = 0.02
    """A matrix product that takes longer is not measured: its rate is that of smaller ones."""
    head_dims: tuple[PositiveInt, ...] = (32, 64, 128)
    sequences: tuple[PositiveInt, ...] = (64, 256, 1024)
    elementwise_bytes: tuple[PositiveInt, ...] = tuple(2**power for power in range(11, 24, 2))
    """Of the main tensor of an element-wise operation."""
    hidden: PositiveInt = 256
    """Row length of the tensors in element-wise operations."""
    collective_bytes: tuple[PositiveInt, ...] = (
        2**10, 2**13, 2**15, 2**17, 2**19, 2**21, 2**23, 2**25,
    )  # fmt: skip
    """Input bytes per rank."""
    longest_collective_s: PositiveFloat = 0.1
    """Larger sizes than the first that takes longer are not measured: their rate is that one's."""
    arena_bytes: PositiveInt = 64 * MIB
    """Operands and results are spread over this much memory each: more than a core's caches and
    the pages that it translates without a walk."""
    min_samples: PositiveInt = 5

    @classmethod
    def full(cls, device_type: str) -> MeasurePlan:
        """Everything, within two minutes."""
        if device_type == "cpu":
            return cls()
        return cls(
            largest_extent=16384,
            head_dims=(64, 128),
            sequences=(512, 2048, 8192),
            elementwise_bytes=tuple(2**power for power in range(16, 31, 2)),
            hidden=4096,
            collective_bytes=tuple(2**power for power in range(10, 31, 2)),
            arena_bytes=2048 * MIB,
        )

    @classmethod
    def quick(cls) -> MeasurePlan:
        """A coarse profile in a few seconds: right units and shapes, rough figures."""
        return cls(
            dtypes=("fp32",),
            budget_s=5.0,
            largest_extent=512,
            head_dims=(64,),
            sequences=(64, 256),
            elementwise_bytes=(2**14, 2**18, 2**20),
            collective_bytes=(2**10, 2**16, 2**20),
            arena_bytes=8 * MIB,
            min_samples=3,
        )
