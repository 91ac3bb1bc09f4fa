"""A `Schedule` compiled once for simulation: items of each rank, transfers, an executable order.

Transfers that stand next to each other in a rank's row are one *batch*: they are posted together. A
transfer begins when both its ends have posted it and the one before it on the same link (sender,
receiver) is over. A rank goes on when the batch's receives are done; its sends are asynchronous
unless the software blocks on them. Durations decide when things happen but never in which order a
rank does them, so one order of execution, found here, serves every set of durations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from shardwright.cost_models.pipeline.schedules import build_schedule, sequential_schedule
from shardwright.specs import Action, ActionKind, InputError, Layout, Schedule, ScheduleName

Work = tuple[int, ActionKind]
"""(virtual stage, kind) of a computation; or of a send, which stands for its transfer. The stage of
an overlapped pair is that of its forward."""

COMPUTATIONS = frozenset(
    {
        ActionKind.FORWARD,
        ActionKind.BACKWARD,
        ActionKind.BACKWARD_INPUT,
        ActionKind.BACKWARD_WEIGHT,
        ActionKind.OVERLAP_F_B,
    }
)
_SEND_OF_RECEIVE = {
    ActionKind.RECV_FORWARD: (ActionKind.SEND_FORWARD, -1),
    ActionKind.RECV_BACKWARD: (ActionKind.SEND_BACKWARD, 1),
}


@dataclass(frozen=True, slots=True)
class Item:
    """One computation (``work`` >= 0) or one batch of transfers (``work`` = -1) of a rank."""

    actions: tuple[Action, ...]
    work: int
    """Index into `Program.works`."""
    posted: tuple[int, ...] = ()
    """Transfers of the batch."""
    received: tuple[int, ...] = ()
    """Those of them that this rank receives."""
    awaited: tuple[int, ...] = ()
    """Those of them that must be over before the rank goes on."""

    @property
    def sent(self) -> tuple[int, ...]:
        """Those of them that this rank sends."""
        return tuple(transfer for transfer in self.posted if transfer not in self.received)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message."""

    work: int
    """Index into `Program.sends`."""
    link: int
    """Index into `Program.links`."""


@dataclass(frozen=True, slots=True)
class Program:
    """What `simulate` runs."""

    items: tuple[tuple[Item, ...], ...]
    """Of each pipeline rank."""
    transfers: tuple[Transfer, ...]
    works: tuple[Work, ...]
    sends: tuple[Work, ...]
    links: tuple[tuple[int, int], ...]
    """(sending rank, receiving rank)."""
    steps: tuple[tuple[int, int], ...]
    """(rank, item) in an order in which every message that an item awaits was posted before it is
    over. A batch stands there twice: when it is posted and when it is over."""
    receives_ahead: bool = False
    """Whether every receive counts as posted from the start."""

    @property
    def num_ranks(self) -> int:
        return len(self.items)


def compile_schedule(
    schedule: Schedule, *, sends_block: bool = False, receives_ahead: bool = False
) -> Program:
    """The program of a schedule without violations.

    ``sends_block``: a rank also waits until what it sends has arrived. ``receives_ahead``: a
    transfer begins when it is sent, whether or not the receiver has come that far: its buffers
    were posted long before, so the wire is used while the receiver computes.

    Raises:
        ValueError: a rank waits for a message that no rank sends before it waits itself.
    """
    rank_of_stage = {
        part.stage: rank
        for rank, row in enumerate(schedule.ranks)
        for action in row
        for part in action.parts or (action,)
    }
    messages = list(_messages(schedule))
    transfer_of = {key: index for index, key in enumerate(messages)}
    works = tuple(sorted({(a.stage, a.kind) for a in _computations(schedule)}))
    sends = tuple(sorted({(stage, kind) for stage, kind, _ in messages}))
    ends = [(rank_of_stage[s], rank_of_stage[_receiver(s, kind)]) for s, kind, _ in messages]
    links = sorted(set(ends))
    transfers = tuple(
        Transfer(sends.index((stage, kind)), links.index(link))
        for (stage, kind, _), link in zip(messages, ends, strict=True)
    )
    work_of = {work: index for index, work in enumerate(works)}
    items = tuple(tuple(_items(row, work_of, transfer_of, sends_block)) for row in schedule.ranks)
    steps = tuple(_steps(items))
    return Program(items, transfers, works, sends, tuple(links), steps, receives_ahead)


