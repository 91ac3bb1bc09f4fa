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
_WAIT = TABLES.index(None)

Work = tuple[int, int, int]
"""(boundary, table, stage): the message behind stage ``boundary`` is awaited (-1: none), then what
``TABLES[table]`` says is computed on ``stage``."""

Key = int
"""Of an output that is kept, a number from its kind, its stage and its micro-batch: see `_Keys`."""


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
    later = [writer.later(key, period) for key in state]
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


@dataclass(frozen=True, slots=True)
class _Keys:
    """Numbers of outputs: four kinds for each stage, and as many again for each micro-batch.

    The latest of a stage or a rank, whatever its micro-batch, come first.
    """

    num_stages: int

    @property
    def stride(self) -> int:
        """From one micro-batch to the next."""
        return 4 * self.num_stages

    def output(self, kind: ActionKind, stage: int, micro_batch: int) -> Key:
        """Of a forward (F), or of a backward or input gradient (B)."""
        return (micro_batch + 1) * self.stride + (kind is not _F) * self.num_stages + stage

    def latest_weights(self, stage: int) -> Key:
        """The stage's latest gradient of weights."""
        return 2 * self.num_stages + stage

    def latest_of_rank(self, rank: int) -> Key:
        """The rank's latest operation."""
        return 3 * self.num_stages + rank

    def later(self, key: Key, num_micro_batches: int) -> Key:
        """The same so many micro-batches later."""
        return key if key < self.stride else key + num_micro_batches * self.stride

    def parts(self, key: Key) -> tuple[ActionKind, int, int] | None:
        """What `output` numbered; None of the latest ones."""
        micro_batch, rest = divmod(key, self.stride)
        is_backward, stage = divmod(rest, self.num_stages)
        return (_B if is_backward else _F, stage, micro_batch - 1) if micro_batch else None


@dataclass(frozen=True, slots=True)
class _Step:
    """What to write for one kind of action on one stage; keys are those of micro-batch 0."""

    given: Key | None
    """What it reads of another rank; what its own rank made is there in any case."""
    boundary: int
    """Behind which stage it waits for a message; -1: it does not."""
    made: Key | None
    weights: Key | None
    """The stage's latest gradient of weights, where it makes one."""
    work: int
    """Alone, not in a pair."""


@dataclass(slots=True)
class _Draft:
    """A segment while it is written."""

    places: dict[Key, int]
    first: int
    """The place of its first operation."""
    operations: list[tuple[int, int, int]] = field(default_factory=list)
    num_pairs: Counter[int] = field(default_factory=Counter)

    def segment(self, state: list[Key]) -> Segment:
        """What is 0 in the state has not happened yet."""
        passed_on = (0, *(self.places.get(key, 0) for key in state))
        return Segment(tuple(self.operations), passed_on, tuple(self.num_pairs.items()))


