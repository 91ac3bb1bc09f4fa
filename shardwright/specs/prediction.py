"""What the cost model says of a layout, and what the planner says of its search."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    model_validator,
)

from shardwright.specs._base import Spec
from shardwright.specs.layout import Layout
from shardwright.specs.ranges import Bytes, HeldBytes


class Breakdown(Spec):
    """Where the step time goes on the critical pipeline rank, in seconds; sums to the step."""

    compute_forward: NonNegativeFloat = 0.0
    compute_backward: NonNegativeFloat = 0.0
    recompute: NonNegativeFloat = 0.0
    tp_comm: NonNegativeFloat = 0.0
    cp_comm: NonNegativeFloat = 0.0
    ep_comm: NonNegativeFloat = 0.0
    pp_comm: NonNegativeFloat = 0.0
    bubble: NonNegativeFloat = 0.0
    dp_comm_exposed: NonNegativeFloat = 0.0
    optimizer: NonNegativeFloat = 0.0
    data: NonNegativeFloat = 0.0
    other: NonNegativeFloat = 0.0

    @property
    def total_s(self) -> float:
        return float(sum(getattr(self, name) for name in type(self).model_fields))


MemoryVerdict = Literal["fits", "edge", "does_not_fit"]


class MemoryParts(Spec):
    """Bytes of one pipeline rank at its peak moment, by what holds them; sums to the peak."""

    weights: HeldBytes
    gradients: HeldBytes
    optimizer_state: HeldBytes
    activations: HeldBytes
    """Saved for backward, over all micro-batches in flight."""
    gathered_weights: HeldBytes
    """ZeRO-3 units that are unsharded at the peak moment."""
    transient: HeldBytes
    """Outputs, gradients and workspaces alive only inside the block at the peak moment."""
    fixed: HeldBytes
    """Device context, communicators and the stated fragmentation margin."""

    @property
    def total_bytes(self) -> int:
        return (
            self.weights + self.gradients + self.optimizer_state + self.activations
            + self.gathered_weights + self.transient + self.fixed
        )  # fmt: skip


class Prediction(Spec):
    """The priced layout. ``peak_memory_bytes`` has one entry per pp rank, the maximum over its ranks."""  # noqa: E501

    step_time_s: PositiveFloat
    step_time_band_s: tuple[PositiveFloat, PositiveFloat]
    """80 % of measurements are expected inside."""
    tokens_per_s: PositiveFloat
    tokens_per_s_per_gpu: PositiveFloat
    mfu: NonNegativeFloat | None
    """``model_flops_megatron`` over step time and dense peak of the matmul precision."""
    bubble_fraction: float = Field(ge=0, le=1)
    peak_memory_bytes: tuple[HeldBytes, ...] = Field(min_length=1)
    memory_capacity_bytes: Bytes
    """Of the devices of the fullest rank, where devices differ."""
    memory_verdict: MemoryVerdict
    breakdown: Breakdown
    memory: tuple[MemoryParts, ...]
    """The parts of each entry of ``peak_memory_bytes``."""
    rank_capacity_bytes: tuple[Bytes, ...] | None = None
    """Of each pipeline rank's devices, where these differ."""

    def capacity_of(self, rank: int) -> int:
        """Usable bytes of the devices of a pipeline rank."""
        if self.rank_capacity_bytes is None:
            return self.memory_capacity_bytes
        return self.rank_capacity_bytes[rank]

    @property
    def fullest_rank(self) -> int:
        """The pipeline rank that fills most of its devices; the first of several."""
        peaks = self.peak_memory_bytes
        return max(range(len(peaks)), key=lambda rank: peaks[rank] / self.capacity_of(rank))

    @model_validator(mode="after")
    def _memory_has_its_parts(self) -> Prediction:
        capacities = self.rank_capacity_bytes
        if capacities is not None and len(capacities) != len(self.peak_memory_bytes):
            raise ValueError(
                f"peak_memory_bytes has {len(self.peak_memory_bytes)} entries, but"
                f" rank_capacity_bytes has {len(capacities)}"
            )
        if len(self.memory) != len(self.peak_memory_bytes):
            raise ValueError(
                f"peak_memory_bytes has {len(self.peak_memory_bytes)} entries, but memory has"
                f" {len(self.memory)}"
            )
        return self


class Candidate(Spec):
    """A layout and its prediction: an alternative, a member of the tie set, or the user's own."""

    layout: Layout
    prediction: Prediction


class CountTried(Spec):
    """One number of devices that an objective was looked for on, and what came of it.

    ``best``: it is the answer; ``worse``: proven to be no better; ``too_slow``, ``too_costly``:
    proven that no layout meets the deadline, the budget; ``too_small``: nothing fits;
    ``impossible``: no layout obeys the rules; ``unproven``: its search was stopped early.
    """

    devices: int = Field(gt=0)
    outcome: Literal[
        "best", "worse", "too_slow", "too_costly", "too_small", "impossible", "unproven"
    ]
    step_time_s: float | None = Field(default=None, gt=0)
    """The best step, or what no step is below; null where nothing fits."""


class Baseline(Spec):
    """A simpler use of a heterogeneous cluster, to compare a plan with."""

    name: str
    """``only dgx-a100-80gb``, ``all devices as v100-sxm2-32gb``."""
    candidate: Candidate | None = None
    """Its best layout at its own price; null where it cannot be had."""
    reason: str | None = None
    """Why it cannot be had."""


class Certificate(Spec):
    """The books of the search: considered = the five other counts together."""

    considered: NonNegativeInt
    excluded_by_rules: NonNegativeInt
    excluded_by_memory: NonNegativeInt
    excluded_by_bound: NonNegativeInt
    """Where not optimal, what was not reached in time counts here too."""
    excluded_by_dominance: NonNegativeInt
    simulated: NonNegativeInt
    optimal: bool
    """Everything left has a bound >= incumbent x (1 - 1e-9)."""
    gap: float = Field(ge=0)
    """1 - smallest remaining bound / incumbent; 0 where optimal."""
    space: str
    """The space in words: which choices were open."""
    search_s: NonNegativeFloat
    counts: tuple[CountTried, ...] = ()
    """Where the number of devices was open: those that were tried. The books are of the best."""
