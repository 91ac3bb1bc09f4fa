"""The largest sequence, micro-batch or depth that works, and the fewest devices that do.

Whether a point works is always what planning it says. What is assumed of the others is stated:

- ``seq_len`` (in multiples of 1024) and ``layers`` are sought by doubling, then by cutting the
  interval between what works and what does not; the next values above the answer are tried as well,
  and where one of them works the search goes on from there.
- ``micro_batch`` must divide the global batch: all its divisors are tried.
- ``gpus`` are parts of a node, then whole nodes. They are sought by doubling; then all counts below
  are tried one by one where they are few, and else the interval is cut as above, past counts that
  no layout divides, with the next values below the answer tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from shardwright.planner.what_if.points import Outcome, Point, question_of
from shardwright.planner.what_if.runner import Runner
from shardwright.specs import InputError
from shardwright.specs.ranges import MOST_DEVICES, MOST_ELEMENTS, MOST_LAYERS
from shardwright.specs.world import divisors

Unknown = Literal["seq_len", "gpus", "micro_batch", "layers"]
UNKNOWNS: tuple[Unknown, ...] = get_args(Unknown)

SEQUENCE_STEP = 1024
FEW = 32
"""So many values are tried one by one."""
NEIGHBOURS = 3
"""How many values beyond an answer are tried where the interval was cut."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The value that was sought; None where none works."""

    unknown: Unknown
    value: int | None
    outcome: Outcome | None
    """Of the answer; where there is none, of the last value tried."""
    beyond: str | None
    """Why the next value does not work."""
    is_exhaustive: bool
    """Whether every other value that would be a better answer was tried, and not only some."""
    tried: dict[int, bool]
    """Every value that was planned, and whether it works."""


class _Values:
    """Which values of the unknown work; each is planned once."""

    def __init__(
        self, unknown: Unknown, point: Point, runner: Runner, works: Callable[[Outcome], bool]
    ) -> None:
        self._unknown, self._point, self._runner, self._works = unknown, point, runner, works
        self.outcomes: dict[int, Outcome] = {}
        self.tried: dict[int, bool] = {}

    def try_all(self, values: Sequence[int]) -> None:
        """Plan those that were not yet, side by side."""
        new = [value for value in values if value not in self.tried]
        points = [self._with(value) for value in new]
        for value, outcome in zip(new, self._runner.run(points), strict=True):
            self.outcomes[value] = outcome
            self.tried[value] = self._works(outcome)

    def work(self, value: int) -> bool:
        """Whether a value works."""
        self.try_all([value])
        return self.tried[value]

    def _with(self, value: int) -> Point:
        settings = {**self._point.settings, self._unknown: f"{value}"}
        if self._unknown == "gpus":
            settings.pop("nodes", None)
        return replace(self._point, settings=settings)


def solve(
    unknown: Unknown, point: Point, runner: Runner, works: Callable[[Outcome], bool]
) -> Solved:
    """The answer for one point, whose own value of the unknown, if any, is left aside.

    Raises:
        InputError: the point itself is wrong, whatever the value.
    """
    values = _Values(unknown, point, runner, works)
    if unknown == "micro_batch":
        return _largest_divisor(values, point)
    if unknown == "gpus":
        return _fewest_devices(values, _counts(point))
    if unknown == "layers":
        return _largest(values, unknown, range(1, MOST_LAYERS + 1))
    return _largest(values, unknown, range(SEQUENCE_STEP, MOST_ELEMENTS + 1, SEQUENCE_STEP))


def _largest_divisor(values: _Values, point: Point) -> Solved:
    candidates = divisors(question_of(point).training.global_batch)
    values.try_all(candidates)
    working = [value for value in candidates if values.tried[value]]
    if not working:
        return _none("micro_batch", values, candidates[-1])
    above = [value for value in candidates if value > working[-1]]
    return _found("micro_batch", values, working[-1], above[:1], exhaustive=True)


def _largest(values: _Values, unknown: Unknown, grid: Sequence[int]) -> Solved:
    """By doubling, then by halving the interval; then past the neighbours above."""
    last = len(grid)  # places count from 1
    place = 1
    lows: list[int] = []
    while place <= last:
        if values.work(grid[place - 1]):
            lows.append(place)
        elif lows:
            break
        place *= 2
    if not lows:
        return _none(unknown, values, grid[0])
    low, high = lows[-1], min(place, last + 1)
    while True:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if values.work(grid[middle - 1]) else (low, middle)
        above = range(low + 1, min(low + NEIGHBOURS, last) + 1)
        values.try_all([grid[at - 1] for at in above])
        better = [at for at in above if values.tried[grid[at - 1]]]
        if not better:
            break
        low, high = better[-1], better[-1] + 1
    beyond = [grid[low]] if low < last else []
    return _found(unknown, values, grid[low - 1], beyond, exhaustive=False)


