"""`StackChoices`: everything that is decided about a layout on a software stack.

Decided in four steps, each of which narrows the price down: the grid of ranks with its micro-batch,
the shape of a layer on a rank, what is recomputed and sharded, and the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwright.planner.layout_text import CP_KINDS, SCHEDULES, recompute_from
from shardwright.planner.problem import Problem
from shardwright.specs import Layout


class Grid(NamedTuple):
    """The ranks of each dimension and the micro-batch."""

    tp: int
    cp: int
    pp: int
    dp: int
    micro_batch: int
    num_microbatches: int
    """Rounded down where dp x micro_batch does not divide the global batch (a broken rule)."""


class Cut(NamedTuple):
    """How a layer is cut beyond tp and cp."""

    sequence_parallel: bool
    cp_kind: str
    ep: int
    etp: int


class Pipeline(NamedTuple):
    """A schedule with its virtual stages per rank."""

    schedule: str
    """``none`` where pp = 1."""
    vpp: int


_POLICIES = ("none", "selective", "full")
SPLITS = ("balanced", "even")
"""How layers are split over stages: by priced time, or as many units as can be in each."""


@dataclass(frozen=True, slots=True)
class StackChoices:
    """One choice of everything; boundaries follow from ``split`` and the prices."""

    grid: Grid
    cut: Cut
    zero: int
    recompute: str
    pipeline: Pipeline
    split: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What orders equally good choices: the smaller key is the plainer layout."""
        grid, cut = self.grid, self.cut
        policy = self.recompute.partition(":")[0].partition("/")[0]
        return (
            *(grid.tp, grid.cp, grid.pp, self.pipeline.vpp, grid.dp, cut.ep, cut.etp),
            *(grid.micro_batch, self.zero, int(cut.sequence_parallel)),
            *(_POLICIES.index(policy), self.recompute, CP_KINDS.index(cut.cp_kind)),
            ("none", *SCHEDULES).index(self.pipeline.schedule),
            SPLITS.index(self.split),
        )

    def layout(
        self, problem: Problem, boundaries: tuple[int, ...], others: Mapping[str, Any]
    ) -> Layout:
        """The layout whose stages start at these layers; ``others``: fields that have one value."""
        grid, cut, pipeline = self.grid, self.cut, self.pipeline
        return Layout.of(
            problem.model, problem.training,
            boundaries=boundaries,
            recompute=recompute_from(self.recompute, grid.pp * pipeline.vpp),
            tp=grid.tp, cp=grid.cp, pp=grid.pp, dp=grid.dp, micro_batch=grid.micro_batch,
            cp_kind=cut.cp_kind, ep=cut.ep, etp=cut.etp, sequence_parallel=cut.sequence_parallel,
            zero=self.zero, vpp=pipeline.vpp,
            schedule=None if pipeline.schedule == "none" else pipeline.schedule,
            **others,
        )  # fmt: skip
