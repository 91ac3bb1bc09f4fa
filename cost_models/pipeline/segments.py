"""Orders of computations as flat lists of numbers, cut where a long step repeats itself.

The rows for m + P micro-batches are those for m with one *period* put in. A step of any length is
therefore a prefix, some number of periods, and a suffix. Each is a `Segment`: a straight line of
operations that reads the times at which earlier ones ended, its *state*, and hands on a state of
the same form.

An operation (previous, input, work) starts when the rank's previous operation and the one that
computed its input are over. Both are places: 0 is the start of the step, then come the entries of
the state, then the segment's own operations.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from shardwright.cost_models.pipeline.orders import Order, computation_order, ranks_of_stages
from shardwright.cost_models.pipeline.schedules import sequential_actions
from shardwright.specs import Action, ActionKind, ScheduleName

_F, _B = ActionKind.FORWARD, ActionKind.BACKWARD
_I, _W = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT

TABLES: tuple[ActionKind | None, ...] = (_F, _B, _I, _W, None)
"""Which seconds a work takes; those of None are 0: an operation that only waits."""

Work = tuple[int, int, int]
"""(boundary, table, stage): the message behind stage ``boundary`` is awaited (-1: none), then what
``TABLES[table]`` says is computed on ``stage``."""

Key = tuple[ActionKind | None, int, int]
"""(F or B, stage, micro-batch) of an output; (W, stage, -1) is the stage's latest gradient of
weights, (None, rank, -1) the rank's latest operation."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A straight line of operations."""

    operations: tuple[tuple[int, int, int], ...]
    passed_on: tuple[int, ...]
    """The places of the state after it: the start of the step, the latest operation of each rank,
    the latest gradient of weights of each stage, then whatever is still to be read."""
    num_pairs: tuple[tuple[int, int], ...]
    """(work, how often) of its overlapped pairs."""

    def memory(self) -> tuple[tuple[int, ...], ...]:
        """The places of a period's state that later periods depend on, those always alike together.

        The state before a period and that after it have the same places.
        """
        size = len(self.passed_on)
        read = {place for operation in self.operations for place in operation[:2]}
        handed_on = set(self.passed_on)
        alike: dict[int, list[int]] = {}
        for place in range(1, size):
            if place in read or place in handed_on:
                alike.setdefault(self.passed_on[place], []).append(place)
        return tuple(map(tuple, alike.values()))


@dataclass(frozen=True, slots=True)
class FlatOrder:
    """A whole step, ready to be timed."""

    rank_of_stage: tuple[int, ...]
    works: tuple[Work, ...]
    pairs: tuple[tuple[int, int], ...]
    """(work, stage of the forward) of overlapped pairs; the work itself is that of the backward."""
    runs: tuple[tuple[Segment, int], ...]
    """Segments, each with how many times it runs."""
    memory: tuple[tuple[int, ...], ...] = ()
    """Of the one that runs more than once; see `Segment.memory`."""


@lru_cache(maxsize=512)
def flat_order(
    name: ScheduleName | str | None, pp: int, vpp: int, num_micro_batches: int
) -> FlatOrder:
    """The order of that schedule (null: without a pipeline).

    Raises:
        InputError: as `computation_order`.
    """
    ranks = (0,) * vpp if name is None else ranks_of_stages(name, pp, vpp)
    split = split_of(name, pp, vpp, num_micro_batches)
    if split is None:
        writer = _Writer(ranks)
        whole = writer.segment(_order(name, pp, vpp, num_micro_batches), [])
        assert whole is not None, "an order that is generated can be executed"
        return writer.finish(((whole.segment(writer.outputs()), 1),))
    count = (num_micro_batches - split.num_micro_batches) // split.period
    prefix, period, suffix = split.segments
    runs = ((prefix, 1), (period, count), (suffix, 1))
    return FlatOrder(ranks, split.works, split.pairs, runs, split.memory)


@dataclass(frozen=True, slots=True)
class Split:
    """The segments of every step that is longer by whole periods."""

    num_micro_batches: int
    """Of the step without any period."""
    period: int
    """Micro-batches of one period."""
    works: tuple[Work, ...]
    pairs: tuple[tuple[int, int], ...]
    segments: tuple[Segment, Segment, Segment]
    """Prefix, period, suffix."""
    memory: tuple[tuple[int, ...], ...]
    """Of the period; see `Segment.memory`."""


