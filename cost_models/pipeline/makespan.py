"""How long a compiled schedule takes with unequal stages, transfers and shared cores.

Without sharing the answer is the longest path through the items, in O(items). Where ranks share
cores, every computation progresses at the rate 1 / (its duration with b busy ranks on its node),
where b changes as neighbours start and stop: a rank that waits gives its core to the others.

Each pipeline rank stands for the tp x cp x dp equal ranks of its stage.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardwright.cost_models.pipeline.program import Program, Work
from shardwright.specs import Action

Seconds = tuple[float, ...]
"""Seconds of one computation by level of business: one entry for each of `SharedCores.levels`, a
single entry where nothing is shared."""

_TOLERANCE = 1e-12
"""Relative: events closer than this are one."""


@dataclass(frozen=True)
class SharedCores:
    """Which ranks compute on the same node, and so slow each other down.

    ``nodes``: for each node that a stage has ranks on, pairs (pipeline rank, how many of its ranks
    are there).
    """

    nodes: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, *, pp: int, ranks_per_stage: int, ranks_per_node: int) -> SharedCores:
        """Ranks fill nodes in order, all ranks of a stage next to each other."""
        nodes: dict[int, dict[int, int]] = {}
        for rank in range(pp * ranks_per_stage):
            counts = nodes.setdefault(rank // ranks_per_node, {})
            stage = rank // ranks_per_stage
            counts[stage] = counts.get(stage, 0) + 1
        distinct = dict.fromkeys(tuple(counts.items()) for counts in nodes.values())
        return cls(tuple(distinct))

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Every number of busy ranks that a node can have, ascending."""
        sums: set[int] = set()
        for node in self.nodes:
            of_node = {0}
            for _, count in node:
                of_node |= {total + count for total in of_node}
            sums |= of_node
        return tuple(sorted(sums - {0}))

    @property
    def is_coupled(self) -> bool:
        """Whether any node serves more than one pipeline rank."""
        return any(len(node) > 1 for node in self.nodes)

    def level_indices(self, busy: Sequence[bool]) -> list[int]:
        """For each busy pipeline rank the index of its fullest node's level; others 0."""
        most = [0] * len(busy)
        for node in self.nodes:
            total = sum(count for rank, count in node if busy[rank])
            for rank, _ in node:
                most[rank] = max(most[rank], total)
        index_of = self._index_of
        return [
            index_of[count] if is_busy else 0 for count, is_busy in zip(most, busy, strict=True)
        ]

    @cached_property
    def _index_of(self) -> dict[int, int]:
        return {count: index for index, count in enumerate(self.levels)}


@dataclass(frozen=True, slots=True)
class PipelineCosts:
    """What `simulate` needs to know beside the program."""

    work_s: Mapping[Work, Seconds]
    """Of every computation, by (stage, kind); of an overlapped pair, by its forward's stage."""
    transfer_s: Mapping[Work, float]
    """Of every message, by the (stage, SEND kind) of its sender."""
    shared: SharedCores | None = None


@dataclass(frozen=True, slots=True)
class RankTime:
    """How one pipeline rank spends the makespan: work, waiting for a wire, waiting for a peer."""

    elapsed_s: Mapping[Work, Seconds]
    """Seconds in which it computed, by (stage, kind) and level of business."""
    transfer_s: float
    """Waiting while its message was on the wire."""
    idle_s: float
    """Waiting for another rank's work, also before its first and after its last item."""

    @property
    def busy_s(self) -> float:
        return sum(sum(seconds) for seconds in self.elapsed_s.values())


@dataclass(frozen=True, slots=True)
class Span:
    """When an action ran. The actions of one batch of transfers share a span."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happens when."""

    program: Program
    makespan_s: float
    ranks: tuple[RankTime, ...]
    ends_s: tuple[tuple[float, ...], ...]
    """When each item of each rank is over; it starts when the one before it is over."""

    def spans(self, rank: int) -> list[Span]:
        """Every action of a pipeline rank with its time."""
        start_s = 0.0
        found = []
        for item, end_s in zip(self.program.items[rank], self.ends_s[rank], strict=True):
            found += [Span(action, start_s, end_s) for action in item.actions]
            start_s = end_s
        return found


