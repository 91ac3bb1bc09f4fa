"""Orders are those of the literature: idle times, micro-batches held, and torch's own rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.distributed.pipelining.schedules import (
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from shardwright.cost_models.pipeline.fast import StageSeconds, in_flight, pipeline_times
from shardwright.cost_models.pipeline.orders import (
    computation_order,
    groups_of_micro_batches,
    ranks_of_stages,
)
from shardwright.specs import ActionKind, InputError

VPP = {
    "gpipe": 1, "1f1b": 1, "interleaved-1f1b": 3, "zb-h1": 1, "zb-h2": 1, "zb-v": 2, "dualpipev": 2,
}  # fmt: skip
SIZES = [(1, 4), (2, 4), (3, 6), (4, 8), (4, 19), (7, 14)]


def even(num_stages: int, f: float, i: float, w: float) -> StageSeconds:
    stages = ([seconds] * num_stages for seconds in (f, i, w, 0.0))
    forward, backward_input, backward_weight, message = map(tuple, stages)
    return StageSeconds(forward, backward_input, backward_weight, message[1:])


def torch_row(schedule: Any, pp: int, vpp: int, num_micro_batches: int, rank: int) -> list[str]:
    """A rank's computations as torch generates them, without the torch of it."""
    torch_schedule = object.__new__(schedule)
    torch_schedule.pp_group_size = pp
    torch_schedule.num_stages = pp * vpp
    torch_schedule._n_microbatches = num_micro_batches
    torch_schedule.n_local_stages = vpp
    torch_schedule.microbatches_per_round = num_micro_batches // max(1, num_micro_batches // pp)
    row = torch_schedule._calculate_single_rank_operations(rank)
    return [str(action) for action in row if action is not None]


@pytest.mark.parametrize(("pp", "m"), SIZES)
@pytest.mark.parametrize("name", VPP)
def test_idle_time_with_equal_passes(name: str, pp: int, m: int) -> None:
    times = pipeline_times(
        name, pp=pp, vpp=VPP[name], num_micro_batches=m, seconds=even(pp * VPP[name], 1, 1, 1)
    )
    units = {"gpipe": 3, "1f1b": 3, "interleaved-1f1b": 3, "dualpipev": 2}.get(name, 1)
    idle = [times.makespan_s - busy_s for busy_s in times.busy_s]
    assert idle == pytest.approx([(pp - 1) * units] * pp)
    if name in ("zb-h2", "zb-v"):  # rank r starts r forwards late and then never waits
        own_spans = [end_s - rank for rank, end_s in enumerate(times.end_s)]
        assert own_spans == pytest.approx(times.busy_s)


@pytest.mark.parametrize(("pp", "m"), SIZES)
def test_idle_time_with_unequal_passes(pp: int, m: int) -> None:
    f, i, w = 1.0, 1.25, 0.75
    for name, idle_s in (
        ("1f1b", f + i + w),
        ("interleaved-1f1b", f + i + w),
        ("zb-h1", f + i - w),
    ):
        times = pipeline_times(
            name, pp=pp, vpp=VPP[name], num_micro_batches=m, seconds=even(pp * VPP[name], f, i, w)
        )
        assert times.makespan_s - times.busy_s[0] == pytest.approx((pp - 1) * idle_s)


def test_the_overlapped_pair_shortens_dualpipev_as_its_authors_say() -> None:
    """Idle time (PP/2 - 1)(FB + B - 3W) with PP = 2p stages, where B is a full backward.

    So it is on the last rank, which has most pairs; ranks with fewer of them are busier.
    """
    for pp in (2, 4, 5):
        times = pipeline_times(
            "dualpipev", pp=pp, vpp=2, num_micro_batches=4 * pp, seconds=even(2 * pp, 1, 1, 1),
            overlap_ratio=0.9,
        )  # fmt: skip
        idle_s = times.makespan_s - times.busy_s[-1]
        assert idle_s == pytest.approx((pp - 1) * (2.7 + 2 - 3))


