"""Schedules compiled to items, transfers and an order that can be executed."""

from __future__ import annotations

import pytest

from shardwright.cost_models.pipeline.program import (
    Program,
    cached_program,
    compile_schedule,
    pairs_of,
    program_of,
)
from shardwright.cost_models.pipeline.schedules import build_schedule
from shardwright.specs import ActionKind, InputError, Layout, Schedule, ScheduleName, Stage

TWO_RANKS = Schedule.from_value({
    "name": "custom", "num_stages": 2, "num_micro_batches": 1,
    "ranks": ["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"],
})  # fmt: skip


def test_two_ranks_by_hand() -> None:
    program = compile_schedule(TWO_RANKS)
    assert program.works == (
        (0, ActionKind.BACKWARD), (0, ActionKind.FORWARD),
        (1, ActionKind.BACKWARD), (1, ActionKind.FORWARD),
    )  # fmt: skip
    assert program.sends == ((0, ActionKind.SEND_FORWARD), (1, ActionKind.SEND_BACKWARD))
    assert program.links == ((0, 1), (1, 0))
    forward, batch, backward = program.items[0]
    assert (forward.work, backward.work) == (1, 0)
    assert (batch.work, batch.posted, batch.received, batch.awaited) == (-1, (0, 1), (1,), (1,))


def test_blocking_sends_are_awaited() -> None:
    batch = compile_schedule(TWO_RANKS, sends_block=True).items[0][1]
    assert batch.awaited == (0, 1)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_every_item_is_in_the_order_and_awaits_what_was_posted(name: str) -> None:
    program = compile_schedule(build_schedule(name, pp=4, num_micro_batches=6))
    batches = sum(item.work < 0 for row in program.items for item in row)
    assert len(program.steps) == sum(map(len, program.items)) + batches
    check_order(program)


def check_order(program: Program) -> None:
    posted: dict[int, int] = {}
    open_batches: set[int] = set()
    last = [-1] * program.num_ranks
    for rank, index in program.steps:
        item = program.items[rank][index]
        if item.work < 0 and rank not in open_batches:
            open_batches.add(rank)
            for transfer in item.posted:
                posted[transfer] = posted.get(transfer, 0) + 1
            continue
        open_batches.discard(rank)
        assert all(posted[transfer] == 2 for transfer in item.awaited)
        assert index == last[rank] + 1
        last[rank] = index


def test_a_schedule_that_deadlocks_does_not_compile() -> None:
    schedule = Schedule.from_value({
        "name": "custom", "num_stages": 2, "num_micro_batches": 1,
        "ranks": ["0RECV_B0 0F0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"],
    })  # fmt: skip
    with pytest.raises(ValueError, match="deadlocks"):
        compile_schedule(schedule)


@pytest.mark.parametrize(
    ("name", "vpp"), [("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 2), ("dualpipev", 2)]
)
@pytest.mark.parametrize("ahead", [False, True])
def test_chunks_and_parts_compile(name: str, vpp: int, ahead: bool) -> None:
    schedule = build_schedule(name, pp=3, vpp=vpp, num_micro_batches=7)
    program = compile_schedule(schedule, receives_ahead=ahead)
    check_order(program)
    assert program.receives_ahead is ahead
    assert all(sender != receiver for sender, receiver in program.links)
    computed = [i for row in program.items for i in row if i.work >= 0]
    assert all(program.works[item.work][1] is item.actions[0].kind for item in computed)
    for rank, row in enumerate(program.items):
        for transfer in (t for item in row for t in item.sent):
            assert program.links[program.transfers[transfer].link][0] == rank


def test_a_pair_is_one_item_with_the_stage_of_its_forward() -> None:
    program = compile_schedule(build_schedule("dualpipev", pp=2, vpp=2, num_micro_batches=4))
    pairs = [i for row in program.items for i in row if i.actions[0].parts]
    assert {program.works[item.work] for item in pairs} == {
        (stage, ActionKind.OVERLAP_F_B) for stage in (0, 1, 2, 3)
    }
    assert all(len(item.actions) == 1 for item in pairs)


def test_equal_requests_share_a_program() -> None:
    stage = Stage(stage=0, rank=0, chunk=0, layers=(0, 1))
    layout = Layout(num_microbatches=3, stages=(stage,))
    assert program_of(layout) is program_of(layout.model_copy(update={"zero": 1}))
    assert program_of(layout).transfers == ()
    one = cached_program(ScheduleName.GPIPE, 2, 1, 3, False)
    assert one is cached_program(ScheduleName.GPIPE, 2, 1, 3, False)


def test_the_backward_beside_each_forward() -> None:
    program = compile_schedule(build_schedule("dualpipev", pp=2, vpp=2, num_micro_batches=8))
    assert pairs_of(program) == {0: 3, 1: 2, 2: 1, 3: 0}
    assert pairs_of(compile_schedule(build_schedule("1f1b", pp=2, num_micro_batches=3))) == {}


def test_forwards_beside_backwards_of_several_stages_have_no_price() -> None:
    rows = ["0F0 1F0 2F0 2B0 (0F1;1B0)OVERLAP_F_B 1F1 2F1 2B1 1B1 (0F2;0B0)OVERLAP_F_B"]
    schedule = Schedule.from_value(
        {"name": "custom", "num_stages": 3, "num_micro_batches": 3, "ranks": rows}
    )
    with pytest.raises(InputError, match="stage 0 overlap backwards of the stages 1 and 0"):
        pairs_of(compile_schedule(schedule))