def simulate(program: Program, costs: PipelineCosts) -> Timeline:
    """Run a program from a common start to its last item."""
    if costs.shared is not None and costs.shared.is_coupled:
        return _Shared(program, costs, costs.shared).run()
    return _longest_path(program, costs)


class _Books:
    """What both simulators write down."""

    def __init__(self, program: Program, costs: PipelineCosts) -> None:
        self.program = program
        ranks = range(program.num_ranks)
        self.work_s = [costs.work_s[work] for work in program.works]
        self.transfer_s = [costs.transfer_s[program.sends[t.work]] for t in program.transfers]
        self.ends_s: list[list[float]] = [[] for _ in ranks]
        self.elapsed_s = [[[0.0] * len(seconds) for seconds in self.work_s] for _ in ranks]
        self.waited_s = [0.0 for _ in ranks]
        """For wires."""

    def finish_batch(self, rank: int, start_s: float, end_s: float, last: int) -> None:
        """A rank waited from start to end, at last for transfer ``last`` (-1: for none)."""
        if last >= 0:
            self.waited_s[rank] += min(end_s - start_s, self.transfer_s[last])
        self.ends_s[rank].append(end_s)

    def timeline(self) -> Timeline:
        makespan_s = max(ends[-1] for ends in self.ends_s)
        ranks = []
        for rank, row in enumerate(self.program.items):
            own = sorted({item.work for item in row if item.work >= 0})
            elapsed = {self.program.works[w]: tuple(self.elapsed_s[rank][w]) for w in own}
            busy_s = sum(sum(seconds) for seconds in elapsed.values())
            idle_s = max(0.0, makespan_s - busy_s - self.waited_s[rank])
            ranks.append(RankTime(elapsed, self.waited_s[rank], idle_s))
        ends = tuple(map(tuple, self.ends_s))
        return Timeline(self.program, makespan_s, tuple(ranks), ends)


def _longest_path(program: Program, costs: PipelineCosts) -> Timeline:
    books = _Books(program, costs)
    levels = _constant_levels(program, costs)
    transfer_s, ends_s = books.transfer_s, books.ends_s
    now_s = [0.0] * program.num_ranks
    posted_s: list[float] = [-1.0] * len(program.transfers)
    arrival_s = [0.0] * len(program.transfers)
    free_s = [0.0] * len(program.links)
    open_batches: set[int] = set()
    ahead = program.receives_ahead
    for rank, index in program.steps:
        item = program.items[rank][index]
        start_s = now_s[rank]
        if item.work >= 0:
            seconds = books.work_s[item.work][levels[rank]]
            now_s[rank] = start_s + seconds
            ends_s[rank].append(now_s[rank])
            books.elapsed_s[rank][item.work][levels[rank]] += seconds
        elif rank not in open_batches:
            open_batches.add(rank)
            for transfer in item.sent if ahead else item.posted:
                if posted_s[transfer] < 0 and not ahead:
                    posted_s[transfer] = start_s
                    continue
                link = program.transfers[transfer].link
                begin_s = max(posted_s[transfer], start_s, free_s[link])
                arrival_s[transfer] = free_s[link] = begin_s + transfer_s[transfer]
        else:
            open_batches.remove(rank)
            last = max(item.awaited, key=arrival_s.__getitem__, default=-1)
            end_s = max(start_s, arrival_s[last]) if last >= 0 else start_s
            books.finish_batch(rank, start_s, end_s, last)
            now_s[rank] = end_s
    return books.timeline()


def _constant_levels(program: Program, costs: PipelineCosts) -> list[int]:
    """The level of each pipeline rank where no other rank's work can change it."""
    if costs.shared is None:
        return [0] * program.num_ranks
    return costs.shared.level_indices([True] * program.num_ranks)


