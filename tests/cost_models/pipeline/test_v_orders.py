"""V-shaped orders against torch's rows, and with fewer micro-batches than they are written for."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining.schedules import ScheduleDualPipeV, ScheduleZBVZeroBubble

from shardwright.cost_models.pipeline.v_orders import dualpipe_v, zb_v
from shardwright.specs import Action, ActionKind


def torch_rows(schedule: Any, pp: int, num_micro_batches: int) -> list[list[str]]:
    """What torch generates, without the torch of it."""
    torch_schedule = object.__new__(schedule)
    torch_schedule.pp_group_size = pp
    torch_schedule.num_stages = 2 * pp
    torch_schedule._n_microbatches = num_micro_batches
    rows = (torch_schedule._calculate_single_rank_operations(rank) for rank in range(pp))
    return [[str(action) for action in row if action is not None] for row in rows]


def texts(order: list[list[Action]]) -> list[list[str]]:
    return [list(map(str, row)) for row in order]


@pytest.mark.parametrize(("pp", "m"), [(1, 2), (2, 1), (2, 3), (3, 4), (4, 7), (4, 13), (5, 20)])
def test_zb_v_is_torchs(pp: int, m: int) -> None:
    assert texts(zb_v(pp, m)) == torch_rows(ScheduleZBVZeroBubble, pp, m)


@pytest.mark.parametrize(("pp", "m"), [(1, 2), (2, 4), (2, 7), (3, 6), (4, 8), (4, 13), (5, 20)])
def test_dualpipe_v_is_torchs(pp: int, m: int) -> None:
    assert texts(dualpipe_v(pp, m)) == torch_rows(ScheduleDualPipeV, pp, m)


def test_dualpipe_v_with_few_micro_batches_leaves_the_others_out() -> None:
    """By hand from the rows of four: a pair whose other half is left out stands alone."""
    assert texts(dualpipe_v(2, 4))[1] == [
        "1F0", "2F0", "1F1", "2F1", "1F2", "2B0", "(2F2;1B0)OVERLAP_F_B", "(1F3;2B1)OVERLAP_F_B",
        "(2F3;1B1)OVERLAP_F_B", "2B2", "1B2", "2I3", "1I3", "2W3", "1W3",
    ]  # fmt: skip
    assert texts(dualpipe_v(2, 1))[1] == ["1F0", "2F0", "2B0", "1B0"]
    assert texts(dualpipe_v(2, 3))[1] == [
        "1F0", "2F0", "1F1", "2F1", "1F2", "2B0", "(2F2;1B0)OVERLAP_F_B",
        "2B1", "1B1", "2B2", "1B2",
    ]  # fmt: skip


@pytest.mark.parametrize("m", [1, 2, 5, 9])
def test_pairs_are_of_a_forward_and_a_full_backward_of_the_two_chunks(m: int) -> None:
    for rank, row in enumerate(dualpipe_v(4, m)):
        for action in row:
            if action.parts:
                forward, backward = action.parts
                assert (forward.kind, backward.kind) == (ActionKind.FORWARD, ActionKind.BACKWARD)
                assert {forward.stage, backward.stage} == {rank, 7 - rank}