def _fewest_devices(values: _Values, counts: Sequence[int]) -> Solved:
    """By doubling the devices, then one by one or by cutting the interval.

    Doubled counts divide batches where others do not, so that doubling is not led astray.
    """
    low, count = 0, 1  # places in the list, from 1; low does not work (0: there is none)
    while count <= counts[-1] and not values.work(count):
        low, count = counts.index(count) + 1, _doubled(counts, count)
    if count > counts[-1]:
        return _none("gpus", values, counts[low - 1])
    high = counts.index(count) + 1
    exhaustive = high <= FEW
    if exhaustive:
        high = _first(values, counts, range(1, high + 1))
    else:
        high = _narrowed(values, counts, low, high)
    below = [counts[high - 2]] if high > 1 else []
    return _found("gpus", values, counts[high - 1], below, exhaustive=exhaustive)


def _doubled(counts: Sequence[int], count: int) -> int:
    """Twice as many devices; whole nodes from one node on."""
    node = counts[-1] - counts[-2]
    return node if count < node < 2 * count else 2 * count


def _first(values: _Values, counts: Sequence[int], places: range) -> int:
    for place in places:
        if values.work(counts[place - 1]):
            return place
    raise AssertionError("the last place works")


def _narrowed(values: _Values, counts: Sequence[int], low: int, high: int) -> int:
    """The least place that works, by halving what lies between one that does not and one that does.

    Counts for which no layout obeys the rules say nothing of those around them: the search steps
    aside to the nearest that has one.
    """
    while True:
        while high - low > 1:
            middle = _nearest_with_rules(values, counts, low, high)
            if middle is None:
                break
            low, high = (low, middle) if values.work(counts[middle - 1]) else (middle, high)
        below = range(max(1, high - NEIGHBOURS), high)
        values.try_all([counts[at - 1] for at in below])
        better = [at for at in below if values.tried[counts[at - 1]]]
        if not better:
            return high
        low, high = min(low, better[0] - 1), better[0]


def _nearest_with_rules(values: _Values, counts: Sequence[int], low: int, high: int) -> int | None:
    """A place between the two, from their middle outwards, for which some layout is valid."""
    middle = (low + high) // 2
    for place in sorted(range(low + 1, high), key=lambda place: abs(place - middle)):
        values.try_all([counts[place - 1]])
        if not _breaks_rules(values.outcomes[counts[place - 1]]):
            return place
    return None


def _breaks_rules(outcome: Outcome) -> bool:
    """Whether the question left no layout at all, however much memory there were."""
    books = outcome.certificate
    if outcome.verdict == "invalid":
        return True
    return books is not None and books["considered"] == books["excluded_by_rules"]


def _counts(point: Point) -> Sequence[int]:
    """Device counts of the point's cluster that can be asked for: parts of a node, whole nodes.

    Raises:
        InputError: the cluster's size is fixed.
    """
    settings = {name: v for name, v in point.settings.items() if name not in ("gpus", "nodes")}
    group, *others = question_of(replace(point, settings=settings)).profile.devices.groups
    if others:
        raise InputError(
            "gpus cannot be solved for on several groups of nodes",
            why="it is open which of them would grow",
            fix="name a cluster of one type of node",
        )
    node = group.devices_per_node
    alone = group.inter_node is None and node == group.scale_up_domain_gpus
    most = node if alone else MOST_DEVICES
    return [*range(1, node), *range(node, most + 1, node)]


def _found(
    unknown: Unknown, values: _Values, value: int, beyond: Sequence[int], *, exhaustive: bool
) -> Solved:
    why = None
    if beyond:
        values.try_all(beyond)
        outcome = values.outcomes[beyond[0]]
        why = f"{unknown} = {beyond[0]}: {outcome.reason or 'does not keep the limits'}"
    outcome = values.outcomes[value]
    return Solved(unknown, value, outcome, why, exhaustive, dict(sorted(values.tried.items())))


def _none(unknown: Unknown, values: _Values, last: int) -> Solved:
    outcome = values.outcomes[last]
    why = f"{unknown} = {last}: {outcome.reason or 'does not keep the limits'}"
    return Solved(unknown, None, outcome, why, False, dict(sorted(values.tried.items())))