class _Shared:
    """Discrete events: a computation or a transfer is over, and what that sets going."""

    def __init__(self, program: Program, costs: PipelineCosts, shared: SharedCores) -> None:
        self.program, self.shared = program, shared
        self.books = _Books(program, costs)
        self.now_s = 0.0
        self.at = [0] * program.num_ranks
        self.batch_start_s = [0.0] * program.num_ranks
        self.left = [0.0] * program.num_ranks
        """Fraction of the current computation that is still to do."""
        self.busy = [False] * program.num_ranks
        self.awaited: list[set[int]] = [set() for _ in range(program.num_ranks)]
        self.waiters: dict[int, list[int]] = {}
        self.ends_posted = [0] * len(program.transfers)
        self.free_s = [0.0] * len(program.links)
        self.arrivals: list[tuple[float, int]] = []
        self.arrived = [False] * len(program.transfers)

    def run(self) -> Timeline:
        for rank in range(self.program.num_ranks):
            self._begin(rank)
        while any(self.busy) or self.arrivals:
            self._advance()
        assert all(at == len(row) for at, row in zip(self.at, self.program.items, strict=True)), (
            "a compiled program cannot deadlock"
        )
        return self.books.timeline()

    def _begin(self, rank: int) -> None:
        """Start the rank's next item; batches that wait for nothing are over at once."""
        while self.at[rank] < len(self.program.items[rank]):
            item = self.program.items[rank][self.at[rank]]
            if item.work >= 0:
                self.busy[rank], self.left[rank] = True, 1.0
                return
            self.batch_start_s[rank] = self.now_s
            for transfer in item.sent if self.program.receives_ahead else item.posted:
                self._post(transfer)
            self.awaited[rank] = {t for t in item.awaited if not self.arrived[t]}
            if self.awaited[rank]:
                for transfer in self.awaited[rank]:
                    self.waiters.setdefault(transfer, []).append(rank)
                return
            self.books.finish_batch(rank, self.now_s, self.now_s, -1)
            self.at[rank] += 1

    def _post(self, transfer: int) -> None:
        self.ends_posted[transfer] += 1
        if self.ends_posted[transfer] == (1 if self.program.receives_ahead else 2):
            link = self.program.transfers[transfer].link
            begin_s = max(self.now_s, self.free_s[link])
            self.free_s[link] = begin_s + self.books.transfer_s[transfer]
            heapq.heappush(self.arrivals, (self.free_s[link], transfer))

    def _advance(self) -> None:
        """Go to the next event and handle all that is over then."""
        levels = self.shared.level_indices(self.busy)
        row = self.program.items
        works = [row[r][self.at[r]].work if busy else -1 for r, busy in enumerate(self.busy)]
        duration_s = [
            self.books.work_s[w][level] if w >= 0 else 0.0
            for w, level in zip(works, levels, strict=True)
        ]
        ends_s = [
            self.now_s + left * duration if busy else float("inf")
            for left, duration, busy in zip(self.left, duration_s, self.busy, strict=True)
        ]
        next_s = min([*ends_s, *(arrival[0] for arrival in self.arrivals[:1])])
        step_s = next_s - self.now_s
        over = []
        for rank, work in enumerate(works):
            if work < 0:
                continue
            self.books.elapsed_s[rank][work][levels[rank]] += step_s
            if ends_s[rank] <= next_s * (1 + _TOLERANCE):
                over.append(rank)
            else:
                self.left[rank] -= step_s / duration_s[rank]
        self.now_s = next_s
        self._finish_computations(over)
        self._finish_transfers()

    def _finish_computations(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.busy[rank] = False
            self.books.ends_s[rank].append(self.now_s)
            self.at[rank] += 1
        for rank in ranks:
            self._begin(rank)

    def _finish_transfers(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.now_s * (1 + _TOLERANCE):
            _, transfer = heapq.heappop(self.arrivals)
            self.arrived[transfer] = True
            for rank in self.waiters.pop(transfer, []):
                self.awaited[rank].discard(transfer)
                if not self.awaited[rank]:
                    self.books.finish_batch(rank, self.batch_start_s[rank], self.now_s, transfer)
                    self.at[rank] += 1
                    self._begin(rank)
