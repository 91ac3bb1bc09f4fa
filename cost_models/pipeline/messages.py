"""In which batches a schedule's messages are posted, so that any transport can carry them.

Gloo sends never block. On an accelerator they may: operations of one communicator run in the order
in which they were posted, and a send is over only when its receive was posted. Messages between two
ranks have no name there: the first sent meets the first receive.

`posted_items` walks the schedule under the strictest of these rules. Transfers that stand next to
each other are one batch; it is over when every message in it was met by its peer's, in the order of
sending for each pair of ranks. Where ranks would wait for each other for ever, a receive is posted
earlier, in the batch in which its rank waits, and the walk goes on. It comes to its end for every
schedule that can run at all, so the batches that it found are free of deadlock on any transport.
A receive that was posted earlier is waited for only where its message is read.

`proofs_of_receipt` says when a sent message is known to have arrived: gloo does not tell whether a
send is over, other than by waiting for it.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import groupby

from shardwright.specs import Action, ActionKind, Schedule

Item = tuple[Action, ...]
"""One computation, or a batch of transfers."""

COMPUTATIONS = frozenset({
    ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT,
    ActionKind.OVERLAP_F_B,
})  # fmt: skip
_RECEIVE_OF = {
    ActionKind.SEND_FORWARD: (ActionKind.RECV_FORWARD, 1),
    ActionKind.SEND_BACKWARD: (ActionKind.RECV_BACKWARD, -1),
}
_READS = {
    ActionKind.FORWARD: ActionKind.RECV_FORWARD,
    ActionKind.BACKWARD: ActionKind.RECV_BACKWARD,
    ActionKind.BACKWARD_INPUT: ActionKind.RECV_BACKWARD,
}
"""What a computation reads, except on the first or last stage."""
_SEND_OF = {kind: (send, -step) for send, (kind, step) in _RECEIVE_OF.items()}


def is_send(action: Action) -> bool:
    return action.kind in _RECEIVE_OF


def is_receive(action: Action) -> bool:
    return action.kind in _SEND_OF


def receive_of(send: Action) -> Action:
    """The receive that meets a send."""
    kind, step = _RECEIVE_OF[send.kind]
    return Action(send.stage + step, kind, send.micro_batch)


def send_of(receive: Action) -> Action:
    """The send that a receive meets."""
    kind, step = _SEND_OF[receive.kind]
    return Action(receive.stage + step, kind, receive.micro_batch)


def message_of(computation: Action, last_stage: int) -> Action | None:
    """The send of what a computation makes, whether or not it leaves the rank."""
    stage, m = computation.stage, computation.micro_batch
    if computation.kind is ActionKind.FORWARD and stage < last_stage:
        return Action(stage, ActionKind.SEND_FORWARD, m)
    if computation.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT) and stage > 0:
        return Action(stage, ActionKind.SEND_BACKWARD, m)
    return None


def ranks_of_stages(schedule: Schedule) -> list[int]:
    """The pipeline rank of each virtual stage, by who computes it."""
    found = {
        part.stage: rank
        for rank, row in enumerate(schedule.ranks)
        for action in row
        for part in action.parts or (action,)
    }
    return [found[stage] for stage in range(schedule.num_stages)]


def posted_items(schedule: Schedule) -> list[list[Item]]:
    """Each rank's computations and batches of transfers, in the order in which it posts them.

    Raises:
        ValueError: the schedule cannot run on any transport: a rank waits for a message that is
            never sent, or sent only after that rank went on.
    """
    walk = _Walk(schedule)
    while not walk.is_over:
        if not (walk.meet() or walk.advance() or walk.post_earlier()):
            raise ValueError(f"the schedule deadlocks: {walk.in_words()}")
    return [[walk.in_order(item) for item in row] for row in walk.rows]


def readers_of(item: Item) -> dict[Action, Action]:
    """The receives that a computation waits for, each with the part that reads it."""
    parts = item[0].parts or item
    return {
        Action(part.stage, _READS[part.kind], part.micro_batch): part
        for part in parts
        if part.kind in _READS
    }


def proofs_of_receipt(
    items: Sequence[Sequence[Item]], rank_of_stage: Sequence[int], rank: int
) -> dict[Action, list[Action]]:
    """For each receive of a rank, the own sends which that message proves to have arrived.

    A peer has a message when it computes what reads it, and sends whatever it sends later after
    that; the first of those that comes to this rank is the proof.
    """
    answers = {peer: _answers(row, rank_of_stage, rank) for peer, row in enumerate(items)}
    proofs: dict[Action, list[Action]] = {}
    for send in (action for item in items[rank] for action in item if is_send(action)):
        receive = receive_of(send)
        proof = answers[rank_of_stage[receive.stage]].get(receive)
        if proof is not None:
            proofs.setdefault(proof, []).append(send)
    return proofs


def _answers(
    row: Sequence[Item], rank_of_stage: Sequence[int], rank: int
) -> dict[Action, Action | None]:
    """For each message that a row reads, the next that it then sends to ``rank``, by its receive
    there; None where there is none."""
    found: dict[Action, Action | None] = {}
    answer: Action | None = None
    for item in reversed(row):
        if item[0].kind in COMPUTATIONS:
            found |= dict.fromkeys(readers_of(item), answer)
            continue
        for receive in map(receive_of, filter(is_send, reversed(item))):
            answer = receive if rank_of_stage[receive.stage] == rank else answer
    return found


def schedule_problems(
    schedule: Schedule, rank_of_stage: Sequence[int], num_micro_batches: int
) -> list[str]:
    """Why a schedule that somebody wrote cannot be run; nothing where it can.

    ``rank_of_stage``: where the layout puts each virtual stage.
    """
    found = (schedule.num_stages, schedule.num_micro_batches, len(schedule.ranks))
    wanted = (len(rank_of_stage), num_micro_batches, max(rank_of_stage) + 1)
    if found != wanted:
        return [
            f"it is for {found[0]} stages, {found[1]} micro-batches and {found[2]} ranks, the"
            f" layout has {wanted[0]}, {wanted[1]} and {wanted[2]}"
        ]
    problems = [*_stray_actions(schedule, rank_of_stage), *schedule.violations()]
    if problems:
        return problems
    problems = [*_missing_transfers(schedule, rank_of_stage), *_early_computations(schedule)]
    if not problems:
        try:
            posted_items(schedule)
        except ValueError as error:
            problems.append(str(error))
    return problems


def _stray_actions(schedule: Schedule, rank_of_stage: Sequence[int]) -> Iterator[str]:
    """Actions that the executor does not do, or on another rank than their stage's."""
    known = {*COMPUTATIONS, *_RECEIVE_OF, *_SEND_OF}
    parts_of_pair = (
        {ActionKind.FORWARD},
        {ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT},
    )
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            parts = action.parts or (action,)
            home = {rank_of_stage[p.stage] for p in parts if p.stage < len(rank_of_stage)}
            if action.kind not in known:
                yield f"{action} is not an action that is run"
            elif home != {rank}:
                yield f"{action} is on rank {rank} instead of its stage's"
            elif action.parts and any(
                part.kind not in kinds for part, kinds in zip(parts, parts_of_pair, strict=True)
            ):
                yield f"{action} is not a forward beside a backward"