@lru_cache(maxsize=128)
def cached_program(
    name: ScheduleName | None, pp: int, vpp: int, num_micro_batches: int, sends_block: bool = False
) -> Program:
    """The compiled schedule of that name (null: none, without a pipeline); built once."""
    if name is None:
        return compile_schedule(sequential_schedule(num_micro_batches))
    schedule = build_schedule(name, pp=pp, vpp=vpp, num_micro_batches=num_micro_batches)
    return compile_schedule(schedule, sends_block=sends_block)


def program_of(layout: Layout, *, sends_block: bool = False) -> Program:
    """The compiled `schedule_of` a layout; equal requests share one."""
    return cached_program(layout.schedule, layout.pp, layout.vpp, layout.micro_batches, sends_block)


def pairs_of(program: Program) -> dict[int, int]:
    """The stage of the backward beside the forward of each stage, in overlapped pairs.

    Raises:
        InputError: a stage's forward has backwards of several stages beside it.
    """
    found: dict[int, int] = {}
    parts = (action.parts for row in program.items for item in row for action in item.actions)
    for forward, backward in filter(None, parts):
        if found.setdefault(forward.stage, backward.stage) != backward.stage:
            raise InputError(
                f"forwards of stage {forward.stage} overlap backwards of the stages"
                f" {found[forward.stage]} and {backward.stage}",
                why="a pair is priced by the stage of its forward",
                fix="pair each stage's forwards with backwards of one stage",
            )
    return found


def _computations(schedule: Schedule) -> Iterator[Action]:
    return (action for row in schedule.ranks for action in row if action.kind in COMPUTATIONS)


def _messages(schedule: Schedule) -> Iterator[tuple[int, ActionKind, int | None]]:
    for row in schedule.ranks:
        for action in row:
            if action.kind in (ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD):
                yield action.stage, action.kind, action.micro_batch


def _receiver(stage: int, kind: ActionKind) -> int:
    return stage + 1 if kind is ActionKind.SEND_FORWARD else stage - 1


def _items(
    row: tuple[Action, ...],
    work_of: dict[Work, int],
    transfer_of: dict[tuple[int, ActionKind, int | None], int],
    sends_block: bool,
) -> Iterator[Item]:
    for is_computation, run in groupby(row, key=lambda action: action.kind in COMPUTATIONS):
        if is_computation:
            for action in run:
                yield Item((action,), work_of[action.stage, action.kind])
            continue
        batch = tuple(run)
        posted, received = [], []
        for action in batch:
            kind, offset = _SEND_OF_RECEIVE.get(action.kind, (action.kind, 0))
            transfer = transfer_of[action.stage + offset, kind, action.micro_batch]
            posted.append(transfer)
            if offset:
                received.append(transfer)
        awaited = posted if sends_block else received
        yield Item(batch, -1, tuple(posted), tuple(received), tuple(awaited))


def _steps(items: tuple[tuple[Item, ...], ...]) -> Iterator[tuple[int, int]]:
    """Run each rank as far as it gets, in turn, until all are done."""
    at = [0] * len(items)
    is_posted = [False] * len(items)
    ends_posted: Counter[int] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(items):
            while at[rank] < len(row):
                item = row[at[rank]]
                if item.work < 0 and not is_posted[rank]:
                    ends_posted.update(item.posted)
                    is_posted[rank] = True
                    yield rank, at[rank]
                elif all(ends_posted[transfer] == 2 for transfer in item.awaited):
                    is_posted[rank] = False
                    yield rank, at[rank]
                    at[rank] += 1
                else:
                    break
                moved = True
    if any(position < len(row) for position, row in zip(at, items, strict=True)):
        raise ValueError("the schedule deadlocks: a rank waits for a message that is never sent")
