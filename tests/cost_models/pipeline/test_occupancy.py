"""Micro-batches in flight and messages under way, against a walk of the whole schedule."""

from __future__ import annotations

import pytest

from shardwright.cost_models.pipeline.occupancy import Moment, moments, moments_of
from shardwright.cost_models.pipeline.schedules import build_schedule
from shardwright.specs import ActionKind, Layout, Schedule, ScheduleName, Stage

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def most_held(found: tuple[Moment, ...], kind: ActionKind) -> int:
    return max(sum(count for _, count in m.held) for m in found if m.work and m.work[1] is kind)


@pytest.mark.parametrize(("pp", "m"), [(2, 1), (2, 5), (4, 2), (4, 9), (5, 5)])
def test_in_flight_under_1f1b(pp: int, m: int) -> None:
    schedule = build_schedule(ScheduleName.ONE_F_ONE_B, pp=pp, vpp=1, num_micro_batches=m)
    for rank in range(pp):
        found = moments(schedule)[rank]
        others = min(pp - rank, m) - 1
        assert (most_held(found, F), most_held(found, B)) == (others, others)


def test_in_flight_under_gpipe() -> None:
    schedule = build_schedule(ScheduleName.GPIPE, pp=3, vpp=1, num_micro_batches=6)
    assert [most_held(moments(schedule)[rank], B) for rank in range(3)] == [5, 5, 5]


def test_sends_are_held_until_the_receiver_answers() -> None:
    """By hand, 1F1B with 2 ranks and 4 micro-batches.

    Rank 0: F0 s0 F1 {s1 r0} B0 F2. Rank 1 receives F1 in the batch in which it sends B0, so only
    B1 proves that F1 arrived; B0 proves F0.
    """
    schedule = build_schedule(ScheduleName.ONE_F_ONE_B, pp=2, vpp=1, num_micro_batches=4)
    by_work = {m.work: m.messages for m in moments(schedule)[0]}
    assert by_work[0, B] == 1
    assert by_work[0, F] == 1
    last = {m.work: m.messages for m in moments(schedule)[1]}
    assert last[1, F] == 1


def test_gpipe_holds_every_sent_output_until_the_first_gradient_comes() -> None:
    schedule = build_schedule(ScheduleName.GPIPE, pp=2, vpp=1, num_micro_batches=5)
    forward = next(m for m in moments(schedule)[0] if m.work == (0, F))
    assert forward.messages == 4
    exchange = next(m for m in moments(schedule)[0] if m.work is None)
    assert dict(exchange.held) == {0: 5}
    assert exchange.messages == 5 + 1
    backward = [m for m in moments(schedule)[0] if m.work == (0, B)]
    assert all(not m.messages for m in backward)


def test_without_a_pipeline_one_micro_batch_at_a_time() -> None:
    stage = Stage(stage=0, rank=0, chunk=0, layers=(0, 1))
    layout = Layout(num_microbatches=3, stages=(stage,))
    assert moments_of(layout) == ((Moment((0, F), (), 0), Moment((0, B), (), 0)),)


def test_split_backwards_hold_less_until_the_gradient_of_weights() -> None:
    """ZB-H1 holds p micro-batches on every rank; rank r puts r gradients of weights off."""
    schedule = build_schedule(ScheduleName.ZB_H1, pp=4, num_micro_batches=12)
    for rank in range(4):
        found = moments(schedule)[rank]
        both = {
            kind: max(
                sum(n for _, n in (*m.held, *m.deferred))
                for m in found
                if m.work and m.work[1] is kind
            )
            for kind in (F, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
        }
        assert set(both.values()) == {3}
        deferred = {n for m in found if m.work and m.work[1] is F for _, n in m.deferred}
        assert max(deferred, default=0) == rank


def test_the_parts_of_a_pair_run_one_after_the_other() -> None:
    """DualPipeV holds 2p + 1 chunks, of which each part works on one; p = 2."""
    schedule = build_schedule(ScheduleName.DUALPIPE_V, pp=2, vpp=2, num_micro_batches=8)
    for rank in range(2):
        found = moments(schedule)[rank]
        assert {m.work[1] for m in found if m.work} <= {
            F, B, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT,
        }  # fmt: skip
        assert max(most_held(found, F), most_held(found, B)) == 2 * 2


def test_a_message_to_the_same_rank_is_held_until_it_is_read() -> None:
    """By hand: the turn of the V, with nothing sent."""
    schedule = Schedule.from_value({
        "name": "custom", "num_stages": 2, "num_micro_batches": 2,
        "ranks": ["0F0 0F1 1F0 1F1 1B1 1B0 0B0 0B1"],
    })  # fmt: skip
    found = {(m.work, m.held): m.messages for m in moments(schedule)[0]}
    assert found == {
        ((1, F), ((0, 2),)): 1, ((1, F), ((0, 2), (1, 1))): 0, ((0, F), ((0, 1),)): 1,
        ((1, B), ((0, 2), (1, 1))): 0, ((1, B), ((0, 2),)): 1, ((0, B), ((0, 1),)): 1,
    }  # fmt: skip


def test_interleaved_chunks_are_counted_apart() -> None:
    """By hand, rank 0 of 2 with 2 chunks: 4 forwards ahead and one more are 3 and 2.

    The backward works on one of the 2.
    """
    schedule = build_schedule(ScheduleName.INTERLEAVED, pp=2, vpp=2, num_micro_batches=8)
    held = {moment.held for moment in moments(schedule)[0] if moment.work == (2, B)}
    assert ((0, 3), (2, 1)) in held


def test_moments_do_not_dominate_one_another() -> None:
    schedule = build_schedule(ScheduleName.ONE_F_ONE_B, pp=4, vpp=1, num_micro_batches=12)
    for rank in range(4):
        found = moments(schedule)[rank]
        assert len(found) <= 8
        assert not any(a.holds_at_least(b) for a in found for b in found if a is not b)