def _missing_transfers(schedule: Schedule, rank_of_stage: Sequence[int]) -> Iterator[str]:
    """Messages between ranks that are not sent once and received once, and any others."""
    wanted: Counter[Action] = Counter()
    for first, (rank, following) in enumerate(itertools.pairwise(rank_of_stage)):
        if rank != following:
            for m in range(schedule.num_micro_batches):
                forward = Action(first, ActionKind.SEND_FORWARD, m)
                backward = Action(first + 1, ActionKind.SEND_BACKWARD, m)
                wanted.update((forward, backward, receive_of(forward), receive_of(backward)))
    found = Counter(a for row in schedule.ranks for a in row if is_send(a) or is_receive(a))
    for action in sorted({*wanted, *found}, key=str):
        if found[action] != wanted[action]:
            yield f"{action} comes {found[action]} times instead of {wanted[action]}"


def _early_computations(schedule: Schedule) -> Iterator[str]:
    """Actions that stand before what they need of their own rank."""
    last = schedule.num_stages - 1
    for row in schedule.ranks:
        done: set[Action] = set()
        own = {part.stage for action in row for part in action.parts or (action,)}
        for action in row:
            for part in action.parts or (action,):
                needs = _needs(part, own, last)
                if not all(any(one in done for one in options) for options in needs):
                    yield f"{part} comes before what it needs"
            done.update(action.parts or (action,))


