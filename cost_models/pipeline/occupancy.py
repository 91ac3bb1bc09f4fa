"""What a pipeline rank holds at each item: micro-batches in flight and messages.

A micro-batch is held from its forward to its backward. Where that is split, it is held to its input
gradient, and from there to its weight gradient what the latter needs. The parts of an overlapped
pair run one after the other, as our runtime runs them. A message is held from the computation that
makes it, or from the batch that posts its receive, until it is read; a sent one until a later
message from its receiver proves that it arrived (`messages.proofs_of_receipt`, by which the runtime
frees it).

Which micro-batch it is makes no difference to memory, so equal situations are one `Moment`, and
moments that hold no more than another of the same kind are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from shardwright.cost_models.pipeline.messages import (
    COMPUTATIONS,
    Item,
    message_of,
    posted_items,
    proofs_of_receipt,
    ranks_of_stages,
    readers_of,
    receive_of,
)
from shardwright.cost_models.pipeline.program import Work
from shardwright.cost_models.pipeline.schedules import build_schedule, sequential_schedule
from shardwright.specs import Action, ActionKind, Layout, Schedule, ScheduleName

Counts = tuple[tuple[int, int], ...]
"""(stage, how many micro-batches), by stage."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One computation or exchange of a rank, and what it holds meanwhile."""

    work: Work | None
    """(stage, kind) of the computation; None while messages are exchanged."""
    held: Counts
    """Between forward and backward, without the one that it works on."""
    messages: int
    """Own outputs and sends that may not have arrived, and what was received and is not read yet
    (or may be being received). Every message of a pipeline is as long: the hidden states of one
    micro-batch, or their gradient."""
    deferred: Counts = ()
    """Between input and weight gradient, without the one that it works on."""

    def holds_at_least(self, other: Moment) -> bool:
        """Whether this moment needs no less memory than another of the same kind."""
        return (
            self.work == other.work
            and self.messages >= other.messages
            and _covers(self.held, other.held)
            and _covers(self.deferred, other.deferred)
        )


def _covers(counts: Counts, others: Counts) -> bool:
    mine = dict(counts)
    return all(mine.get(stage, 0) >= count for stage, count in others)


@lru_cache(maxsize=128)
def _cached_moments(
    name: ScheduleName | None, pp: int, vpp: int, num_micro_batches: int
) -> tuple[tuple[Moment, ...], ...]:
    if name is None:
        return moments(sequential_schedule(num_micro_batches))
    return moments(build_schedule(name, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches))


def moments_of(layout: Layout) -> tuple[tuple[Moment, ...], ...]:
    """The moments of each pipeline rank of a layout; equal requests share them."""
    return _cached_moments(layout.schedule, layout.pp, layout.vpp, layout.micro_batches)


def moments(schedule: Schedule) -> tuple[tuple[Moment, ...], ...]:
    """For each rank its distinct moments at which memory may peak, in the schedule's order."""
    items = posted_items(schedule)
    rank_of_stage = ranks_of_stages(schedule)
    found = []
    for rank, row in enumerate(items):
        proofs = proofs_of_receipt(items, rank_of_stage, rank)
        own = frozenset(stage for stage, home in enumerate(rank_of_stage) if home == rank)
        held = _Held(own, schedule.num_stages - 1, proofs)
        distinct = dict.fromkeys(moment for item in row for moment in held.go_on(item))
        found.append(tuple(_undominated(list(distinct))))
    return tuple(found)


@dataclass(slots=True)
class _Held:
    """What one rank holds as it goes through its items."""

    stages: frozenset[int]
    last_stage: int
    proofs: Mapping[Action, Sequence[Action]]
    flights: Counter[int] = field(default_factory=Counter)
    deferred: Counter[int] = field(default_factory=Counter)
    messages: set[Action] = field(default_factory=set)
    """Sends that may not have arrived, by the send; messages to be read, by their receive."""

    def go_on(self, item: Item) -> Iterator[Moment]:
        """The moments of one item, which changes what is held."""
        if item[0].kind not in COMPUTATIONS:
            self.messages.update(item)
            yield self._moment(None)
            return
        for part in item[0].parts or item:
            yield self._compute(part)

    def _compute(self, part: Action) -> Moment:
        for receive in readers_of((part,)):
            self.messages.discard(receive)
            self.messages.difference_update(self.proofs.get(receive, ()))
        at = part.stage
        if part.kind is ActionKind.BACKWARD_WEIGHT:
            self.deferred[at] -= 1
        elif part.kind is not ActionKind.FORWARD:
            self.flights[at] -= 1
        moment = self._moment((at, part.kind))
        self.flights[at] += part.kind is ActionKind.FORWARD
        self.deferred[at] += part.kind is ActionKind.BACKWARD_INPUT
        send = message_of(part, self.last_stage)
        if send is not None:
            receive = receive_of(send)
            self.messages.add(receive if receive.stage in self.stages else send)
        return moment

    def _moment(self, work: Work | None) -> Moment:
        counts = (
            tuple(sorted((stage, n) for stage, n in counter.items() if n))
            for counter in (self.flights, self.deferred)
        )
        held, deferred = counts
        return Moment(work, held, len(self.messages), deferred)


def _undominated(found: list[Moment]) -> list[Moment]:
    return [
        moment
        for moment in found
        if not any(other is not moment and other.holds_at_least(moment) for other in found)
    ]
