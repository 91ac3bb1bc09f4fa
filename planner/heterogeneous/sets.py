"""The best set of replicas on given groups for a share of the batch, refined as far as needed.

A set that trains n sequences a step has one entry for each choice; choices that differ in zero and
recompute alone begin as one `Family`. An entry's value is a lower bound that is raised step by
step: work spread at will, boundaries by dynamic programme, and boundary by boundary the step itself
(`Entry`). What comes to the top of a `Column` with its own step is the best of them all.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.stacks.mixed import MixedModel
from shardwright.planner.heterogeneous.bounds import (
    Boundaries,
    Floats,
    Pipeline,
    continuous_bound_s,
)
from shardwright.planner.heterogeneous.layouts import ChosenSet, set_layout
from shardwright.planner.heterogeneous.space import MixedSpace, SetChoice, SetFamily
from shardwright.planner.heterogeneous.units import Shape, UnitPrices
from shardwright.planner.problem import Problem
from shardwright.specs import HeadBlock
from shardwright.specs.layout import is_too_long

TOLERANCE = 1e-9
"""Relative: what differs by less is equally good."""
_BATCH = 32
"""Boundaries that an entry simulates before others get their turn."""
_FAMILIES_TRIED = 4
"""Times as many families as choices are looked at for a first layout: some do not fit."""
_POPS = 512
"""Boundaries that it looks at, known in part or whole."""


@dataclass
class Books:
    """What a search did, shared by all its parts."""

    simulated: int = 0
    excluded_by_memory: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A set of replicas that fits, with what it takes."""

    step_s: float
    chosen: ChosenSet


@dataclass(frozen=True, slots=True)
class Family:
    """Choices that differ in zero and recompute alone, with a count of micro-batches."""

    choices: SetFamily
    num_micro_batches: int
    is_bounded: bool = False
    """Whether its bound knows of memory and links."""


@dataclass
class Entry:
    """One choice with its count of micro-batches."""

    choice: SetChoice
    num_micro_batches: int
    bound_s: float
    is_cut: bool = False
    """Whether the bound is that of the best boundaries."""
    is_exact: bool = False
    best: Found | None = None
    boundaries: Iterator[tuple[float, tuple[int, ...] | None]] | None = None
    put_back: tuple[float, tuple[int, ...] | None] | None = None
    """Boundaries that were taken but not priced: they come first."""

    def following(self) -> tuple[float, tuple[int, ...] | None] | None:
        """The next boundaries with their bound; None after the last."""
        assert self.boundaries is not None
        found, self.put_back = self.put_back, None
        return found or next(self.boundaries, None)


class Place(NamedTuple):
    """Where a segment is in its pipeline: all that its memory depends on beside its shape."""

    is_first: bool
    is_last: bool
    stages: int
    flights: int
    """Micro-batches that its last stage keeps."""
    in_pipeline: bool


Variants = tuple[tuple[int, ...], tuple[str, ...]]
"""Every zero and every recompute of a family."""


def places(choice: SetChoice, num_micro_batches: int) -> list[Place]:
    """Of each segment of a set of replicas."""
    found, after, last = [], choice.pp, len(choice.segments) - 1
    for index, segment in enumerate(choice.segments):
        after -= segment.pp
        flights = min(num_micro_batches, after + 1)
        found.append(Place(index == 0, index == last, segment.pp, flights, choice.pp > 1))
    return found