def split_of(
    name: ScheduleName | str | None, pp: int, vpp: int, num_micro_batches: int
) -> Split | None:
    """How a long step repeats itself; None for one that is short, and for GPipe, which does not.

    Up to 2 pp micro-batches are in flight. Interleaved ones go in groups of pp, larger ones first.
    """
    if name == ScheduleName.GPIPE:
        return None
    is_grouped = name == ScheduleName.INTERLEAVED
    period = pp if is_grouped else 1
    num_larger = num_micro_batches % pp if is_grouped else 0
    least = 2 * period + (2 + num_larger) * pp
    shortest = least + (num_micro_batches - least) % period
    if num_micro_batches < shortest + 2 * period:
        return None
    return _split(name, pp, vpp, shortest, period)


@lru_cache(maxsize=256)
def _split(
    name: ScheduleName | str | None, pp: int, vpp: int, num_micro_batches: int, period: int
) -> Split | None:
    short = _order(name, pp, vpp, num_micro_batches)
    long = _order(name, pp, vpp, num_micro_batches + period)
    cuts = []
    for row, longer in zip(short, long, strict=True):
        cut = next((i for i, a in enumerate(row) if a != longer[i]), len(row))
        length = len(longer) - len(row)
        inserted = longer[cut : cut + length]
        if not _is_shifted(row[cut:], longer[cut + length :], period):
            return None
        if not _is_shifted(row[cut - length : cut], inserted, period):
            return None
        cuts.append((cut, length))
    writer = _Writer((0,) * vpp if name is None else ranks_of_stages(name, pp, vpp))
    prefix = writer.segment([row[:cut] for row, (cut, _) in zip(short, cuts, strict=True)], [])
    if prefix is None:
        return None
    state = [*writer.outputs(), *writer.still_to_be_read(prefix)]
    inserted_rows = [row[cut : cut + n] for row, (cut, n) in zip(long, cuts, strict=True)]
    repeated = writer.segment(inserted_rows, state)
    suffix = writer.segment([row[c:] for row, (c, _) in zip(short, cuts, strict=True)], state)
    later = [_later(key, period) for key in state]
    if repeated is None or suffix is None or any(key not in repeated.places for key in later):
        return None
    segments = (prefix.segment(state), repeated.segment(later), suffix.segment(writer.outputs()))
    flat = writer.finish(())
    memory = segments[1].memory()
    return Split(num_micro_batches, period, flat.works, flat.pairs, segments, memory)


def _order(name: ScheduleName | str | None, pp: int, vpp: int, num_micro_batches: int) -> Order:
    if name is None:
        return [list(sequential_actions(num_micro_batches))]
    return computation_order(name, pp, vpp, num_micro_batches)


def _is_shifted(row: list[Action], later: list[Action], period: int) -> bool:
    """Whether two rows are the same but for micro-batches that are later by a period."""
    return len(row) == len(later) and all(
        a.kind is b.kind
        and all(
            (x.stage, x.kind) == (y.stage, y.kind)
            and (x.micro_batch or 0) + period == y.micro_batch
            for x, y in zip(a.parts or (a,), b.parts or (b,), strict=True)
        )
        for a, b in zip(row, later, strict=True)
    )


def _later(key: Key, period: int) -> Key:
    kind, index, micro_batch = key
    return key if micro_batch < 0 else (kind, index, micro_batch + period)


@dataclass(slots=True)
class _Draft:
    """A segment while it is written."""

    places: dict[Key, int]
    first: int
    """The place of its first operation."""
    operations: list[tuple[int, int, int]] = field(default_factory=list)
    num_pairs: Counter[int] = field(default_factory=Counter)

    def append(self, rank: int, given: Key | None, work: int) -> int:
        """An operation of a rank; returns its place."""
        latest: Key = (None, rank, -1)
        source = 0 if given is None else self.places[given]
        self.operations.append((self.places.get(latest, 0), source, work))
        place = self.first + len(self.operations) - 1
        self.places[latest] = place
        return place

    def segment(self, state: list[Key]) -> Segment:
        """What is 0 in the state has not happened yet."""
        passed_on = (0, *(self.places.get(key, 0) for key in state))
        return Segment(tuple(self.operations), passed_on, tuple(self.num_pairs.items()))


