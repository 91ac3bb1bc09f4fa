"""Flat orders: every computation once, inputs before what reads them, periods that fit together."""

from __future__ import annotations

from collections import Counter

import pytest

from shardwright.cost_models.pipeline.orders import computation_order, ranks_of_stages
from shardwright.cost_models.pipeline.segments import TABLES, FlatOrder, flat_order, split_of
from shardwright.specs import ActionKind, InputError

VPP = {"1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2, "dualpipev": 2}


def computations(flat: FlatOrder) -> Counter[tuple[int, ActionKind]]:
    """How often each (stage, kind) is computed; a pair counts as its parts."""
    forwards = dict(flat.pairs)
    found: Counter[tuple[int, ActionKind]] = Counter()
    for segment, count in flat.runs:
        for _, _, work in segment.operations:
            _, table, stage = flat.works[work]
            kind = TABLES[table]
            if kind is not None:
                found[stage, kind] += count
            if work in forwards:
                found[forwards[work], ActionKind.FORWARD] += count
    return found


@pytest.mark.parametrize("m", [1, 5, 24, 96, 101])
@pytest.mark.parametrize("name", VPP)
def test_every_computation_is_there(name: str, m: int) -> None:
    order = computation_order(name, 4, VPP[name], m)
    expected = Counter(
        (part.stage, part.kind) for row in order for a in row for part in a.parts or (a,)
    )
    assert computations(flat_order(name, 4, VPP[name], m)) == expected


@pytest.mark.parametrize("m", [6, 96])
@pytest.mark.parametrize("name", VPP)
def test_operations_read_what_is_before_them(name: str, m: int) -> None:
    flat = flat_order(name, 4, VPP[name], m)
    size = 1
    for segment, _ in flat.runs:
        for place, operation in enumerate(segment.operations, start=size):
            assert max(operation[:2]) < place
        length = size + len(segment.operations)
        assert max(segment.passed_on) < length
        assert segment.passed_on[0] == 0
        size = len(segment.passed_on)
    assert size == 1 + 4 + 4 * VPP[name]


def test_one_f_one_b_by_hand() -> None:
    """Rank 0: F0 F1 B0 B1; rank 1: F0 B0 F1 B1. Places: rank 0's forwards first, then rank 1."""
    flat = flat_order("1f1b", 2, 1, 2)
    ((segment, count),) = flat.runs
    names = [(boundary, TABLES[table], stage) for boundary, table, stage in flat.works]
    forward, backward = ActionKind.FORWARD, ActionKind.BACKWARD
    assert names == [(-1, forward, 0), (0, backward, 0), (0, forward, 1), (-1, backward, 1)]
    assert count == 1
    assert segment.operations == (
        (0, 0, 0), (1, 0, 0), (0, 1, 2), (3, 0, 3), (4, 2, 2), (5, 0, 3), (2, 4, 1), (7, 6, 1),
    )  # fmt: skip
    assert segment.passed_on == (0, 8, 6, 8, 6)


@pytest.mark.parametrize("name", VPP)
def test_a_long_step_is_split_and_short_ones_are_not(name: str) -> None:
    vpp = VPP[name]
    assert split_of(name, 4, vpp, 11) is None
    split = split_of(name, 4, vpp, 128)
    assert split is not None
    assert (128 - split.num_micro_batches) % split.period == 0
    assert split is split_of(name, 4, vpp, 128 + split.period)
    prefix, period, suffix = split.segments
    assert len(period.passed_on) == len(prefix.passed_on) >= len(suffix.passed_on)


@pytest.mark.parametrize("name", VPP)
def test_memory_is_all_that_a_period_depends_on(name: str) -> None:
    """Places that are alike are handed on alike, and every place that is read is one of them."""
    split = split_of(name, 4, VPP[name], 128)
    assert split is not None
    period = split.segments[1]
    remembered = [place for places in split.memory for place in places]
    assert len(set(remembered)) == len(remembered)
    for places in split.memory:
        assert len({period.passed_on[place] for place in places}) == 1
    read = {place for operation in period.operations for place in operation[:2]}
    assert {place for place in read if 0 < place < len(period.passed_on)} <= set(remembered)


def test_gpipe_is_never_split() -> None:
    assert split_of("gpipe", 4, 1, 512) is None


def test_without_a_pipeline() -> None:
    flat = flat_order(None, 1, 1, 3)
    assert computations(flat) == {(0, ActionKind.FORWARD): 3, (0, ActionKind.BACKWARD): 3}


def test_only_messages_between_ranks_are_awaited() -> None:
    flat = flat_order("zb-v", 3, 2, 6)
    ranks = ranks_of_stages("zb-v", 3, 2)
    boundaries = {boundary for boundary, _, _ in flat.works if boundary >= 0}
    assert boundaries == {b for b in range(5) if ranks[b] != ranks[b + 1]}


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(InputError, match="two stages per rank"):
        flat_order("zb-v", 3, 1, 6)
