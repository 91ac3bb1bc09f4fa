"""Predicted beside measured, term by term.

The runtime measures a term where it happens; waiting it cannot split further: for a message on
the wire and for a peer that still computes, pp_comm and bubble of a prediction, it waits alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.specs import Breakdown, Layout

Terms = Mapping[str, float]
"""Seconds of a step by name."""

OF_A_BREAKDOWN: dict[str, tuple[str, ...]] = {
    "compute_forward": ("compute_forward",),
    "compute_backward": ("compute_backward",),
    "recompute": ("recompute",),
    "tp_comm": ("tp_comm", "cp_comm", "ep_comm"),
    "dp_comm": ("dp_comm_exposed",),
    "waiting": ("pp_comm", "bubble"),
    "optimizer": ("optimizer",),
    "data": ("data",),
    "other": ("other",),
}
"""Which fields of a `Breakdown` each measured term is compared with."""

IN_WORDS = {
    "compute_forward": "compute, forward",
    "compute_backward": "compute, backward",
    "recompute": "recompute",
    "tp_comm": "tensor parallel communication",
    "dp_comm": "data parallel communication",
    "waiting": "pipeline messages and bubble",
    "optimizer": "optimizer",
    "data": "data",
    "other": "other",
}


@dataclass(frozen=True, slots=True)
class Timed:
    """One layout as it was measured."""

    layout: Layout
    step_time_s: float
    """Median over the rounds."""
    terms_s: tuple[Terms, ...]
    """By global rank: seconds of a step."""

    def of_stage(self, pp_rank: int) -> dict[str, float]:
        """Mean over the ranks of a pipeline rank; sums to nearly the step."""
        per_stage = self.layout.world_size.ranks_per_stage
        rows = self.terms_s[pp_rank * per_stage : (pp_rank + 1) * per_stage]
        return {
            name: statistics.fmean(row.get(name, 0.0) for row in rows) for name in OF_A_BREAKDOWN
        }


def predicted_terms(breakdown: Breakdown) -> dict[str, float]:
    """A breakdown in the terms that are measured."""
    return {
        name: sum(getattr(breakdown, field) for field in fields)
        for name, fields in OF_A_BREAKDOWN.items()
    }


def busiest(rows: Sequence[Terms]) -> int:
    """The pipeline rank that waits least."""
    return min(range(len(rows)), key=lambda rank: rows[rank]["waiting"])
