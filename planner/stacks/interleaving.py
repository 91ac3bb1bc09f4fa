"""Where stages start, and what each rank recomputes, where a rank has several stages.

Of few ways to split all are looked at; of many, the one with the shortest busiest stage, and the
most even one. All stages of a rank recompute alike, as little as lets the rank fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from shardwright.cost_models.pipeline.fast import in_flight
from shardwright.cost_models.pipeline.orders import ranks_of_stages
from shardwright.planner.stacks.choices import Grid, Pipeline
from shardwright.planner.stacks.partition import Split
from shardwright.planner.stacks.rooms import SLACK
from shardwright.planner.stacks.stages import (
    Option,
    Place,
    RankPart,
    StagePricer,
    is_least,
    least_count,
)
from shardwright.specs import ScheduleName
from shardwright.specs.layout import UNSPLIT


class Interleaving:
    """The ways to split one layout whose ranks have several stages each."""

    def __init__(
        self,
        stages: StagePricer,
        grid: Grid,
        pipeline: Pipeline,
        messages_s: tuple[float, ...],
        *,
        blocks_on_messages: bool,
        ways: Sequence[tuple[int, ...]],
        policies: Sequence[Sequence[str]],
        loss_chunks: Sequence[int],
        overlap_ratio: float,
        limit: Callable[[], float],
    ) -> None:
        """``ways``: to split, the first unit of stages 1, 2, ... ``policies``: of each rank, those
        that are open. ``overlap_ratio``: the least that an overlapped pair takes of both passes'
        seconds. ``limit``: a step that need not be reached; it only falls."""
        name = ScheduleName(pipeline.schedule)
        self._stages, self._grid, self._name = stages, grid, name
        self._messages_s, self._blocks, self._ways = messages_s, blocks_on_messages, ways
        self._policies, self._chunks = policies, loss_chunks
        self._overlap_ratio, self._limit = overlap_ratio, limit
        self._num_stages = grid.pp * pipeline.vpp
        self._ranks = ranks_of_stages(name, grid.pp, pipeline.vpp)
        count = grid.num_microbatches
        self._pipeline, self._count = pipeline, count

    @cached_property
    def _own(self) -> list[list[int]]:
        """Stages of each rank."""
        found: list[list[int]] = [[] for _ in range(self._grid.pp)]
        for stage, rank in enumerate(self._ranks):
            found[rank].append(stage)
        return found

    @cached_property
    def _moments(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        vpp, pp = self._pipeline.vpp, self._grid.pp
        return in_flight(self._name, pp=pp, vpp=vpp, num_micro_batches=self._count)

    def splits(self) -> list[Split]:
        """In the order of their bounds."""
        found = []
        for starts in self._ways:
            options = self._options((0, *starts, self._stages.num_units))
            if options is not None:
                found.append(Split(self._bound_s(starts, options), starts, options))
        return sorted(found, key=lambda one: (one.bound_s, one.starts))

    # One way to split

    def _options(self, edges: tuple[int, ...]) -> tuple[Option, ...] | None:
        """Of each stage; None where a rank does not fit or cannot be below the limit."""
        found: dict[int, Option] = {}
        passed_s = 0.0
        for rank, own in enumerate(self._own):
            best = min(
                self._fitting(edges, rank, own),
                key=lambda options: sum(one.total_s for one in options), default=None,
            )  # fmt: skip
            if best is None or passed_s + self._work_s(best) >= self._limit():
                return None
            passed_s += best[0].total_s if self._name in UNSPLIT else best[0].forward_s
            found |= dict(zip(own, best, strict=True))
        return tuple(found[stage] for stage in range(self._num_stages))

    def _work_s(self, options: Sequence[Option]) -> float:
        """Of a rank with all micro-batches."""
        total_s = sum(one.total_s for one in options)
        return self._grid.num_microbatches * self._overlap_ratio * total_s * (1 - SLACK)

    def _fitting(
        self, edges: tuple[int, ...], rank: int, own: Sequence[int]
    ) -> Iterator[tuple[Option, ...]]:
        has_head = self._num_stages - 1 in own
        for policy in self._policies[rank]:
            before = None
            for chunks in self._chunks if has_head else self._chunks[:1]:
                least = self._least(edges, rank, own, policy, chunks)
                if least is None or (least == before and not self._stages.moves_activations):
                    continue
                before = least
                yield tuple(
                    self._stages.option(
                        self._place(stage), edges[stage], edges[stage + 1],
                        _of_stage(least, edges, stage),
                        chunks if stage == self._num_stages - 1 else self._chunks[0],
                    )
                    for stage in own
                )  # fmt: skip
                if is_least(least) and not self._stages.moves_activations:
                    break

    def _least(
        self, edges: tuple[int, ...], rank: int, own: Sequence[int], policy: str, chunks: int
    ) -> str | None:
        """As few layers of each stage as let the rank fit; None where it cannot."""
        if self._needed_bytes(edges, rank, own, policy, chunks) > self._stages.room_bytes:
            return None
        may_be_partial = all(
            self._stages.may_be_partial(*edges[stage : stage + 2]) for stage in own
        )
        if policy != "full" or not may_be_partial:
            return policy
        most = max(_num_layers(edges, stage) for stage in own)
        if most == 0:
            return policy

        def lacking(count: int) -> float:
            needed = self._needed_bytes(edges, rank, own, f"full:{count}", chunks)
            return needed - self._stages.room_bytes

        count = least_count(lacking, most)
        return policy if count == most else f"full:{count}"

    def _needed_bytes(
        self, edges: tuple[int, ...], rank: int, own: Sequence[int], policy: str, chunks: int
    ) -> float:
        parts: list[RankPart] = []
        for stage in own:
            text = _of_stage(policy, edges, stage)
            if text.startswith("full:") and int(text[5:]) > _num_layers(edges, stage):
                return math.inf
            is_last = stage == self._num_stages - 1
            parts.append(self._stages.rank_part(
                (stage > 0) - (not is_last), edges[stage], edges[stage + 1], text,
                chunks if is_last else self._chunks[0],
            ))  # fmt: skip
        return self._stages.rank_bytes(parts, self._moments[rank])

    def _place(self, stage: int) -> Place:
        last = self._num_stages - 1
        return Place(0, (stage > 0) + (stage < last), (stage > 0) - (stage < last))

    # Its bound

    def _bound_s(self, starts: tuple[int, ...], options: tuple[Option, ...]) -> float:
        """The longest of the paths that `partition` names; a rank's first stage is stage r."""
        m, edges = self._grid.num_microbatches, (0, *starts, self._stages.num_units)
        is_unsplit = self._name in UNSPLIT
        sent = [*self._messages_s, 0.0]
        if not self._blocks:
            sent = [0.0] * self._num_stages
        forward = [one.forward_s + sent[i] for i, one in enumerate(options)]
        backward = [one.backward_s + (sent[i - 1] if i else 0.0) for i, one in enumerate(options)]
        own_s = [
            m * self._overlap_ratio * sum(forward[i] + backward[i] for i in own)
            for own in self._own
        ]
        after = [[self._stages.after(*edges[i : i + 2]) for i in own] for own in self._own]
        passed_s = 0.0
        worst_s = 0.0
        for rank, ends in enumerate(after):
            end_s = own_s[rank] + passed_s + sum(one.optimizer_s for one in ends)
            end_s += max(one.publish_s for one in ends)
            worst_s = max(worst_s, end_s)
            passed_s += forward[rank] + self._messages_s[rank] * (not self._blocks)
            passed_s += backward[rank] * is_unsplit
        way = [f + (b if is_unsplit else o.input_s) for f, b, o in zip(
            forward, backward, options, strict=True
        )]  # fmt: skip
        return max(worst_s, self._overlap_ratio * sum(way)) * (1 - SLACK)


def _of_stage(policy: str, edges: tuple[int, ...], stage: int) -> str:
    """A rank's policy on one of its stages: of ``full:k``, no more layers than it has."""
    if "/" in policy:
        return policy.split("/")[stage]
    if not policy.startswith("full:"):
        return policy
    count = min(int(policy.partition(":")[2]), _num_layers(edges, stage))
    return f"full:{count}" if count else "none"


def _num_layers(edges: tuple[int, ...], stage: int) -> int:
    return min(edges[stage + 1], edges[-1] - 1) - max(edges[stage], 1)