class _Writer:
    """Numbers the works of several segments alike."""

    def __init__(self, rank_of_stage: tuple[int, ...]) -> None:
        self._ranks = rank_of_stage
        self._works: dict[tuple[Work, int], int] = {}
        """By the work and, for a pair, the stage of its forward; else -1."""

    def outputs(self) -> list[Key]:
        """Of a whole step."""
        ranks: list[Key] = [(None, rank, -1) for rank in range(max(self._ranks) + 1)]
        return ranks + [(_W, stage, -1) for stage in range(len(self._ranks))]

    def still_to_be_read(self, prefix: _Draft) -> list[Key]:
        """What another rank has not read."""
        found: list[Key] = []
        for kind, stage, micro_batch in prefix.places:
            reader = stage + (1 if kind is _F else -1)
            is_read = (kind, reader, micro_batch) in prefix.places
            if micro_batch >= 0 and self._is_remote(stage, reader) and not is_read:
                found.append((kind, stage, micro_batch))
        return found

    def segment(self, rows: Order, state: list[Key]) -> _Draft | None:
        """Run each rank as far as it gets, in turn; None if not all of them get to their end."""
        draft = _Draft({key: place for place, key in enumerate(state, start=1)}, len(state) + 1)
        at = [0] * len(rows)
        moved = True
        while moved:
            moved = False
            for rank, row in enumerate(rows):
                while at[rank] < len(row) and self._write(draft, rank, row[at[rank]]):
                    at[rank] += 1
                    moved = True
        return draft if all(a == len(row) for a, row in zip(at, rows, strict=True)) else None

    def finish(self, runs: tuple[tuple[Segment, int], ...]) -> FlatOrder:
        """``runs`` with all works that any of them has."""
        works = tuple(work for work, _ in self._works)
        pairs = tuple((i, forward) for (_, forward), i in self._works.items() if forward >= 0)
        return FlatOrder(self._ranks, works, pairs, runs)

    def _write(self, draft: _Draft, rank: int, action: Action) -> bool:
        """Append an action's operations; False while its input is not there.

        A pair waits for both its inputs, the forward's in an operation of its own.
        """
        parts = action.parts or (action,)
        inputs = [self._input_of(part) for part in parts]
        if any(key is not None and key not in draft.places for key in inputs):
            return False
        if len(parts) == 2 and inputs[0] is not None:
            draft.append(rank, inputs[0], self._number(parts[0], inputs[0], None, -1))
        last, forward = parts[-1], parts[0].stage if len(parts) == 2 else -1
        work = self._number(last, inputs[-1], last.kind, forward)
        place = draft.append(rank, inputs[-1], work)
        if len(parts) == 2:
            draft.num_pairs[work] += 1
        for part in parts:
            if part.kind is not _W:
                assert part.micro_batch is not None
                draft.places[_F if part.kind is _F else _B, part.stage, part.micro_batch] = place
            if part.kind in (_B, _W):
                draft.places[_W, part.stage, -1] = place
        return True

    def _number(self, action: Action, key: Key | None, kind: ActionKind | None, pair: int) -> int:
        boundary = -1 if key is None else min(action.stage, key[1])
        work = (boundary, TABLES.index(kind), action.stage)
        return self._works.setdefault((work, pair), len(self._works))

    def _input_of(self, action: Action) -> Key | None:
        """What an action reads of another rank; what its own rank made is there in any case."""
        kind, source = (_F, action.stage - 1) if action.kind is _F else (_B, action.stage + 1)
        if action.kind is _W or not self._is_remote(action.stage, source):
            return None
        assert action.micro_batch is not None
        return kind, source, action.micro_batch

    def _is_remote(self, stage: int, peer: int) -> bool:
        return 0 <= peer < len(self._ranks) and self._ranks[peer] != self._ranks[stage]
