"""Micro-batches in flight and messages under way, against a walk of the whole schedule."""

from __future__ import annotations

import pytest

from shardwright.cost_models.pipeline.occupancy import Moment, moments, moments_of
from shardwright.cost_models.pipeline.program import cached_program
from shardwright.specs import ActionKind, Layout, ScheduleName, Stage

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def most_held(found: tuple[Moment, ...], kind: ActionKind) -> int:
    return max(sum(count for _, count in m.held) for m in found if m.work and m.work[1] is kind)


@pytest.mark.parametrize(("pp", "m"), [(2, 1), (2, 5), (4, 2), (4, 9), (5, 5)])
def test_in_flight_under_1f1b(pp: int, m: int) -> None:
    program = cached_program(ScheduleName.ONE_F_ONE_B, pp, 1, m)
    for rank in range(pp):
        found = moments(program)[rank]
        others = min(pp - rank, m) - 1
        assert (most_held(found, F), most_held(found, B)) == (others, others)


def test_in_flight_under_gpipe() -> None:
    program = cached_program(ScheduleName.GPIPE, 3, 1, 6)
    assert [most_held(moments(program)[rank], B) for rank in range(3)] == [5, 5, 5]


def test_sends_are_held_until_the_receiver_answers() -> None:
    """By hand, 1F1B with 2 ranks and 4 micro-batches.

    Rank 0: F0 s0 F1 {s1 r0} B0 F2. Rank 1 receives F1 in the batch in which it sends B0, so only
    B1 proves that F1 arrived; B0 proves F0.
    """
    program = cached_program(ScheduleName.ONE_F_ONE_B, 2, 1, 4)
    by_work = {m.work: m.messages for m in moments(program)[0]}
    assert by_work[0, B] == 1
    assert by_work[0, F] == 1
    last = {m.work: m.messages for m in moments(program)[1]}
    assert last[1, F] == 1


def test_gpipe_holds_every_sent_output_until_the_first_gradient_comes() -> None:
    program = cached_program(ScheduleName.GPIPE, 2, 1, 5)
    forward = next(m for m in moments(program)[0] if m.work == (0, F))
    assert forward.messages == 4
    exchange = next(m for m in moments(program)[0] if m.work is None)
    assert dict(exchange.held) == {0: 5}
    assert exchange.messages == 5 + 1
    backward = [m for m in moments(program)[0] if m.work == (0, B)]
    assert all(not m.messages for m in backward)


def test_without_a_pipeline_one_micro_batch_at_a_time() -> None:
    stage = Stage(stage=0, rank=0, chunk=0, layers=(0, 1))
    layout = Layout(num_microbatches=3, stages=(stage,))
    assert moments_of(layout) == ((Moment((0, F), (), 0), Moment((0, B), (), 0)),)


def test_split_backwards_hold_until_the_gradient_of_weights() -> None:
    """ZB-H1 holds p micro-batches on every rank; rank r puts r gradients of weights off."""
    program = cached_program(ScheduleName.ZB_H1, 4, 1, 12)
    for rank in range(4):
        found = moments(program)[rank]
        assert most_held(found, F) == 3
        assert most_held(found, ActionKind.BACKWARD_INPUT) == 3
        assert most_held(found, ActionKind.BACKWARD_WEIGHT) == 3


def test_a_pair_works_on_two_micro_batches() -> None:
    """DualPipeV holds 2p + 1 chunks, of which a pair works on two; p = 2."""
    program = cached_program(ScheduleName.DUALPIPE_V, 2, 2, 8)
    for rank in range(2):
        found = moments(program)[rank]
        assert most_held(found, ActionKind.OVERLAP_F_B) == 2 * 2 + 1 - 2
        assert most_held(found, B) <= 2 * 2 + 1 - 1


def test_interleaved_chunks_are_counted_apart() -> None:
    """By hand, rank 0 of 2 with 2 chunks: 4 forwards ahead and one more are 3 and 2.

    The backward works on one of the 2.
    """
    program = cached_program(ScheduleName.INTERLEAVED, 2, 2, 8)
    held = {moment.held for moment in moments(program)[0] if moment.work == (2, B)}
    assert ((0, 3), (2, 1)) in held


def test_moments_do_not_dominate_one_another() -> None:
    program = cached_program(ScheduleName.ONE_F_ONE_B, 4, 1, 12)
    for rank in range(4):
        found = moments(program)[rank]
        assert len(found) <= 8
        assert not any(a.holds_at_least(b) for a in found for b in found if a is not b)