@pytest.mark.parametrize("pp", [2, 3, 4, 7])
def test_micro_batches_held(pp: int) -> None:
    """By rank, each of one virtual stage."""
    m = 6 * pp
    expected = {
        "gpipe": [m] * pp,
        "1f1b": [pp - rank for rank in range(pp)],
        "interleaved-1f1b": [2 * pp + 2 * (pp - rank - 1) + 1 for rank in range(pp)],
        "zb-h1": [pp] * pp,
        "zb-h2": [2 * pp - 1] * pp,
        "zb-v": [2 * pp] * pp,
        "dualpipev": [2 * pp + 1] * pp,
    }
    for name, vpp in VPP.items():
        held = in_flight(name, pp=pp, vpp=vpp, num_micro_batches=m)
        assert [max(map(sum, rank)) for rank in held] == expected[name], name


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 10), (4, 2, 3)])
def test_interleaving_is_torchs(pp: int, vpp: int, m: int) -> None:
    order = computation_order("interleaved-1f1b", pp, vpp, m)
    for rank, row in enumerate(order):
        theirs = torch_row(ScheduleInterleaved1F1B, pp, vpp, m, rank)
        assert list(map(str, row)) == theirs


@pytest.mark.parametrize(("pp", "m"), [(2, 2), (3, 7), (4, 4), (4, 12)])
def test_zb_h1_is_torchs(pp: int, m: int) -> None:
    """Torch's rounds need m to be a multiple of how many there are; with one stage it is idle."""
    for rank, row in enumerate(computation_order("zb-h1", pp, 1, m)):
        assert list(map(str, row)) == torch_row(ScheduleInterleavedZeroBubble, pp, 1, m, rank)


def test_zb_h1_in_words() -> None:
    rows = [" ".join(map(str, row)) for row in computation_order("zb-h1", 2, 1, 3)]
    assert rows == ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"]


def test_megatrons_example() -> None:
    """Its docstring: 5 micro-batches, 2 chunks and groups of 3 pass as 3 + 3, then 2 + 2."""
    assert groups_of_micro_batches(2, 5) == [3, 2]
    row = computation_order("interleaved-1f1b", 2, 2, 5)[1]
    forwards = [(a.stage // 2, a.micro_batch) for a in row if a.kind is ActionKind.FORWARD]
    assert forwards == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (1, 3), (1, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("m", [1, 3, 4, 7, 8, 11, 23])
def test_groups_have_at_least_pp_micro_batches(m: int) -> None:
    groups = groups_of_micro_batches(4, m)
    assert sum(groups) == m
    assert min(groups) >= min(4, m)
    assert max(groups) - min(groups) <= 1


def test_every_stage_is_computed_where_it_lies() -> None:
    for name, vpp in VPP.items():
        ranks = ranks_of_stages(name, 3, vpp)
        assert Counter(ranks) == {0: vpp, 1: vpp, 2: vpp}
        for rank, row in enumerate(computation_order(name, 3, vpp, 5)):
            stages = {part.stage for action in row for part in action.parts or (action,)}
            assert {ranks[stage] for stage in stages} == {rank}


@pytest.mark.parametrize(
    ("name", "vpp", "problem"),
    [
        ("1f1b", 2, "1f1b has one stage per rank, but vpp = 2"),
        ("zb-h2", 3, "zb-h2 has one stage per rank, but vpp = 3"),
        ("interleaved-1f1b", 1, "interleaved-1f1b has at least two stages per rank, but vpp = 1"),
        ("zb-v", 1, "zb-v has two stages per rank, but vpp = 1"),
        ("dualpipev", 4, "dualpipev has two stages per rank, but vpp = 4"),
        ("zigzag", 1, "there is no generator for the schedule zigzag"),
        ("custom", 1, "there is no generator for the schedule custom"),
    ],
)
def test_what_a_schedule_cannot_have(name: str, vpp: int, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        computation_order(name, 4, vpp, 8)