def _needs(action: Action, own: set[int], last: int) -> list[tuple[Action, ...]]:
    """Of each tuple, one action must come before ``action`` on its rank."""
    stage, m = action.stage, action.micro_batch

    def backwards(at: int) -> tuple[Action, ...]:
        kinds = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
        return tuple(Action(at, kind, m) for kind in kinds)

    forward = (Action(stage, ActionKind.FORWARD, m),)
    match action.kind:
        case ActionKind.FORWARD if stage > 0:
            if stage - 1 in own:
                return [(Action(stage - 1, ActionKind.FORWARD, m),)]
            return [(Action(stage, ActionKind.RECV_FORWARD, m),)]
        case ActionKind.BACKWARD | ActionKind.BACKWARD_INPUT if stage < last:
            if stage + 1 in own:
                return [forward, backwards(stage + 1)]
            return [forward, (Action(stage, ActionKind.RECV_BACKWARD, m),)]
        case ActionKind.BACKWARD | ActionKind.BACKWARD_INPUT | ActionKind.SEND_FORWARD:
            return [forward]
        case ActionKind.BACKWARD_WEIGHT:
            return [backwards(stage)[1:]]
        case ActionKind.SEND_BACKWARD:
            return [backwards(stage)]
    return []


class _Walk:
    """Ranks going through their rows together.

    Attributes:
        rows: what each rank posts; receives move to earlier batches on the way.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.rows = [list(_batches(row)) for row in schedule.ranks]
        self._rank_of_stage = ranks_of_stages(schedule)
        self._at = [0] * len(self.rows)
        self._met: set[Action] = set()
        self._due: dict[tuple[int, int], deque[Action]] = {}
        self._order: dict[Action, int] = {}
        for rank, row in enumerate(schedule.ranks):
            for send in filter(is_send, row):
                self._order[receive_of(send)] = len(self._order)
                self._due.setdefault((rank, self._receiver(send)), deque()).append(send)

    @property
    def is_over(self) -> bool:
        return all(at == len(row) for at, row in zip(self._at, self.rows, strict=True))

    def meet(self) -> bool:
        """Whether any message passed: the first of its two ranks that was not met, both posted."""
        passed = False
        for (sender, receiver), sends in self._due.items():
            while sends and self._is_posted(sender, sends[0]):
                receive = receive_of(sends[0])
                if not self._is_posted(receiver, receive):
                    break
                self._met |= {sends.popleft(), receive}
                passed = True
        return passed

    def advance(self) -> bool:
        """Whether any rank went on: past a computation, or a batch that is over."""
        moved = False
        for rank in range(len(self.rows)):
            while (item := self._current(rank)) is not None and self._is_done(item):
                self._at[rank] += 1
                moved = True
        return moved

    def post_earlier(self) -> bool:
        """Whether a posted send was blocked and its receive could be posted where its rank waits.

        Without that no rank goes on. One at a time, the first of the lowest sender.
        """
        for (sender, receiver), sends in sorted(self._due.items()):
            batch = self._current(receiver)
            if not sends or not self._is_posted(sender, sends[0]) or batch is None:
                continue
            receive = receive_of(sends[0])
            later = self.rows[receiver][self._at[receiver] + 1 :]
            home = next((item for item in later if receive in item), None)
            if home is not None:
                home.remove(receive)
                batch.append(receive)
                if not home:
                    self.rows[receiver].remove(home)
                return True
        return False

    def in_order(self, item: list[Action]) -> Item:
        """A batch whose receives stand in the order of their sends, as transports match them."""
        if not item or item[0].kind in COMPUTATIONS:
            return tuple(item)
        sends = filter(is_send, item)
        return (*sends, *sorted(filter(is_receive, item), key=self._order.__getitem__))

    def in_words(self) -> str:
        """Where ranks are stuck."""
        stuck = ((rank, self._current(rank)) for rank in range(len(self.rows)))
        return ", ".join(
            f"rank {rank} waits at {' '.join(map(str, item))}" for rank, item in stuck if item
        )

    def _receiver(self, send: Action) -> int:
        return self._rank_of_stage[receive_of(send).stage]

    def _current(self, rank: int) -> list[Action] | None:
        at, row = self._at[rank], self.rows[rank]
        return row[at] if at < len(row) else None

    def _is_posted(self, rank: int, transfer: Action) -> bool:
        item = self._current(rank)
        return item is not None and transfer in item

    def _is_done(self, item: list[Action]) -> bool:
        return item[0].kind in COMPUTATIONS or self._met.issuperset(item)


def _batches(row: Sequence[Action]) -> Iterator[list[Action]]:
    """A row with transfers that stand next to each other put together."""
    for computes, group in groupby(row, lambda action: action.kind in COMPUTATIONS):
        if computes:
            yield from ([action] for action in group)
        else:
            yield list(group)
