"""How long a model's layers take at least on ranks that must also hold them, for many states.

A layer holds S bytes, takes W seconds for a micro-batch and keeps V bytes of it; of these g(t) are
given up for t seconds of recomputation (the hull of the policies). With k micro-batches in flight,
a rank that has w seconds for each fits w / (W + t) layers where
w (S + k (V - g(t))) <= room (W + t), and only whole ones. Ranks must hold all layers together.

Where every rank has one stage, it starts after the passes of the ranks before it: the more layers
come later, the more time it has. From all layers on every rank later, what ranks can do falls to
what they can do together, and is an upper bound all the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SLACK = 1e-9
"""Relative: sums in another order than the simulation's may differ by rounding."""

_FIRST_STEP, _STEP_GROWTH = 0.02, 2.5
"""The least is looked for in growing steps from where it may be; relative."""

_MOST_ROUNDS = 4
"""In which what ranks can do together falls."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Path:
    """What a rank waits for before its first micro-batch, and where one stage is all it has."""

    ratio: float = 0.0
    """Of a layer's seconds, what the next rank starts later for it."""
    loop_ratio: float = 0.0
    """Of a layer's seconds, what one micro-batch takes there and back; 0 where more micro-batches
    are in flight than ranks follow."""
    message_s: float = 0.0
    """For each rank before, of the message, or two where the backward is not split."""
    away_s: float = 0.0
    """Of one message."""
    received_s: float = 0.0
    """For each neighbour, where ranks wait for their messages."""
    first_less_s: float = 0.0
    """By so much less is ``message_s`` for the first rank."""