class SetPricer:
    """Prices sets of replicas of one problem."""

    def __init__(self, problem: Problem, pricer: MixedModel, books: Books) -> None:
        self._problem, self._pricer, self._books = problem, pricer, books
        self._units = UnitPrices(problem, pricer)
        blocks = problem.model.decoder.blocks
        self._is_tied = any(isinstance(one, HeadBlock) and one.tied for one in blocks)
        self._links: dict[SetChoice, tuple[list[float], float]] = {}
        self._parts: dict[tuple[Shape, Place], Floats] = {}
        self._least: dict[tuple[Shape, Place, Variants], Floats] = {}

    def family_bound_s(self, family: Family, exchange_s: float) -> float:
        """No choice of a family is faster; ``exchange_s``: of gradients with other sets."""
        choice, m = family.choices.plain, family.num_micro_batches
        bound = self._continuous_s(choice, self._least_segments(family), m)
        tail_s = min(self._tail_s(choice._replace(zero=zero)) for zero in family.choices.zeros)
        return self._with_exchange_s(bound + tail_s, m, exchange_s)

    def entry(self, choice: SetChoice, num_micro_batches: int, exchange_s: float) -> Entry:
        """With the first bound."""
        segments = [
            self._part(self._shape(choice, index), place)
            for index, place in enumerate(places(choice, num_micro_batches))
        ]
        bound = self._continuous_s(choice, segments, num_micro_batches) + self._tail_s(choice)
        bound = self._with_exchange_s(bound, num_micro_batches, exchange_s)
        return Entry(choice, num_micro_batches, bound)

    def work_s(self, choice: SetChoice) -> float:
        """What the busiest stage computes for a micro-batch at least, were units divisible.

        B seconds do for a group's stages x units at t seconds each where x t <= pp B. With t >= r w
        for one w of all groups, all W = sum of w are done only if W <= B sum of pp / r.
        """
        first, *others = self._device_s(choice)
        ratios = [1.0, *(float((other / first).min()) for other in others)]
        stages = [segment.pp for segment in choice.segments]
        paces = sum(count / ratio for count, ratio in zip(stages, ratios, strict=True))
        return self._units.sum_of(first) / paces

    def first_bound_s(self, family: Family, exchange_s: float) -> float:
        """From work alone: that of the busiest stage, or of all stages one after the other."""
        m, plain = family.num_micro_batches, family.choices.plain
        through_s = self._units.sum_of(np.minimum.reduce(self._device_s(plain)))
        bound_s = max(m * self.work_s(plain), math.ceil(m / plain.pp) * through_s)
        return self._with_exchange_s(bound_s, m, exchange_s)

    def _device_s(self, choice: SetChoice) -> list[Floats]:
        """Of each segment's group what each kind of unit takes."""
        return [
            self._units.device_s(self._shape(choice, index)._replace(zero=0, recompute="none"))
            for index in range(len(choice.segments))
        ]

    def _continuous_s(self, choice: SetChoice, segments: Sequence[Floats], m: int) -> float:
        stages = [segment.pp for segment in choice.segments]
        crossed = self._crossings(choice, self._links_of(choice)[0])
        return continuous_bound_s(segments, stages, crossed, m)

    def _with_exchange_s(self, bound_s: float, m: int, exchange_s: float) -> float:
        """A bound on a step with its exchange.

        What it hides behind is one of m backward passes of a stage, and all m are in the step. The
        longer they are the more is hidden, but never more than they add.
        """
        return bound_s + self.shown_s(exchange_s, bound_s / m)

    def shown_s(self, exchange_s: float, window_s: float) -> float:
        """What is not hidden of an exchange."""
        return self._pricer.exposed(exchange_s, window_s)

    def _shape(self, choice: SetChoice, index: int) -> Shape:
        segment = choice.segments[index]
        return Shape(segment.group, segment.tp, choice.dp, choice.ep, choice.micro_batch,
                     choice.zero, segment.recompute)  # fmt: skip

    def _least_segments(self, family: Family) -> list[Floats]:
        """Of each segment the least of all choices."""
        choice = family.choices.plain
        differing = (family.choices.zeros, family.choices.policies)
        found = []
        for index, place in enumerate(places(choice, family.num_micro_batches)):
            shape = self._shape(choice, index)._replace(zero=0, recompute="none")
            key = (shape, place, differing)
            if key not in self._least:
                each = [
                    self._part(shape._replace(zero=zero, recompute=policy), place)
                    for zero, policy in itertools.product(*differing)
                ]
                self._least[key] = np.minimum.reduce(each)
            found.append(self._least[key])
        return found

    def _part(self, shape: Shape, place: Place) -> Floats:
        """A group's work by the units that it gets, infinite where its memory cannot hold them."""
        key = (shape, place)
        if key not in self._parts:
            self._parts[key] = self._made_part(shape, place)
        return self._parts[key]

    def _made_part(self, shape: Shape, place: Place) -> Floats:
        table = self._units.table(shape, in_pipeline=place.in_pipeline)
        memory = self._units.memory(shape)
        held = memory.state + place.flights * memory.saved
        most = place.stages * memory.most_live_bytes + place.flights * memory.message_bytes
        if place.is_first:
            return np.where(held <= most, table.first, np.inf)
        if place.is_last:
            return np.where(held[-1] - held <= most, table.last, np.inf)
        parts = held[None, :] - held[:, None]
        return np.where(parts <= most, table.matrix, np.inf)

    def _links_of(self, choice: SetChoice) -> tuple[list[float], float]:
        """Seconds of each message, and what follows the pipeline whatever the boundaries: the
        host's own work, and between groups the sum of a tied table's gradient."""
        plain = tuple(one._replace(recompute="none") for one in choice.segments)
        key = choice._replace(segments=plain, zero=0, ep=1)
        if key not in self._links:
            part = set_layout(self._problem, ChosenSet(key, tuple(range(1, choice.pp)), 1))
            tied_s = 0.0
            if self._is_tied and choice.segments[0].group != choice.segments[-1].group:
                tied_s = self._pricer.tied_sum_s(part, self._pricer.stages_of(part)[-1])
            self._links[key] = self._pricer.messages_s(part), self._pricer.fixed_s(part) + tied_s
        return self._links[key]

    def _tail_s(self, choice: SetChoice) -> float:
        """The least that follows the pipeline."""
        updated_s = min(
            self._units.optimizer_s(self._shape(choice, index)._replace(recompute="none"))
            for index in range(len(choice.segments))
        )
        return self._links_of(choice)[1] + updated_s / choice.pp

    def _crossings(self, choice: SetChoice, links_s: Sequence[float]) -> list[float]:
        """Messages between segments, where stages do not wait for them."""
        ends = itertools.accumulate(segment.pp for segment in choice.segments[:-1])
        overlaps = self._pricer.software.overlap_messages
        return [links_s[end - 1] * overlaps for end in ends]

    # Boundaries

    def cut(self, entry: Entry, exchange_s: float) -> None:
        """Raise the bound to that of the best boundaries."""
        choice, m = entry.choice, entry.num_micro_batches
        links_s, tail_s = self._links_of(choice)[0], self._tail_s(choice)
        boundaries = Boundaries(self._pipeline(choice, m, links_s))

        def whole_s(bound_s: float) -> float:
            return self._with_exchange_s(bound_s + tail_s, m, exchange_s)

        entry.bound_s = max(entry.bound_s, whole_s(boundaries.least_s))
        entry.boundaries = ((whole_s(bound), starts) for bound, starts in boundaries.in_order())
        entry.is_cut = True

    def _pipeline(self, choice: SetChoice, m: int, links_s: Sequence[float]) -> Pipeline:
        stage_s: list[Floats] = []
        waits = not self._pricer.software.overlap_messages
        last = choice.pp - 1
        masks: dict[tuple[Shape, int, bool, bool], NDArray[np.bool_]] = {}
        for index, segment in enumerate(choice.segments):
            shape = self._shape(choice, index)
            times = self._units.table(shape, in_pipeline=choice.pp > 1).matrix
            for _ in range(segment.pp):
                r = len(stage_s)
                key = (shape, min(m, choice.pp - r), r == 0, r == last)
                if key not in masks:
                    masks[key] = self._units.memory(shape).fits(
                        key[1], is_first=key[2], is_last=key[3]
                    )
                own = np.where(masks[key], times, np.inf)
                if waits:
                    own = own + sum(links_s[max(0, r - 1) : r + 1])
                stage_s.append(own)
        if waits:
            return Pipeline(stage_s, [0.0] * last, m)
        ends = itertools.accumulate(segment.pp for segment in choice.segments[:-1])
        return Pipeline(stage_s, links_s, m, frozenset(end - 1 for end in ends))

    def simulate(
        self, entry: Entry, exchange_s: float, cutoff_s: float, count: int = _BATCH
    ) -> None:
        """Price the next boundaries, until none can be better than the best or the cutoff."""
        for _ in range(_POPS):
            following = entry.following()
            best_s = math.inf if entry.best is None else entry.best.step_s
            if following is None or following[0] >= best_s * (1 - TOLERANCE):
                entry.is_exact, entry.bound_s = True, best_s
                return
            bound_s, starts = following
            entry.bound_s = max(entry.bound_s, bound_s)
            if bound_s >= cutoff_s:
                entry.put_back = following
                return
            if starts is not None:
                self._price(entry, starts, exchange_s)
                count -= 1
            if not count:
                return

    def _price(self, entry: Entry, starts: tuple[int, ...], exchange_s: float) -> None:
        chosen = ChosenSet(entry.choice, starts, entry.num_micro_batches)
        step_s = self.step_s(chosen, exchange_s)
        if step_s is None:
            self._books.excluded_by_memory += 1
            return
        self._books.simulated += 1
        if entry.best is None or step_s < entry.best.step_s:
            entry.best = Found(step_s, chosen)

    def step_s(self, chosen: ChosenSet, exchange_s: float) -> float | None:
        """The step of a set with its exchange; None where it does not surely fit."""
        part = set_layout(self._problem, chosen)
        pricer = self._pricer
        if pricer.memory(part)[1] != "fits":
            return None
        stages, messages_s = pricer.stages_of(part), self._links_of(chosen.choice)[0]
        times = pricer.set_times(
            stages, messages_s, chosen.num_micro_batches, pricer.tied_sum_s(part, stages[-1]),
            pricer.fixed_s(part),
        )  # fmt: skip
        return times.own_s + pricer.exposed(exchange_s, times.window_s)