class _Writer:
    """Numbers the works of several segments alike."""

    def __init__(self, rank_of_stage: tuple[int, ...]) -> None:
        self._ranks = rank_of_stage
        self._keys = _Keys(len(rank_of_stage))
        self._works: dict[tuple[Work, int], int] = {}
        """By the work and, for a pair, the stage of its forward; else -1."""
        self._steps: dict[tuple[int, ActionKind], _Step] = {}

    def outputs(self) -> list[Key]:
        """Of a whole step."""
        num_ranks, num_stages = max(self._ranks) + 1, len(self._ranks)
        ranks = list(map(self._keys.latest_of_rank, range(num_ranks)))
        return ranks + list(map(self._keys.latest_weights, range(num_stages)))

    def still_to_be_read(self, prefix: _Draft) -> list[Key]:
        """What another rank has not read."""
        found: list[Key] = []
        for key in prefix.places:
            parts = self._keys.parts(key)
            if parts is None:
                continue
            kind, stage, micro_batch = parts
            reader = stage + (1 if kind is _F else -1)
            if not self._is_remote(stage, reader):
                continue
            if self._keys.output(kind, reader, micro_batch) not in prefix.places:
                found.append(key)
        return found

    def later(self, key: Key, num_micro_batches: int) -> Key:
        """The same output so many micro-batches later."""
        return self._keys.later(key, num_micro_batches)

    def segment(self, rows: Order, state: list[Key]) -> _Draft | None:
        """Run each rank as far as it gets, in turn; None if not all of them get to their end."""
        draft = _Draft({key: place for place, key in enumerate(state, start=1)}, len(state) + 1)
        left = [iter(row) for row in rows]
        waiting = [next(row, None) for row in left]
        moved = True
        while moved:
            moved = False
            for rank, row in enumerate(left):
                action = waiting[rank]
                while action is not None and self._write(draft, rank, action):
                    action, moved = next(row, None), True
                waiting[rank] = action
        return draft if all(action is None for action in waiting) else None

    def finish(self, runs: tuple[tuple[Segment, int], ...]) -> FlatOrder:
        """``runs`` with all works that any of them has."""
        works = tuple(work for work, _ in self._works)
        pairs = tuple((i, forward) for (_, forward), i in self._works.items() if forward >= 0)
        return FlatOrder(self._ranks, works, pairs, runs)

    def _write(self, draft: _Draft, rank: int, action: Action) -> bool:
        """Append an action's operations; False while its input is not there."""
        if action.parts:
            return self._write_pair(draft, rank, action.parts)
        step = self._steps.get((action.stage, action.kind)) or self._new_step(action)
        later, places = (action.micro_batch or 0) * self._keys.stride, draft.places
        source = 0 if step.given is None else places.get(step.given + later)
        if source is None:
            return False
        self._append(draft, rank, source, step, later, step.work)
        return True

    def _write_pair(self, draft: _Draft, rank: int, parts: tuple[Action, ...]) -> bool:
        """A pair waits for both its inputs, the forward's in an operation of its own."""
        forward, backward = (
            self._steps.get((one.stage, one.kind)) or self._new_step(one) for one in parts
        )
        laters = [(one.micro_batch or 0) * self._keys.stride for one in parts]
        sources = [
            0 if step.given is None else draft.places.get(step.given + later)
            for step, later in zip((forward, backward), laters, strict=True)
        ]
        if sources[0] is None or sources[1] is None:
            return False
        if forward.given is not None:
            wait = self._number((forward.boundary, _WAIT, parts[0].stage), -1)
            self._append(draft, rank, sources[0], None, 0, wait)
        table = TABLES.index(parts[1].kind)
        work = self._number((backward.boundary, table, parts[1].stage), parts[0].stage)
        place = self._append(draft, rank, sources[1], backward, laters[1], work)
        draft.num_pairs[work] += 1
        assert forward.made is not None
        draft.places[forward.made + laters[0]] = place
        return True

    def _append(
        self, draft: _Draft, rank: int, source: int, step: _Step | None, later: int, work: int
    ) -> int:
        """An operation of a rank; returns its place."""
        latest, places = self._keys.latest_of_rank(rank), draft.places
        draft.operations.append((places.get(latest, 0), source, work))
        place = places[latest] = draft.first + len(draft.operations) - 1
        if step is not None:
            if step.made is not None:
                places[step.made + later] = place
            if step.weights is not None:
                places[step.weights] = place
        return place

    def _new_step(self, action: Action) -> _Step:
        stage, kind, keys = action.stage, action.kind, self._keys
        source = stage - 1 if kind is _F else stage + 1
        is_read = kind is not _W and self._is_remote(stage, source)
        boundary = min(stage, source) if is_read else -1
        step = self._steps[stage, kind] = _Step(
            keys.output(kind, source, 0) if is_read else None,
            boundary,
            None if kind is _W else keys.output(kind, stage, 0),
            keys.latest_weights(stage) if kind in (_B, _W) else None,
            self._number((boundary, TABLES.index(kind), stage), -1),
        )
        return step

    def _number(self, work: Work, pair: int) -> int:
        return self._works.setdefault((work, pair), len(self._works))

    def _is_remote(self, stage: int, peer: int) -> bool:
        return 0 <= peer < len(self._ranks) and self._ranks[peer] != self._ranks[stage]