@dataclass(frozen=True)
class Rooms:
    """The ranks of one grid under n states."""

    layer_s: float
    """W, with nothing gathered, moved or computed again."""
    num_layers: int
    flights: tuple[int, ...]
    """k of each rank."""
    room_bytes: float
    """Of a rank that holds layers alone."""
    held: Floats
    """S: [n]."""
    points: tuple[tuple[Floats, Floats], ...]
    """(t, V - g(t)), the shortest t first: [n] each; t with what is gathered and moved beside the
    passes."""
    first_s: float
    """What the first rank needs for other blocks in any case."""
    first_bytes: Floats
    last_s: float
    last_bytes: Floats
    last_rank: int
    """That with the head: the first where the pipeline is a V."""
    num_microbatches: int
    path: Path
    ends_fit: NDArray[np.bool_]
    """Whether the first rank's and the last's other blocks fit alone: [n]."""
    _own_s: Floats = field(init=False)
    """For every micro-batch, beside layers: [ranks, 1]."""
    _messages_s: Floats = field(init=False)
    """Before the first micro-batch: [ranks, 1]."""
    _room: Floats = field(init=False)
    """[ranks, n]."""
    _flights: Floats = field(init=False)

    def __post_init__(self) -> None:
        ranks, path = len(self.flights), self.path
        own_s = np.zeros((ranks, 1))
        own_s[0] += self.first_s
        own_s[self.last_rank] += self.last_s
        own_s[1:] += path.received_s
        own_s[:-1] += path.received_s
        messages_s = np.arange(ranks)[:, None] * path.message_s
        messages_s[1:] -= path.first_less_s
        room = np.full((ranks, len(self.held)), self.room_bytes)
        room[0] -= self.first_bytes
        room[self.last_rank] -= self.last_bytes
        object.__setattr__(self, "_own_s", own_s)
        object.__setattr__(self, "_messages_s", messages_s)
        object.__setattr__(self, "_room", room)
        object.__setattr__(self, "_flights", np.array(self.flights, dtype=float)[:, None])

    def are_enough(self, busy_s: float | Floats) -> NDArray[np.bool_]:
        """Under which states all layers find a place on ranks that have done all micro-batches by
        then: [n]."""
        left_s = busy_s - self._messages_s - self.num_microbatches * self._own_s
        fitting = self._fitting(left_s)
        later = np.cumsum(fitting[::-1], axis=0)[::-1]
        if self.path.ratio:
            caps = self._caps(busy_s)
            first_s = np.full((len(self.flights), 1), self.first_s)
            first_s[0] = 0.0
            for _ in range(_MOST_ROUNDS):
                later = np.minimum(later, caps)
                if not (later[0] >= self.num_layers).any():
                    break
                before_s = np.maximum(0.0, self.num_layers - later) * self.layer_s + first_s
                fitting = self._fitting(left_s - self.path.ratio * before_s)
                found = np.cumsum(fitting[::-1], axis=0)[::-1]
                if (found >= later).all():
                    break
                later = np.minimum(found, later)
        return np.asarray(later[0] >= self.num_layers) & self.ends_fit

    def _fitting(self, left_s: Floats) -> Floats:
        """Layers of each rank that has so much time for all micro-batches: [ranks, n]."""
        rank_s = np.maximum(left_s, 0.0) / self.num_microbatches
        return np.floor(self._share(rank_s) * (1 + SLACK)) * (self._room > 0.0)

    def _share(self, rank_s: Floats) -> Floats:
        """As many layers as there is room and time for, with fractions."""
        layer_s, room, flights = self.layer_s, self._room, self._flights
        needed = [self.held + flights * kept for _, kept in self.points]
        lacking = [
            rank_s * need - room * (layer_s + seconds)
            for need, (seconds, _) in zip(needed, self.points, strict=True)
        ]
        found = room / np.maximum(needed[-1], 1e-300)
        found = np.minimum(found, rank_s / (layer_s + self.points[0][0]))
        for at in reversed(range(1, len(self.points))):
            (before_s, _), (after_s, _) = self.points[at - 1], self.points[at]
            # Between two policies both sides are linear in t.
            span_s = np.maximum(after_s - before_s, 1e-300)
            slope = (needed[at - 1] - needed[at]) / span_s
            more_s = lacking[at - 1] / np.maximum(rank_s * slope + room, 1.0)
            found = np.where(
                lacking[at] <= 0.0, rank_s / (layer_s + before_s + np.maximum(more_s, 0.0)), found
            )
        return np.where(lacking[0] <= 0.0, rank_s / (layer_s + self.points[0][0]), found)

    def _caps(self, busy_s: float | Floats) -> Floats:
        """As many layers from each rank on: the forward of a micro-batch waits there for the
        backward of an earlier one, which has been to the last rank and back."""
        path, ranks = self.path, len(self.flights)
        following = np.arange(ranks, 0, -1)[:, None]
        rounds = -(-self.num_microbatches // following)
        growth = rounds * path.loop_ratio - path.ratio
        away_s = path.loop_ratio * self.last_s + 2 * (following - 1) * path.away_s
        first_s = np.full((ranks, 1), path.ratio * self.first_s)
        first_s[0] = path.loop_ratio * self.first_s * rounds[0]
        left_s = busy_s - self._messages_s - first_s - rounds * away_s
        left_s = left_s - path.ratio * self.num_layers * self.layer_s
        caps = np.floor(left_s / np.where(growth > 0.0, growth, 1.0) / self.layer_s * (1 + SLACK))
        return np.where(growth > 0.0, np.maximum(caps, 0.0), math.inf)

    def least_busy_s(self, low_s: float) -> Floats:
        """When the last rank has not yet done all micro-batches, from ``low_s`` on; infinite where
        not all layers find a place: [n]."""
        path, ranks = self.path, len(self.flights)
        work_s = self.num_layers * (self.layer_s + self.points[-1][0])
        beside_s = self.first_s + self.last_s + ranks * (path.message_s + 2 * path.away_s)
        most_s = (self.num_microbatches + 1) * (work_s + beside_s + 2 * path.received_s)
        found = np.full(len(self.held), low_s)
        can = self.are_enough(np.maximum(low_s, most_s))
        left = can & ~self.are_enough(low_s)
        over = _FIRST_STEP
        while left.any():
            tried_s = low_s * (1 + over)
            left &= ~self.are_enough(tried_s)
            found[left] = tried_s
            over *= _STEP_GROWTH
        return np.where(can, found, math.inf)
