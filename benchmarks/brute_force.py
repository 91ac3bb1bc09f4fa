"""Whether the search over layouts on a software stack finds what brute force finds.

    python -m benchmarks.brute_force [--problems 200] [--first 0] [--most 20000] [--layouts 100000]

Small random problems (a dense model or one with experts, some choices fixed, other habits of the
software, memory into which some layouts fit, or all, or none) are searched with a proof, and then
every layout that they have is simulated: all stage boundaries, all policies of all stages. With
``--layouts``, so many random layouts are compared with the lower bounds on them as well.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.planner.layouts import layout_in_words
from shardwright.planner.stacks.search import search_stacks
from shardwright.planner.stacks.space import StackSpace
from tests.planner.stacks.bound_checker import BoundChecker
from tests.planner.stacks.small import (
    brute_force,
    draw_choices,
    draw_problem,
    every_layout,
    pricer_of,
)

TOLERANCE = 1e-9
"""Relative."""
LAYOUTS_EACH = 500
"""Random layouts that are drawn from one problem."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One problem, searched and enumerated."""

    seed: int
    num_layouts: int
    brute_s: float
    """Infinite where nothing fits."""
    found_s: float
    is_proven: bool
    words: str
    """The layout that the search found."""

    @property
    def agrees(self) -> bool:
        """Whether the search proved what brute force found."""
        if not self.is_proven:
            return False
        if math.isinf(self.brute_s):
            return math.isinf(self.found_s)
        return abs(self.found_s - self.brute_s) <= TOLERANCE * self.brute_s


def compare(seed: int, most: int) -> Comparison | None:
    """None where the seed makes no problem, or one with more than ``most`` layouts."""
    drawn = draw_problem(seed)
    if drawn is None:
        return None
    made, constraints = drawn
    layouts = every_layout(StackSpace(made, constraints))
    if sum(1 for _ in itertools.islice(layouts, most + 1)) > most:
        return None
    result = search_stacks(made, constraints, pricer_of(made))
    brute = brute_force(made, constraints)
    best = result.ranking[0] if result.ranking else None
    return Comparison(
        seed, brute.num_layouts, brute.best_s,
        math.inf if best is None else best.prediction.step_time_s, result.certificate.optimal,
        "nothing fits" if best is None else layout_in_words(best.layout),
    )  # fmt: skip


def comparisons(first: int, most: int) -> Iterator[Comparison]:
    """Of every seed from ``first`` on that makes a problem small enough."""
    for seed in itertools.count(first):
        found = compare(seed, most)
        if found is not None:
            yield found


def check_bounds(num_layouts: int, first: int) -> tuple[int, list[str]]:
    """How many random layouts were compared with their bounds, and which bounds were too high."""
    count, broken = 0, list[str]()
    for seed in itertools.count(first):
        drawn = draw_problem(seed)
        if drawn is None:
            continue
        made, constraints = drawn
        checker, draw = BoundChecker(made, constraints), random.Random(seed)
        for _ in range(LAYOUTS_EACH):
            if count == num_layouts:
                return count, broken
            choices = draw_choices(checker.space, draw)
            count += 1
            broken += [f"seed {seed}: {said}" for said in checker.broken(choices)]
    raise AssertionError


def main() -> int:
    """Write the table as Markdown; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--most", type=int, default=20_000, help="layouts of one problem")
    parser.add_argument("--layouts", type=int, default=0, help="random layouts against bounds")
    options = parser.parse_args()
    found = list(
        itertools.islice(comparisons(options.first, options.most), options.problems)
    )  # fmt: skip
    wrong = [one for one in found if not one.agrees]
    sys.stdout.write(
        "| problems | nothing fits | layouts enumerated | mismatches |\n|--:|--:|--:|--:|\n"
        f"| {len(found)} | {sum(math.isinf(one.brute_s) for one in found)}"
        f" | {sum(one.num_layouts for one in found):,} | {len(wrong)} |\n"
    )
    for one in wrong:
        sys.stdout.write(
            f"\nseed {one.seed}: searched {one.found_s:.9g} s (proven: {one.is_proven}),"
            f" of all {one.brute_s:.9g} s; {one.words}\n"
        )
    broken: list[str] = []
    if options.layouts:
        count, broken = check_bounds(options.layouts, options.first)
        sys.stdout.write(f"\n{count:,} random layouts: {len(broken)} bounds too high\n")
        sys.stdout.write("".join(f"\n{said}\n" for said in broken[:20]))
    return 1 if wrong or broken else 0


if __name__ == "__main__":
    sys.exit(main())
