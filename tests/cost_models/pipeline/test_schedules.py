"""Schedules are complete, free of deadlock under two kinds of transport, and bounded in memory."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest

from shardwright.cost_models.pipeline.schedules import (
    build_schedule,
    schedule_of,
    sequential_actions,
    sequential_schedule,
    with_communication,
)
from shardwright.specs import Action, ActionKind, InputError, Layout, Schedule, Stage

CASES = [
    (name, pp, m) for name in ("gpipe", "1f1b") for pp in (2, 3, 4, 7) for m in (1, 2, 3, 4, 8, 13)
]
VPP = {"interleaved-1f1b": 3, "zb-h1": 1, "zb-h2": 1, "zb-v": 2, "dualpipev": 2}
SPLIT_CASES = [(name, pp, m) for name in VPP for pp in (1, 2, 3, 5) for m in (1, 2, 5, 10, 13)]
SENDS = {
    ActionKind.SEND_FORWARD: (ActionKind.RECV_FORWARD, 1),
    ActionKind.SEND_BACKWARD: (ActionKind.RECV_BACKWARD, -1),
}
RECEIVES = {
    ActionKind.RECV_FORWARD: (ActionKind.SEND_FORWARD, -1),
    ActionKind.RECV_BACKWARD: (ActionKind.SEND_BACKWARD, 1),
}


def finishes_with_asynchronous_sends(schedule: Schedule) -> bool:
    """Sends never block; a receive blocks until its message was sent."""
    at = [0] * len(schedule.ranks)
    sent: set[tuple[int, ActionKind, int | None]] = set()
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.ranks):
            while at[rank] < len(row):
                action = row[at[rank]]
                if action.kind in RECEIVES:
                    kind, offset = RECEIVES[action.kind]
                    if (action.stage + offset, kind, action.micro_batch) not in sent:
                        break
                elif action.kind in SENDS:
                    sent.add((action.stage, action.kind, action.micro_batch))
                at[rank] += 1
                moved = True
    return all(position == len(row) for position, row in zip(at, schedule.ranks, strict=True))


def finishes_with_rendezvous_batches(schedule: Schedule) -> bool:
    """Neighbouring transfers are posted at once; a rank goes on when all of them have been met."""
    rows = [
        [list(run) for _, run in groupby(row, key=lambda a: a.kind in SENDS or a.kind in RECEIVES)]
        for row in schedule.ranks
    ]
    at = [0] * len(rows)
    met: set[Action] = set()
    moved = True
    while moved:
        moved = False
        posted = {a for row, i in zip(rows, at, strict=True) if i < len(row) for a in row[i]}
        for action in posted:
            if action.kind in SENDS:
                kind, offset = SENDS[action.kind]
                peer = Action(action.stage + offset, kind, action.micro_batch)
                if peer in posted:
                    met |= {action, peer}
        for rank, row in enumerate(rows):
            if at[rank] < len(row):
                transfers = [a for a in row[at[rank]] if a.kind in SENDS or a.kind in RECEIVES]
                if met.issuperset(transfers):
                    at[rank] += 1
                    moved = True
    return all(position == len(row) for position, row in zip(at, rows, strict=True))


def most_in_flight(row: tuple[Action, ...]) -> int:
    alive = most = 0
    for action in row:
        alive += (action.kind is ActionKind.FORWARD) - (action.kind is ActionKind.BACKWARD)
        most = max(most, alive)
    return most


@pytest.mark.parametrize(("name", "pp", "m"), CASES)
def test_every_schedule_is_complete_and_free_of_deadlock(name: str, pp: int, m: int) -> None:
    schedule = build_schedule(name, pp=pp, num_micro_batches=m)
    assert schedule.violations() == []
    kinds = Counter(action.kind for row in schedule.ranks for action in row)
    assert {kinds[kind] for kind in SENDS} == {(pp - 1) * m}
    assert finishes_with_asynchronous_sends(schedule)
    assert finishes_with_rendezvous_batches(schedule)


@pytest.mark.parametrize(("name", "pp", "m"), SPLIT_CASES)
def test_schedules_of_several_chunks_and_parts(name: str, pp: int, m: int) -> None:
    """Complete, free of deadlock, and executable with what each computation reads."""
    schedule = build_schedule(name, pp=pp, vpp=VPP[name], num_micro_batches=m)
    assert (schedule.violations(), schedule.num_stages) == ([], pp * VPP[name])
    kinds = Counter(action.kind for row in schedule.ranks for action in row)
    is_v = name in ("zb-v", "dualpipev")
    boundaries = pp * VPP[name] - 1 - is_v if pp > 1 else 0
    assert {kinds[kind] for kind in (*SENDS, *RECEIVES)} == {boundaries * m}
    assert finishes_with_asynchronous_sends(schedule)
    assert every_input_is_there(schedule)
    assert Schedule.from_value(schedule.model_dump(mode="json")) == schedule


def every_input_is_there(schedule: Schedule) -> bool:
    """Whether each rank has received or computed what it reads, and sends what it has computed."""
    last = schedule.num_stages - 1
    for row in schedule.ranks:
        forwards: set[tuple[int, int | None]] = set()
        backwards: set[tuple[int, int | None]] = set()
        received: set[Action] = set()
        for action in row:
            for part in action.parts or (action,):
                at, m = part.stage, part.micro_batch
                match part.kind:
                    case ActionKind.RECV_FORWARD | ActionKind.RECV_BACKWARD:
                        received.add(part)
                    case ActionKind.FORWARD:
                        message = Action(at, ActionKind.RECV_FORWARD, m)
                        if at and message not in received and (at - 1, m) not in forwards:
                            return False
                    case ActionKind.BACKWARD | ActionKind.BACKWARD_INPUT:
                        message = Action(at, ActionKind.RECV_BACKWARD, m)
                        is_given = message in received or (at + 1, m) in backwards or at == last
                        if (at, m) not in forwards or not is_given:
                            return False
                    case ActionKind.BACKWARD_WEIGHT | ActionKind.SEND_BACKWARD:
                        if (at, m) not in backwards:
                            return False
                    case ActionKind.SEND_FORWARD:
                        if (at, m) not in forwards:
                            return False
            for part in action.parts or (action,):
                done = (part.stage, part.micro_batch)
                if part.kind is ActionKind.FORWARD:
                    forwards.add(done)
                elif part.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT):
                    backwards.add(done)
    return True


@pytest.mark.parametrize(("name", "pp", "m"), CASES)
def test_in_flight_micro_batches(name: str, pp: int, m: int) -> None:
    schedule = build_schedule(name, pp=pp, num_micro_batches=m)
    expected = [m if name == "gpipe" else min(pp - rank, m) for rank in range(pp)]
    assert [most_in_flight(row) for row in schedule.ranks] == expected


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_messages_between_two_stages_arrive_in_the_order_in_which_they_are_read(name: str) -> None:
    schedule = build_schedule(name, pp=4, num_micro_batches=6)
    for kind, (peer_kind, offset) in SENDS.items():
        for rank, row in enumerate(schedule.ranks):
            sent = [a.micro_batch for a in row if a.kind is kind]
            if 0 <= rank + offset < 4:
                peer = schedule.ranks[rank + offset]
                assert sent == [a.micro_batch for a in peer if a.kind is peer_kind]


def test_the_simulators_find_deadlocks() -> None:
    swapped = Schedule.from_value({
        "name": "custom", "num_stages": 2, "num_micro_batches": 1,
        "ranks": ["0F0 0RECV_B0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"],
    })  # fmt: skip
    assert not finishes_with_asynchronous_sends(swapped)
    serial = Schedule.from_value({
        "name": "custom", "num_stages": 2, "num_micro_batches": 2,
        "ranks": [
            "0F0 0SEND_F0 0RECV_B0 0B0 0F1 0SEND_F1 0RECV_B1 0B1",
            "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1",
        ],
    })  # fmt: skip
    assert not finishes_with_rendezvous_batches(serial)


def test_one_f_one_b_in_words() -> None:
    schedule = build_schedule("1f1b", pp=2, num_micro_batches=2)
    assert [" ".join(map(str, row)) for row in schedule.ranks] == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    ]


def test_stages_on_one_rank_hand_over_without_communication() -> None:
    row = [Action(0, ActionKind.FORWARD, 0), Action(1, ActionKind.FORWARD, 0)]
    assert list(map(str, with_communication(row, [0, 0, 1]))) == ["0F0", "1F0", "1SEND_F0"]


def test_a_pair_receives_and_sends_for_both_its_parts() -> None:
    parts = (Action(1, ActionKind.FORWARD, 4), Action(4, ActionKind.BACKWARD, 2))
    pair = Action(1, ActionKind.OVERLAP_F_B, None, parts)
    row = with_communication([pair], [0, 1, 2, 2, 1, 0])
    assert list(map(str, row)) == [
        "1RECV_F4", "4RECV_B2", "(1F4;4B2)OVERLAP_F_B", "1SEND_F4", "4SEND_B2",
    ]  # fmt: skip


def test_without_a_pipeline() -> None:
    assert list(map(str, sequential_actions(2))) == ["0F0", "0B0", "0F1", "0B1"]
    assert sequential_schedule(3).violations() == []
    stage = Stage(stage=0, rank=0, chunk=0, layers=(0, 1))
    assert schedule_of(Layout(num_microbatches=3, stages=(stage,))) == sequential_schedule(3)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(InputError, match="zb-v has two stages per rank, but vpp = 1"):
        build_schedule("zb-v", pp=2, num_micro_batches=2)
    with pytest.raises(InputError, match="no generator for the schedule zigzag"):
        build_schedule("zigzag", pp=2, num_micro_batches=2)
    with pytest.raises(InputError, match="one stage per rank, but vpp = 2"):
        build_schedule("1f1b", pp=2, vpp=2, num_micro_batches=2)