@dataclass
class Column:
    """All entries of one set of replicas for one share of the batch."""

    entries: list[tuple[float, int, Entry | Family]] = field(default_factory=list)
    best: Found | None = None
    counter: Iterator[int] = field(default_factory=itertools.count)

    @property
    def bound_s(self) -> float:
        return self.entries[0][0] if self.entries else math.inf

    @property
    def is_exact(self) -> bool:
        if not self.entries or math.isinf(self.bound_s):
            return True
        first = self.entries[0][2]
        return isinstance(first, Entry) and first.is_exact

    def remove(self, one: Entry | Family) -> None:
        """Take out an entry wherever it is."""
        self.entries = [each for each in self.entries if each[2] is not one]
        heapq.heapify(self.entries)

    def bound_of(self, one: Entry | Family) -> float:
        """The bound that an entry was added with."""
        return next(bound_s for bound_s, _, each in self.entries if each is one)

    def add(self, bound_s: float, one: Entry | Family) -> None:
        """With its bound."""
        heapq.heappush(self.entries, (bound_s, next(self.counter), one))


class SetSearch:
    """Sets of replicas on certain groups, beside others that take the rest of the batch."""

    def __init__(
        self, space: MixedSpace, pricer: SetPricer, groups: tuple[int, ...], exchange_s: float,
        is_late: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._pricer, self._exchange_s, self._is_late = pricer, exchange_s, is_late
        self._families = space.families(groups)
        self._columns: dict[int, Column] = {}
        self.bounds_s = self._first_bounds(space.problem.training.global_batch)
        """By sequences a step: nothing is faster."""

    def _first_bounds(self, batch: int) -> Floats:
        """From the pace of each size of micro-batch; alone a set has the whole batch anyway."""
        found, least_s = np.full(batch + 1, np.inf), dict[int, float]()
        for choices in self._families:
            plain, pace_s = choices.plain, 0.0
            if self._exchange_s and not self._is_late():
                pace_s = self._pricer.work_s(plain) / plain.samples
            least_s[plain.samples] = min(least_s.get(plain.samples, math.inf), pace_s)
        for samples, pace_s in least_s.items():
            shares = np.arange(samples, batch + 1, samples)
            own = shares * pace_s + self._pricer.shown_s(self._exchange_s, samples * pace_s)
            found[samples::samples] = np.minimum(found[samples::samples], own)
        return found

    def is_exact(self, share: int) -> bool:
        """Whether the bound is the best step itself."""
        column = self._columns.get(share)
        return column is not None and column.is_exact

    def best(self, share: int) -> Found | None:
        """The fastest found for a share so far."""
        column = self._columns.get(share)
        return None if column is None else column.best

    def refine(self, share: int, cutoff_s: float) -> None:
        """Raise the bound of a share, by one step of its first entry."""
        column = self._columns.get(share)
        if column is None:
            column = self._columns[share] = self._new_column(share)
        elif not column.is_exact:
            self._advance(column, cutoff_s)
        self.bounds_s[share] = max(self.bounds_s[share], column.bound_s)

    def dive(self, share: int, count: int) -> None:
        """Price a first layout of each of the entries that look best."""
        if share not in self._columns:
            self.refine(share, 0.0)
        column = self._columns[share]
        self._look_ahead(column, count)
        self.bounds_s[share] = max(self.bounds_s[share], column.bound_s)

    def _look_ahead(self, column: Column, count: int) -> None:
        for family in self._likely(column)[: count * _FAMILIES_TRIED]:
            if self._is_late():
                return
            column.remove(family)
            self._open(column, family)
        opened = [entry for _, _, entry in column.entries if isinstance(entry, Family)
                  and entry.is_bounded]  # fmt: skip
        opened.sort(key=lambda one: column.bound_of(one))
        for family in opened[:count]:
            column.remove(family)
            self._open(column, family)
        entries = [entry for _, _, entry in column.entries if isinstance(entry, Entry)]
        entries.sort(key=lambda one: one.bound_s)
        for entry in entries[:count]:
            if self._is_late() or math.isinf(entry.bound_s):
                break
            column.remove(entry)
            self._raise(column, entry, math.inf)
            column.add(entry.bound_s, entry)

    def _likely(self, column: Column) -> list[Family]:
        """Families by their bound with the bubble of equal stages, which it does not know of."""
        found = [
            (bound_s * (1 + (one.choices.plain.pp - 1) / one.num_micro_batches), index, one)
            for bound_s, index, one in column.entries
            if isinstance(one, Family) and not one.is_bounded
        ]
        return [one for _, _, one in sorted(found, key=lambda each: each[:2])]

    def _new_column(self, share: int) -> Column:
        column = Column()
        for choices in self._families:
            m = share // choices.plain.samples
            if share % choices.plain.samples or is_too_long(choices.plain.pp, m):
                continue
            family = Family(choices, m)
            # Late, nothing is known of the others: a bound that says so.
            late = self._is_late()
            column.add(
                0.0 if late else self._pricer.first_bound_s(family, self._exchange_s), family
            )
        return column

    def _advance(self, column: Column, cutoff_s: float) -> None:
        _, _, first = heapq.heappop(column.entries)
        if isinstance(first, Family):
            self._open(column, first)
            return
        self._raise(column, first, cutoff_s)
        column.add(first.bound_s, first)

    def _open(self, column: Column, family: Family) -> None:
        """Raise the bound of a family, or take it apart."""
        if not family.is_bounded:
            bound_s = self._pricer.family_bound_s(family, self._exchange_s)
            column.add(bound_s, replace(family, is_bounded=True))
            return
        for choice in family.choices.choices():
            entry = self._pricer.entry(choice, family.num_micro_batches, self._exchange_s)
            column.add(entry.bound_s, entry)

    def _raise(self, column: Column, entry: Entry, cutoff_s: float) -> None:
        if not entry.is_cut:
            self._pricer.cut(entry, self._exchange_s)
            self._pricer.simulate(entry, self._exchange_s, cutoff_s, 1)
        elif not entry.is_exact:
            self._pricer.simulate(entry, self._exchange_s, cutoff_s)
        if entry.best is not None and (
            column.best is None or entry.best.step_s < column.best.step_s * (1 - TOLERANCE)
        ):
            column.best = entry.best
