"""Batches in which any transport can carry a schedule's messages, and proofs of receipt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from shardwright.cost_models.pipeline.messages import (
    COMPUTATIONS,
    Item,
    is_receive,
    is_send,
    posted_items,
    proofs_of_receipt,
    ranks_of_stages,
    readers_of,
    receive_of,
    schedule_problems,
    send_of,
)
from shardwright.cost_models.pipeline.schedules import build_schedule, with_communication
from shardwright.specs import Action, ActionKind, Schedule

VPP = {
    "gpipe": 1, "1f1b": 1, "interleaved-1f1b": 3, "zb-h1": 1, "zb-h2": 1, "zb-v": 2,
    "dualpipev": 2,
}  # fmt: skip
CASES = [(name, pp, m) for name in VPP for pp in (2, 3, 5) for m in (1, 4, 11)]


def schedule_of(name: str, pp: int, m: int) -> Schedule:
    return build_schedule(name, pp=pp, vpp=VPP[name], num_micro_batches=m)


def finishes_where_sends_block(items: Sequence[Sequence[Item]], ranks: Sequence[int]) -> bool:
    """One ordered communicator: a batch is over when each of its messages was met, and between two
    ranks the first sent message meets the first posted receive, whatever it is."""
    at = [0] * len(items)
    sent: dict[tuple[int, int], list[Action]] = {}
    posted: dict[tuple[int, int], list[Action]] = {}
    open_at = [-1] * len(items)
    met: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(items):
            if at[rank] == len(row):
                continue
            item = row[at[rank]]
            if item[0].kind not in COMPUTATIONS and open_at[rank] < at[rank]:
                open_at[rank] = at[rank]
                for action in item:
                    if is_send(action):
                        sent.setdefault((rank, ranks[receive_of(action).stage]), []).append(action)
                    else:
                        posted.setdefault((ranks[send_of(action).stage], rank), []).append(action)
                moved = True
            if item[0].kind in COMPUTATIONS or met.issuperset(item):
                at[rank] += 1
                moved = True
        for pair, sends in sent.items():
            while sends and posted.get(pair):
                send, receive = sends.pop(0), posted[pair].pop(0)
                if receive_of(send) != receive:
                    return False
                met |= {send, receive}
    return all(position == len(row) for position, row in zip(at, items, strict=True))


@pytest.mark.parametrize(("name", "pp", "m"), CASES)
def test_batches_are_free_of_deadlock_where_sends_block(name: str, pp: int, m: int) -> None:
    schedule = schedule_of(name, pp, m)
    items = posted_items(schedule)
    assert finishes_where_sends_block(items, ranks_of_stages(schedule))
    for row, planned in zip(items, schedule.ranks, strict=True):
        flat = [action for item in row for action in item]
        assert Counter(flat) == Counter(planned)
        in_order = [action for action in flat if not is_receive(action)]
        assert in_order == [action for action in planned if not is_receive(action)]
        assert no_receive_is_later(flat, planned)


def no_receive_is_later(found: Sequence[Action], planned: Sequence[Action]) -> bool:
    computed = [
        [sum(a.kind in COMPUTATIONS for a in row[:index]) for index, a in enumerate(row)]
        for row in (found, planned)
    ]
    return all(
        computed[0][found.index(action)] <= computed[1][planned.index(action)]
        for action in planned
        if is_receive(action)
    )


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
def test_rows_that_no_transport_blocks_stay_as_they_are(name: str) -> None:
    schedule = schedule_of(name, 4, 9)
    for row, planned in zip(posted_items(schedule), schedule.ranks, strict=True):
        assert [set(item) for item in row] == [set(item) for item in _runs(planned)]


def _runs(row: Sequence[Action]) -> Iterator[list[Action]]:
    batch: list[Action] = []
    for action in row:
        if action.kind in COMPUTATIONS:
            yield from ([batch] if batch else [])
            batch = []
            yield [action]
        else:
            batch.append(action)
    yield from ([batch] if batch else [])


def test_a_receive_is_posted_where_its_rank_waits() -> None:
    """Rank 0 sends its second output before it takes a gradient, rank 1 the other way round."""
    schedule = Schedule.from_value({
        "name": "custom", "num_stages": 2, "num_micro_batches": 3,
        "ranks": [
            "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2",
            "1RECV_F0 1F0 1I0 1SEND_B0 1W0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2",
        ],
    })  # fmt: skip
    items = posted_items(schedule)
    assert [list(map(str, item)) for item in items[1][:5]] == [
        ["1RECV_F0"], ["1F0"], ["1I0"], ["1SEND_B0", "1RECV_F1"], ["1W0"],
    ]  # fmt: skip


def random_schedule(seed: int) -> Schedule:
    """A random order of a random model: any rank takes any computation that is ready."""
    rng = random.Random(seed)
    num_ranks, m = rng.randint(1, 4), rng.randint(1, 5)
    num_stages = num_ranks * rng.randint(1, 3)
    rank_of_stage = [*range(num_ranks)] + [
        rng.randrange(num_ranks) for _ in range(num_stages - num_ranks)
    ]
    rng.shuffle(rank_of_stage)
    split = {(s, i): rng.random() < 0.5 for s in range(num_stages) for i in range(m)}
    rows: list[list[Action]] = [[] for _ in range(num_ranks)]
    done: set[tuple[int, str, int]] = set()
    while len(done) < 2 * num_stages * m + sum(split.values()):
        ready = []
        for (stage, i), is_split in split.items():
            backward = "I" if is_split else "B"
            if stage == 0 or (stage - 1, "F", i) in done:
                ready.append((stage, "F", i))
            is_given = stage == num_stages - 1 or any((stage + 1, k, i) in done for k in "BI")
            if (stage, "F", i) in done and is_given:
                ready.append((stage, backward, i))
            if (stage, "I", i) in done:
                ready.append((stage, "W", i))
        choice = rng.choice([one for one in ready if one not in done])
        done.add(choice)
        rows[rank_of_stage[choice[0]]].append(Action(choice[0], ActionKind(choice[1]), choice[2]))
    return Schedule(
        name="custom", num_stages=num_stages, num_micro_batches=m,
        ranks=tuple(with_communication(row, rank_of_stage) for row in rows),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_any_order_can_be_carried(seed: int) -> None:
    schedule = random_schedule(seed)
    ranks = ranks_of_stages(schedule)
    assert schedule_problems(schedule, ranks, schedule.num_micro_batches) == []
    assert finishes_where_sends_block(posted_items(schedule), ranks)


def test_plain_batches_of_random_orders_block() -> None:
    """Negative control: without receives moved forward most would wait for ever."""
    blocked = 0
    for seed in range(60):
        schedule = random_schedule(seed)
        plain = [[tuple(item) for item in _runs(row)] for row in schedule.ranks]
        blocked += not finishes_where_sends_block(plain, ranks_of_stages(schedule))
    assert blocked > 20


# Proofs of receipt


def test_in_1f1b_a_send_is_proven_by_the_next_message_of_its_receiver() -> None:
    items = posted_items(build_schedule("1f1b", pp=2, num_micro_batches=3))
    proofs = proofs_of_receipt(items, [0, 1], 0)
    readable = {str(receive): list(map(str, sends)) for receive, sends in proofs.items()}
    # 1SEND_B0 is in one batch with 1RECV_F1, so it proves the receipt of F0 alone.
    assert readable == {
        "0RECV_B0": ["0SEND_F0"], "0RECV_B1": ["0SEND_F1"], "0RECV_B2": ["0SEND_F2"],
    }  # fmt: skip


@pytest.mark.parametrize(("name", "pp", "m"), CASES)
def test_no_send_is_taken_for_received_before_it_was_read(name: str, pp: int, m: int) -> None:
    schedule = schedule_of(name, pp, m)
    ranks, items = ranks_of_stages(schedule), posted_items(schedule)
    for rank in range(pp):
        for receive, sends in proofs_of_receipt(items, ranks, rank).items():
            for send in sends:
                peer = items[ranks[receive_of(send).stage]]
                read = next(
                    index
                    for index, item in enumerate(peer)
                    if item[0].kind in COMPUTATIONS and receive_of(send) in readers_of(item)
                )
                answered = next(
                    index for index, item in enumerate(peer) if send_of(receive) in item
                )
                assert read < answered


# What somebody wrote

GOOD = ["0F0 0SEND_F0 0RECV_B0 0I0 0W0", "1RECV_F0 1F0 1B0 1SEND_B0"]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        pytest.param(GOOD, None, id="good"),
        pytest.param([GOOD[0]], "for 2 stages, 1 micro-batches and 1 ranks", id="ranks"),
        pytest.param(["0F0 0SEND_F0 0RECV_B0 0I0", GOOD[1]], "0 weight parts", id="no-weight"),
        pytest.param([GOOD[0], GOOD[1] + " 0UNSHARD"], "0UNSHARD is not an action", id="unknown"),
        pytest.param(["0F0 0RECV_B0 0I0 0W0", GOOD[1]], "0SEND_F0 comes 0 times", id="no-send"),
        pytest.param([GOOD[0], "1RECV_F0 1B0 1F0 1SEND_B0"], "1B0 comes before", id="early"),
        pytest.param(["0F0 0SEND_F0 0RECV_B0 0W0 0I0", GOOD[1]], "0W0 comes before", id="weight"),
        pytest.param(
            ["0F0 0RECV_B0 0SEND_F0 0B0", GOOD[1]], None, id="receive-posted-before-the-send"
        ),
        pytest.param(["1RECV_F0 1F0 1B0 1SEND_B0", "0F0 0SEND_F0 0RECV_B0 0B0"],
                     "1RECV_F0 is on rank 0", id="ranks-swapped"),
        pytest.param(["0F0 0SEND_F0 0RECV_B0 (0B0;0F1)OVERLAP_F_B", GOOD[1]],
                     "is not a forward beside a backward", id="pair"),
    ],
)  # fmt: skip
def test_problems_of_a_schedule_are_named(rows: list[str], problem: str | None) -> None:
    schedule = Schedule.from_value(
        {"name": "custom", "num_stages": 2, "num_micro_batches": 1, "ranks": rows}
    )
    found = schedule_problems(schedule, (0, 1), 1)
    assert bool(found) == bool(problem)
    assert problem is None or problem in "; ".join(found)


def test_a_deadlock_is_named_with_where_ranks_wait() -> None:
    """Each rank runs its own stages in an order that needs the other's later one."""
    rows = [
        "0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 0F1 0SEND_F1 2RECV_F1 2F1 2SEND_F1",
        "1RECV_F1 1F1 1SEND_F1 1RECV_F0 1F0 1SEND_F0 3RECV_F0 3F0 3RECV_F1 3F1",
    ]
    schedule = Schedule.from_value(
        {"name": "custom", "num_stages": 4, "num_micro_batches": 2, "ranks": rows}
    )
    with pytest.raises(ValueError, match="deadlocks: rank 0 waits at 0SEND_F0 2RECV_F0"):
        posted_items(schedule)
