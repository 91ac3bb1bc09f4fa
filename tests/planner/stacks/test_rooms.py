"""Ranks hold and do as many layers together as brute force finds, or more."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from shardwright.planner.stacks.rooms import Path, Rooms

HULL = ((0.0, 2.0), (0.25, 1.0), (1.0, 0.1))
"""Seconds of recomputation, and bytes that a layer then keeps."""


def rooms_of(draw: random.Random, *, path: Path) -> Rooms:
    ranks = draw.randint(2, 4)
    return Rooms(
        layer_s=1.0, num_layers=draw.randint(2, 6),
        flights=tuple(range(ranks, 0, -1)), room_bytes=draw.uniform(4.0, 14.0),
        held=np.array([1.0]),
        points=tuple((np.array([t]), np.array([v])) for t, v in HULL),
        first_s=draw.choice([0.0, 0.4]), first_bytes=np.array([draw.choice([0.0, 1.0])]),
        last_s=draw.choice([0.0, 0.7]), last_bytes=np.array([draw.choice([0.0, 1.5])]),
        last_rank=ranks - 1, num_microbatches=draw.randint(1, 6), path=path,
        ends_fit=np.array([True]),
    )  # fmt: skip


def least_s(rooms: Rooms) -> float:
    """Over all ways to place layers, each rank with the shortest policy mix that fits."""
    best_s = float("inf")
    ranks = len(rooms.flights)
    for counts in itertools.product(range(rooms.num_layers + 1), repeat=ranks):
        if sum(counts) == rooms.num_layers:
            best_s = min(best_s, step_s(rooms, counts))
    return best_s


def step_s(rooms: Rooms, counts: tuple[int, ...]) -> float:
    passed_s = worst_s = 0.0
    last = len(counts) - 1
    for rank, count in enumerate(counts):
        room = rooms.room_bytes - (rank == 0) * rooms.first_bytes[0]
        room -= (rank == last) * rooms.last_bytes[0]
        again_s = _again_s(rooms, rooms.flights[rank], count, room)
        own_s = count * rooms.layer_s + again_s
        own_s += (rank == 0) * rooms.first_s + (rank == last) * rooms.last_s
        worst_s = max(worst_s, passed_s + rooms.num_microbatches * own_s)
        passed_s += rooms.path.ratio * own_s + rooms.path.message_s
    return worst_s


def _again_s(rooms: Rooms, flights: int, count: int, room: float) -> float:
    """The least recomputation, each layer with one policy."""
    best_s = float("inf")
    for mix in itertools.combinations_with_replacement(rooms.points, count):
        needed = sum(rooms.held[0] + flights * kept[0] for _, kept in mix)
        if needed <= room:
            best_s = min(best_s, float(sum(seconds[0] for seconds, _ in mix)))
    return best_s


@pytest.mark.parametrize("path", [Path(), Path(1.0), Path(0.33, message_s=0.1)])
def test_what_can_be_done_is_never_called_impossible(path: Path) -> None:
    draw, found = random.Random(3), 0
    for _ in range(60):
        rooms = rooms_of(draw, path=path)
        best_s = least_s(rooms)
        if best_s == float("inf"):
            continue
        found += 1
        assert rooms.are_enough(best_s * (1 + 1e-9))[0]
        low_s = rooms.num_microbatches * rooms.num_layers / len(rooms.flights)
        assert rooms.least_busy_s(low_s)[0] <= best_s * (1 + 1e-9)
    assert found > 30


def test_too_little_room_is_never_enough() -> None:
    rooms = rooms_of(random.Random(1), path=Path())
    tight = replace(rooms, room_bytes=0.5)
    assert tight.least_busy_s(1.0)[0] == float("inf")


def test_loops_bound_what_follows() -> None:
    """A rank with one micro-batch in flight goes there and back for each."""
    rooms = rooms_of(random.Random(5), path=Path(1.0, 1.0, message_s=2.0, away_s=1.0))
    free = rooms_of(random.Random(5), path=Path(1.0, 0.0, message_s=2.0))
    low_s = rooms.num_microbatches * rooms.num_layers / len(rooms.flights)
    assert rooms.least_busy_s(low_s)[0] >= free.least_busy_s(low_s)[0]
