"""Which of several layouts is fastest: a race that drops what has lost and ends when it is clear.

Layouts are timed in rounds, each once a round, so that the drift of a shared machine hits all
alike. Of a round only ratios count: for two layouts the logarithms of their ratios are a sample,
and Student's t gives an interval for their mean. A layout that is slower than another beyond doubt
is dropped (Maron and Moore, *Hoeffding Races*, 1994; Birattari et al., *A racing algorithm for
configuring metaheuristics*, 2002, with t in place of ranks).

Looking after every round, and at every pair, would find a difference by luck sooner or later. So
the error that is allowed is divided by the number of looks times the number of pairs (Bonferroni):
all that a race says together is wrong with at most that probability, whichever way looks and pairs
depend on each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

FIRST_LOOK = 3
"""Rounds before anything is judged: two ratios have one degree of freedom and say very little."""

Verdict = Literal["fastest", "tied", "slower"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One layout beside the fastest."""

    index: int
    num_rounds: int
    step_time_s: float
    """Median over its rounds."""
    ratio: float
    """Of its step to that of the fastest, over the rounds that both ran."""
    ratio_interval: tuple[float, float]
    """At the race's confidence, corrected for looks and pairs; (0, inf) where it is too early."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Rules:
    """How a race is judged."""

    num_rounds: int
    """At most."""
    num_layouts: int
    confidence: float = 0.95
    """That all verdicts of the race are right."""
    resolution: float = 0.01
    """Layouts that differ by less than this fraction need not be told apart."""

    @property
    def error_of_a_look(self) -> float:
        """Two-sided, of one pair at one look."""
        looks = max(1, self.num_rounds - FIRST_LOOK + 1)
        pairs = max(1, self.num_layouts * (self.num_layouts - 1) // 2)
        return (1 - self.confidence) / (looks * pairs)


class Race:
    """Times by layout and round, and what they say."""

    def __init__(self, rules: Rules, times_s: Sequence[Sequence[float]]) -> None:
        """``times_s[layout][round]``: a layout that was dropped has fewer rounds; one that failed
        has none."""
        self._rules = rules
        self._times_s = times_s

    @property
    def fastest(self) -> int:
        """Of those with most rounds, the one with the smallest mean logarithm."""
        most = max(map(len, self._times_s))
        ran = [i for i, times in enumerate(self._times_s) if times and len(times) == most]
        return min(ran, key=lambda i: statistics.fmean(map(math.log, self._times_s[i])))

    def standings(self) -> list[Standing]:
        """Of every layout that ran, the fastest first."""
        best = self.fastest
        found = [self._standing(index, best) for index, times in enumerate(self._times_s) if times]
        return sorted(found, key=lambda one: (one.index != best, one.ratio, one.index))

    def _standing(self, index: int, best: int) -> Standing:
        ratio, interval = self.ratio(index, best)
        verdict: Verdict = "slower" if interval[0] > 1 else "tied"
        return Standing(
            index=index,
            num_rounds=len(self._times_s[index]),
            step_time_s=statistics.median(self._times_s[index]),
            ratio=ratio,
            ratio_interval=interval,
            verdict="fastest" if index == best else verdict,
        )

    def ratio(self, index: int, other: int) -> tuple[float, tuple[float, float]]:
        """Geometric mean of time over the other's, and its interval."""
        logs = [
            math.log(a / b)
            for a, b in zip(self._times_s[index], self._times_s[other], strict=False)
        ]
        mean, count = statistics.fmean(logs), len(logs)
        if index == other:
            return 1.0, (1.0, 1.0)
        if count < FIRST_LOOK:
            return math.exp(mean), (0.0, math.inf)
        quantile = student_quantile(1 - self._rules.error_of_a_look / 2, count - 1)
        half = quantile * statistics.stdev(logs) / math.sqrt(count)
        return math.exp(mean), (_exp(mean - half), _exp(mean + half))

    def running(self) -> list[int]:
        """Layouts that have not lost: none where the race is over."""
        best = self.fastest
        left = [one.index for one in self.standings() if one.verdict != "slower"]
        count = len(self._times_s[best])
        if count >= self._rules.num_rounds:
            return []
        if count >= FIRST_LOOK and self._is_decided(left, best):
            return []
        return sorted(left)

    def _is_decided(self, left: Sequence[int], best: int) -> bool:
        """Whether none is left that may differ by what matters."""
        within = 1 + self._rules.resolution
        intervals = (self.ratio(index, best)[1] for index in left)
        return all(1 / within < low and high < within for low, high in intervals)


def _exp(log: float) -> float:
    """Infinite rather than an error."""
    return math.exp(log) if log < 700 else math.inf


@cache
def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t, by bisection of its distribution.

    >>> round(student_quantile(0.975, 4), 3)
    2.776
    """
    assert 0.5 <= probability < 1
    assert freedom >= 1
    high = 1.0
    while _student_cdf(high, freedom) < probability:
        high *= 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, freedom: int) -> float:
    """For t >= 0 and whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine_squared = math.cos(angle) ** 2
    odd = freedom % 2
    total, term = 0.0, 1.0
    for step in range((freedom - odd) // 2):
        if step:
            term *= (2 * step - 1 + odd) / (2 * step + odd) * cosine_squared
        total += term
    if odd:
        inside = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        inside = math.sin(angle) * total
    return (1 + inside) / 2
