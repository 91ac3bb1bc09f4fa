"""Points side by side: what each costs, which are on the front, how time follows what varies."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.cost_models.money import Rates, RunCost, Terms, reckon
from shardwright.planner.what_if.axes import Axis, number_of
from shardwright.planner.what_if.points import Outcome
from shardwright.specs.units import parse


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take; None leaves it open."""

    deadline_s: float | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One point: what varied, what was found, and what a run of it takes."""

    varied: dict[str, str]
    outcome: Outcome
    cost: RunCost | None
    """None without a token budget or without a plan."""
    meets: bool | None
    """Whether it keeps the limits; None where there are none."""
    is_on_front: bool = False
    """No other point of the same model is at least as fast and as cheap, and better in one."""

    @property
    def step_time_s(self) -> float | None:
        """Predicted; None where nothing was planned."""
        found = self.outcome.prediction
        return None if found is None or self.outcome.verdict != "planned" else found["step_time_s"]

    @property
    def num_devices(self) -> int:
        """Of the point's cluster."""
        return int(self.outcome.rates["num_devices"])


@dataclass(frozen=True, slots=True)
class Slope:
    """Between two neighbours along an axis, everything else equal: by how many per cent the step
    time changes where the parameter grows by one per cent."""

    axis: str
    low: str
    high: str
    others: dict[str, str]
    """What the other axes are set to."""
    elasticity: float
    """d log(step time) / d log(parameter)."""
    pace_elasticity: float
    """d log(tokens per second) / d log(parameter)."""


def row_of(
    varied: dict[str, str], outcome: Outcome, tokens: str | None, terms: Terms, limits: Limits
) -> Row:
    """A point with the cost of its run; ``tokens``: the budget, where one is stated."""
    cost = None
    if outcome.verdict == "planned" and outcome.prediction is not None and tokens is not None:
        cost = reckon(
            _rates(outcome),
            step_time_s=outcome.prediction["step_time_s"],
            tokens_per_step=outcome.asked["tokens_per_step"],
            token_budget=int(parse(tokens, "count")),
            terms=terms,
        )
    return Row(varied, outcome, cost, _meets(cost, limits))


def _rates(outcome: Outcome) -> Rates:
    usd = outcome.rates["usd_per_s"]
    return Rates(
        outcome.rates["num_devices"],
        None if usd is None else (usd[0], usd[1], usd[2]),
        outcome.rates["power_watts"],
    )


def _meets(cost: RunCost | None, limits: Limits) -> bool | None:
    """A cost that nobody knows keeps no budget."""
    if limits == Limits():
        return None
    if cost is None:
        return False
    in_time = limits.deadline_s is None or cost.time_s <= limits.deadline_s
    if limits.budget_usd is None:
        return in_time
    return in_time and cost.cost_usd is not None and cost.cost_usd <= limits.budget_usd


def front(rows: Sequence[Row]) -> list[bool]:
    """Which rows no other of the same model beats in both time and money.

    Money is the run's cost where it is known of all rows, else its GPU-hours; without a token
    budget, seconds per token and devices.
    """
    use_cost = all(row.cost is not None and row.cost.cost_usd is not None for row in _planned(rows))
    groups: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in _planned(rows):
        groups[_model_of(row)].append(_objectives(row, use_cost))
    best = {model: _undominated(pairs) for model, pairs in groups.items()}
    return [
        row.step_time_s is not None and _objectives(row, use_cost) in best[_model_of(row)]
        for row in rows
    ]


def _planned(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.step_time_s is not None]


def _model_of(row: Row) -> tuple[str, int]:
    return row.outcome.asked["model"], row.outcome.asked["layers"]


def _objectives(row: Row, use_cost: bool) -> tuple[float, float]:
    cost = row.cost
    if cost is None:
        assert row.outcome.prediction is not None
        return 1 / row.outcome.prediction["tokens_per_s"], row.num_devices
    money = cost.cost_usd if use_cost else None
    return cost.time_s, cost.gpu_hours if money is None else money


def _undominated(pairs: Sequence[tuple[float, float]]) -> set[tuple[float, float]]:
    kept: set[tuple[float, float]] = set()
    least = math.inf
    for pair in sorted(set(pairs)):
        if pair[1] < least:
            kept.add(pair)
            least = pair[1]
    return kept


def slopes(axes: Sequence[Axis], rows: Sequence[Row]) -> tuple[Slope, ...]:
    """The slope between all planned neighbours along every numeric axis."""
    found = []
    for axis in axes:
        if axis.is_numeric:
            for line in _lines(axis, rows):
                found += [_slope(axis, low, high) for low, high in itertools.pairwise(line)]
    return tuple(found)


def _lines(axis: Axis, rows: Sequence[Row]) -> list[list[Row]]:
    """Planned rows that differ along one axis only, by its value."""
    lines: dict[tuple[tuple[str, str], ...], list[Row]] = defaultdict(list)
    for row in _planned(rows):
        lines[tuple(_others(axis, row).items())].append(row)
    return [sorted(line, key=lambda row: _number(axis, row)) for line in lines.values()]


def _slope(axis: Axis, low: Row, high: Row) -> Slope:
    assert low.outcome.prediction is not None
    assert high.outcome.prediction is not None
    run = math.log(_number(axis, high) / _number(axis, low))
    step, pace = (
        math.log(high.outcome.prediction[what] / low.outcome.prediction[what]) / run
        for what in ("step_time_s", "tokens_per_s")
    )
    return Slope(
        axis.name, low.varied[axis.name], high.varied[axis.name], _others(axis, low), step, pace
    )


def _others(axis: Axis, row: Row) -> dict[str, str]:
    return {name: value for name, value in row.varied.items() if name != axis.name}


def _number(axis: Axis, row: Row) -> float:
    number = number_of(axis.name, row.varied[axis.name])
    assert number is not None
    return number


def median_slopes(found: Sequence[Slope]) -> dict[str, tuple[float, float, float]]:
    """By axis the least, the median and the largest elasticity of the step time."""
    by_axis: dict[str, list[float]] = defaultdict(list)
    for slope in found:
        by_axis[slope.axis].append(slope.elasticity)
    return {
        name: (min(values), statistics.median(values), max(values))
        for name, values in by_axis.items()
    }
