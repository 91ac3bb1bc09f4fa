"""`StackChoices`: everything that is decided about a layout on a software stack.

Decided in steps, each of which narrows the price down: how a layer is cut and the ranks that share
and repeat it, what is sharded over copies, the pipeline, and last where its stages start and what
each recomputes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwright.planner.layout_text import CP_KINDS, RANK_ORDERS, SCHEDULES, recompute_from
from shardwright.planner.problem import Problem
from shardwright.specs import Layout
from shardwright.specs.layout import UNSPLIT


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


class State(NamedTuple):
    """What is sharded over copies of the model, what is in host memory, and how copies lie."""

    zero: int
    shard_degree: int
    """Ranks that share one copy; 1 where zero is 0."""
    expert_shard_degree: int
    reshard: bool
    """ZeRO 3: weights are gathered again for backward."""
    offload: str
    """``none``, or what is offloaded, joined by +."""
    rank_order: str


class Pipeline(NamedTuple):
    """A schedule with its virtual stages per rank."""

    schedule: str
    """``none`` where pp = 1."""
    vpp: int


class Leaf(NamedTuple):
    """A layout but for its boundaries, its recomputation and the chunks of its loss."""

    grid: Grid
    cut: Cut
    state: State
    pipeline: Pipeline

    @property
    def is_split(self) -> bool:
        """Whether the schedule splits the backward pass."""
        return self.pipeline.schedule != "none" and self.pipeline.schedule not in UNSPLIT


_POLICIES = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class StackChoices:
    """One choice of everything."""

    grid: Grid
    cut: Cut
    state: State
    pipeline: Pipeline
    loss_chunks: int
    starts: tuple[int, ...]
    """The first unit (embedding, layers, head) of stages 1, 2, ..."""
    recompute: tuple[str, ...]
    """By stage, as `layout_text` spells policies."""

    @property
    def leaf(self) -> Leaf:
        """All but what follows from it as the best."""
        return Leaf(self.grid, self.cut, self.state, self.pipeline)

    @property
    def key(self) -> tuple[Any, ...]:
        """What orders equally good choices: the smaller key is the plainer layout."""
        grid, cut, state = self.grid, self.cut, self.state
        heaviest = max(_POLICIES.index(one.partition(":")[0]) for one in self.recompute)
        return (
            *(grid.tp, grid.cp, grid.pp, self.pipeline.vpp, grid.dp, cut.ep, cut.etp),
            *(grid.micro_batch, state.zero, int(cut.sequence_parallel), heaviest),
            *(state.offload != "none", state.offload, -state.shard_degree, not state.reshard),
            *(RANK_ORDERS.index(state.rank_order), CP_KINDS.index(cut.cp_kind)),
            *(("none", *SCHEDULES).index(self.pipeline.schedule), self.loss_chunks),
            *(self.recompute, self.starts),
        )

    def layout(self, problem: Problem, others: Mapping[str, Any]) -> Layout:
        """The layout; ``others``: fields that are not searched."""
        grid, pipeline = self.grid, self.pipeline
        return Layout.of(
            problem.model, problem.training,
            boundaries=tuple(unit - 1 for unit in self.starts),
            recompute=recompute_from("/".join(self.recompute), grid.pp * pipeline.vpp),
            tp=grid.tp, cp=grid.cp, pp=grid.pp, dp=grid.dp, micro_batch=grid.micro_batch,
            vpp=pipeline.vpp, loss_chunks=self.loss_chunks,
            schedule=None if pipeline.schedule == "none" else pipeline.schedule,
            **cut_fields(self.cut), **state_fields(self.state), **others,
        )  # fmt: skip


def cut_fields(cut: Cut) -> dict[str, Any]:
    """As `Layout.of` takes them."""
    return {
        "sequence_parallel": cut.sequence_parallel, "cp_kind": cut.cp_kind, "ep": cut.ep,
        "etp": cut.etp,
    }  # fmt: skip


def state_fields(state: State) -> dict[str, Any]:
    """As `Layout.of` takes them."""
    return {
        "zero": state.zero,
        "zero_shard_degree": state.shard_degree,
        "expert_zero_shard_degree": state.expert_shard_degree,
        "reshard_after_forward": state.reshard,
        "offload": () if state.offload == "none" else tuple(state.offload.split("+")),
        "rank_order": state.rank_order,
    }
