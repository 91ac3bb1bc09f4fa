"""A layout whose boundaries and recomputation are open, solved in the order of bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from shardwright.cost_models.pipeline.fast import in_flight
from shardwright.planner.stacks.bounds import ShapeWork
from shardwright.planner.stacks.choices import Leaf, StackChoices
from shardwright.planner.stacks.interleaving import Interleaving
from shardwright.planner.stacks.partition import Partition, Split
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.stages import Place, StagePricer
from shardwright.specs import ScheduleName


class LeafSolver:
    """The ways to complete a leaf, best bound first."""

    def __init__(
        self, prices: StackPrices, stages: StagePricer, leaf: Leaf, work: ShapeWork,
        limit: Callable[[], float],
    ) -> None:  # fmt: skip
        """``stages``: of this leaf, or of another that only differs in its pipeline. ``limit``: a
        step that need not be reached; it only falls."""
        self._prices, self._leaf, self._work, self._limit = prices, leaf, work, limit
        self._stages = stages
        self._splits: Iterator[Split] | None = None
        self._seen: set[tuple[object, ...]] = set()

    def next_split(self) -> Split | None:
        """The next in the order of bounds; None where none is left below the limit."""
        if self._splits is None:
            self._splits = self._start()
        for split in self._splits:
            key = (split.starts, split.options)
            if key not in self._seen:
                self._seen.add(key)
                return split
        return None

    def refuse(self, split: Split, ranks: list[int]) -> None:
        """These ranks did not fit in exact books: start anew without what they held."""
        if self._has_one_stage:
            edges = (0, *split.starts, self._stages.num_units)
            places = self._places()
            for rank in ranks:
                self._stages.refuse(places[rank], edges[rank], edges[rank + 1], split.options[rank])
            self._splits = None

    def choices(self, split: Split) -> StackChoices:
        """A way to complete the leaf, as choices."""
        leaf = self._leaf
        return StackChoices(
            leaf.grid, leaf.cut, leaf.state, leaf.pipeline,
            split.options[-1].loss_chunks, split.starts,
            tuple(option.recompute for option in split.options),
        )  # fmt: skip

    @property
    def _has_one_stage(self) -> bool:
        return self._leaf.pipeline.vpp == 1

    def _start(self) -> Iterator[Split]:
        if not self._has_one_stage:
            return self._below_limit()
        messages_s = () if self._leaf.grid.pp == 1 else self._messages_s
        return Partition(
            self._stages, self._places(), self._leaf.grid.num_microbatches, messages_s,
            is_split=self._leaf.is_split, blocks_on_messages=self._blocks_on_messages,
            fixed=self._prices.fixed_starts(self._leaf), limit=self._limit,
        ).splits()  # fmt: skip

    def _below_limit(self) -> Iterator[Split]:
        for split in self._interleaving().splits():
            if split.bound_s >= self._limit():
                return
            yield split

    def _interleaving(self) -> Interleaving:
        leaf, work = self._leaf, self._work
        has_pairs = leaf.pipeline.schedule == ScheduleName.DUALPIPE_V
        return Interleaving(
            self._stages, leaf.grid, leaf.pipeline, self._messages_s,
            blocks_on_messages=self._blocks_on_messages, ways=self._prices.ways_to_split(leaf),
            policies=self._policies(), loss_chunks=self._prices.space.loss_chunks,
            overlap_ratio=work.overlap_ratio if has_pairs else 1.0, limit=self._limit,
        )  # fmt: skip

    @property
    def _blocks_on_messages(self) -> bool:
        return not self._prices.pricer.software.overlap_messages

    @cached_property
    def _messages_s(self) -> tuple[float, ...]:
        return self._prices.messages_s(self._leaf)

    def _policies(self) -> list[list[str]]:
        """Of each rank; what is fixed for all stages is spelled out for each."""
        space, count = self._prices.space, self._leaf.grid.pp * self._leaf.pipeline.vpp
        policies = space.recomputes
        if "recompute" in space.fixed:
            policies = [one if "/" in one else "/".join([one] * count) for one in policies]
        return [policies] * self._leaf.grid.pp

    def _places(self) -> tuple[Place, ...]:
        pp, m = self._leaf.grid.pp, self._leaf.grid.num_microbatches
        held = [1]
        if pp > 1:
            name = ScheduleName(self._leaf.pipeline.schedule)
            flights = in_flight(name, pp=pp, vpp=1, num_micro_batches=m)
            held = [max(counts[0] for counts in moments) for moments in flights]
        fixed = str(self._prices.space.fixed.get("recompute", ""))
        policies: list[str | None] = [None] * pp
        if "/" in fixed and fixed.count("/") == pp - 1:
            policies = list(fixed.split("/"))
        last = pp - 1
        return tuple(
            Place(count, (i > 0) + (i < last), (i > 0) - (i < last), policies[i])
            for i, count in enumerate(held)
        )
