"""What a pipeline rank holds at each item: micro-batches in flight and messages.

A micro-batch is held from its forward to its backward; where that is split, to its weight gradient,
which needs the inputs of the linear layers. A sent message is held until a later message
from its receiver proves that it arrived: the receiver answers in a later batch than that in which
it received (see `shardwright.runtime.pipeline`, which frees by the same rule).

Which micro-batch it is makes no difference to memory, so equal situations are one `Moment`, and
moments that hold no more than another of the same kind are left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from shardwright.cost_models.pipeline.program import Program, Work, cached_program
from shardwright.specs import ActionKind, Layout, ScheduleName

_HOLDS = (ActionKind.FORWARD, ActionKind.BACKWARD_INPUT)
"""After these a micro-batch is held, after every other computation on it no more."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One computation or exchange of a rank, and what it holds meanwhile."""

    work: Work | None
    """(stage, kind) of the computation, of an overlapped pair that of its forward's stage; None
    while messages are exchanged."""
    held: tuple[tuple[int, int], ...]
    """(stage, how many micro-batches it holds), by stage, without those that it works on."""
    messages: int
    """Own sends that may not have arrived, and in an exchange what is being received. Every message
    of a pipeline is as long: the hidden states of one micro-batch, or their gradient."""

    def holds_at_least(self, other: Moment) -> bool:
        """Whether this moment needs no less memory than another of the same kind."""
        mine = dict(self.held)
        return (
            self.work == other.work
            and self.messages >= other.messages
            and all(mine.get(stage, 0) >= count for stage, count in other.held)
        )


@lru_cache(maxsize=128)
def _cached_moments(
    name: ScheduleName | None, pp: int, vpp: int, num_micro_batches: int
) -> tuple[tuple[Moment, ...], ...]:
    return moments(cached_program(name, pp, vpp, num_micro_batches, False))


def moments_of(layout: Layout) -> tuple[tuple[Moment, ...], ...]:
    """The moments of each pipeline rank of a layout; equal requests share them."""
    return _cached_moments(layout.schedule, layout.pp, layout.vpp, layout.micro_batches)


def moments(program: Program) -> tuple[tuple[Moment, ...], ...]:
    """For each rank its distinct moments at which memory may peak, in the schedule's order."""
    proofs = _proofs_of_receipt(program)
    return tuple(
        tuple(_undominated(_moments_of_rank(program, rank, proofs[rank])))
        for rank in range(program.num_ranks)
    )


def _moments_of_rank(program: Program, rank: int, proofs: dict[int, list[int]]) -> list[Moment]:
    held: Counter[int] = Counter()
    num_sent = 0
    found: dict[Moment, None] = {}
    for index, item in enumerate(program.items[rank]):
        if item.work < 0:
            num_sent += len(item.posted) - len(item.received)
            found[Moment(None, _in_flight(held), num_sent + len(item.received))] = None
            num_sent -= len(proofs.get(index, ()))
            continue
        parts = item.actions[0].parts or item.actions
        held.subtract(part.stage for part in parts if part.kind is not ActionKind.FORWARD)
        found[Moment(program.works[item.work], _in_flight(held), num_sent)] = None
        held.update(part.stage for part in parts if part.kind in _HOLDS)
    return list(found)


def _in_flight(held: Counter[int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((stage, count) for stage, count in held.items() if count))


def _proofs_of_receipt(program: Program) -> list[dict[int, list[int]]]:
    """For each rank and each of its batches, the own sends that the batch's messages prove."""
    received_at = {
        transfer: (rank, index)
        for rank, row in enumerate(program.items)
        for index, item in enumerate(row)
        for transfer in item.received
    }
    proofs: list[dict[int, list[int]]] = [{} for _ in program.items]
    for row in program.items:
        next_answer: dict[int, int] = {}
        for index in range(len(row) - 1, -1, -1):
            item = row[index]
            senders = {t: program.links[program.transfers[t].link][0] for t in item.received}
            for transfer, sender in senders.items():
                if sender in next_answer:
                    _, batch = received_at[next_answer[sender]]
                    proofs[sender].setdefault(batch, []).append(transfer)
            for transfer in item.posted:
                if transfer not in senders:
                    next_answer[received_at[transfer][0]] = transfer
    return proofs


def _undominated(found: list[Moment]) -> list[Moment]:
    return [
        moment
        for moment in found
        if not any(other is not moment and other.holds_at_least(moment) for other in found)
    ]
