"""Where stages start, and what each recomputes, where every rank has one stage: all ways, in the
order of a lower bound on the step.

f_i, b_i and w_i are stage i's seconds for one micro-batch, forward, gradient of the input and of
the weights; c_i those of a message over its upper boundary; m micro-batches pass; e_i is what rank
i does after its last, and x_i what shows of the reduction of its gradients. No step is shorter than

    pass_i + m (f_i + b_i + w_i) + e_i,      pass_i = sum_{j<i} (f_j + c_j)

as rank i starts after the forwards before it and then does all its work. Where the backward is not
split, a backward is the rank's last work, after which those of the stages before it follow; with

    pass_i = sum_{j<i} (f_j + b_j + w_j + 2 c_j)

x_0 is then added. Nor is a step shorter than one micro-batch's way there and back.

V(i, u), the least of the largest of these terms over all ways in which stages i, i + 1, ... can
hold units u, u + 1, ..., counted from pass_i, follows from V(i + 1, .): an exact dynamic programme.
With it as what is still to come, partial splits are extended best first (A*), so that whole ones
appear in the order of their bounds, and only as many are made as are asked for. Equal layers can
be split in very many ways whose bounds are nearly equal: all of `FEW_SPLITS` are looked at, and of
more those that come first.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from shardwright.planner.stacks.rooms import SLACK
from shardwright.planner.stacks.space import FEW_SPLITS
from shardwright.planner.stacks.stages import Option, Place, StagePricer


@dataclass(frozen=True, slots=True)
class Split:
    """Boundaries with what every stage recomputes."""

    bound_s: float
    starts: tuple[int, ...]
    """The first unit of stages 1, 2, ..."""
    options: tuple[Option, ...]


_Partial = tuple[float, int, int, int, float, float, float, tuple[int, ...], tuple[Option, ...]]
"""A bound, less the number of stages, a counter; the next unit, seconds of the stages passed, the
longest path so far, what follows on the first rank, where stages stop, how they run."""


_MOST_SPLITS, _MOST_PARTIALS = 12, 2000
"""Of more ways so many are given, and so many partial ones extended."""


class Partition:
    """The ways to split one layout whose ranks have one stage each."""

    def __init__(
        self,
        stages: StagePricer,
        places: tuple[Place, ...],
        num_microbatches: int,
        messages_s: tuple[float, ...],
        *,
        is_split: bool,
        blocks_on_messages: bool,
        fixed: tuple[int, ...] | None,
        limit: Callable[[], float],
    ) -> None:
        """``places``: of each stage. ``fixed``: boundaries that may not move. ``limit``: a step
        that need not be reached; it only falls."""
        self._stages, self._places, self._m = stages, places, num_microbatches
        self._messages_s, self._fixed, self._limit = messages_s, fixed, limit
        self._is_split, self._blocks = is_split, blocks_on_messages
        self._pp, self._num_units = len(places), stages.num_units
        self._best: dict[tuple[int, int], float] = {}
        self._known: dict[tuple[int, int], list[tuple[int, Option, float]]] = {}
        self._earliest: list[int] = []
        self._latest: list[int] = []
        """Of each stage, and the end."""

    # One stage

    def _choices(self, i: int, start: int) -> list[tuple[int, Option, float]]:
        """Where stage i may stop, the ways to run it then, and what they take with all
        micro-batches and the end of the step; the shortest stages first."""
        key = (i, start)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = []
            limit_s = self._limit()
            first = max(start + 1, self._earliest[i + 1])
            for stop in range(first, self._latest[i + 1] + 1):
                options = [
                    (stop, option, own_s)
                    for option in self._stages.options(self._places[i], start, stop)
                    if (own_s := self._own_s(i, start, stop, option)) < limit_s
                ]
                if not options:
                    break  # a longer stage holds more and takes longer
                found += options
        return found

    def _can_be(self, i: int, start: int, stop: int) -> bool:
        limit_s = self._limit()
        return any(
            self._own_s(i, start, stop, option) < limit_s
            for option in self._stages.options(self._places[i], start, stop)
        )

    def _longest(self, stage: Callable[[int], tuple[int, int, int]], guess: int, most: int) -> int:
        """How many units up to ``most`` a stage can hold at the most; 0 where not even one."""
        if most < 1 or not self._can_be(*stage(1)):
            return 0
        count = max(1, min(guess, most))
        if self._can_be(*stage(count)):
            while count < most and self._can_be(*stage(count + 1)):
                count += 1
            return count
        low, high = 1, count
        while high - low > 1:
            middle = (low + high) // 2
            if self._can_be(*stage(middle)):
                low = middle
            else:
                high = middle
        return low

    def _find_windows(self) -> bool:
        """Between which units stages may start so that all others can still be below the limit;
        whether they can at all."""
        last, num_units = self._pp - 1, self._num_units
        if self._fixed is not None:
            self._earliest = self._latest = [0, *self._fixed, num_units]
            return True
        earliest = [num_units] * (self._pp + 1)
        length = max(1, num_units // self._pp)
        for i in reversed(range(self._pp)):
            stop = earliest[i + 1]
            length = self._longest(partial(_ending_at, i, stop), length, stop - i)
            if length == 0:
                return False
            earliest[i] = stop - length
        if earliest[0] > 0:
            return False
        latest = [0] * (self._pp + 1)
        for i in range(self._pp):
            start = latest[i]
            most = num_units - (last - i) - start
            length = self._longest(partial(_starting_at, i, start), length, most)
            latest[i + 1] = start + length
        latest[self._pp] = num_units
        self._earliest, self._latest = earliest, latest
        return True

    def _own_s(self, i: int, start: int, stop: int, option: Option) -> float:
        """m times its work, and what follows on its rank."""
        after = self._stages.after(start, stop)
        work_s = self._m * self._work_s(i, option)
        shown_s = after.reduction_s if self._is_split else 0.0
        return work_s + after.optimizer_s + after.publish_s + shown_s

    def _work_s(self, i: int, option: Option) -> float:
        if not self._blocks:
            return option.total_s
        sent = self._messages_s[i] if i < self._pp - 1 else 0.0
        received = self._messages_s[i - 1] if i else 0.0
        return option.total_s + sent + received

    def _pass_s(self, i: int, option: Option) -> float:
        """By how much the next stage starts and ends inside this one."""
        message_s = self._messages_s[i]
        if self._is_split:
            return option.forward_s + message_s
        # A stage that waits for its messages has that of its lower boundary in its own work.
        back_s = (self._messages_s[i - 1] if i else 0.0) if self._blocks else message_s
        return option.total_s + message_s + back_s

    # The rest

    def _still_s(self, i: int, start: int) -> float:
        """V(i, start): infinite where nothing fits or can be below the limit."""
        key = (i, start)
        found = self._best.get(key)
        if found is None:
            found = math.inf
            for stop, option, own_s in self._choices(i, start):
                if own_s >= found:
                    break
                if i < self._pp - 1:
                    own_s = max(own_s, self._pass_s(i, option) + self._still_s(i + 1, stop))
                found = min(found, own_s)
            self._best[key] = found
        return found

    def _are_few(self) -> bool:
        """Whether all ways to split, and to recompute where stages can be run in several best
        ways, are looked at."""
        ways = math.comb(self._num_units - 1, self._pp - 1)
        return bool(ways * self._stages.most_options**self._pp <= FEW_SPLITS)

    def splits(self) -> Iterator[Split]:
        """In the order of their bounds, as long as these are below the limit."""
        counter = itertools.count()
        self._best.clear()
        self._known.clear()
        if not self._find_windows():
            return
        first_s = self._still_s(0, 0)
        left, left_partials = (-1, -1) if self._are_few() else (_MOST_SPLITS, _MOST_PARTIALS)
        heap: list[_Partial] = [(first_s, 0, next(counter), 0, 0.0, 0.0, 0.0, (), ())]
        while heap:
            bound_s, _, _, start, passed_s, worst_s, ends_s, starts, options = heapq.heappop(heap)
            i = len(options)
            if bound_s * (1 - SLACK) >= self._limit() or left == 0 or left_partials == 0:
                return
            if i == self._pp:
                left -= 1
                yield Split(bound_s * (1 - SLACK), starts[:-1], options)
                continue
            left_partials -= 1
            for stop, option, alone_s in self._choices(i, start):
                own_s = passed_s + alone_s
                ends = ends_s
                if i == 0 and not self._is_split:
                    ends = self._stages.after(start, stop).reduction_s
                worst = max(worst_s, own_s)
                more_s = 0.0
                passed = passed_s
                if i < self._pp - 1:
                    passed += self._pass_s(i, option)
                    more_s = passed + self._still_s(i + 1, stop)
                else:
                    worst = max(worst, self._way_s((*options, option)))
                total_s = max(worst, more_s, bound_s - ends) + ends
                entry = (total_s, -i, next(counter), stop, passed, worst, ends,
                         (*starts, stop), (*options, option))  # fmt: skip
                if total_s < self._limit():
                    heapq.heappush(heap, entry)

    def _way_s(self, options: tuple[Option, ...]) -> float:
        """Of one micro-batch there and back."""
        messages_s = 2 * sum(self._messages_s[: self._pp - 1])
        back = (one.input_s if self._is_split else one.backward_s for one in options)
        return messages_s + sum(one.forward_s for one in options) + sum(back)


def _ending_at(stage: int, stop: int, count: int) -> tuple[int, int, int]:
    return stage, stop - count, stop


def _starting_at(stage: int, start: int, count: int) -> tuple[int, int, int]:
    return stage, start, start + count
