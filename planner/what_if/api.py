"""`what_if`: what the command and ``shardwright.what_if`` call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.cost_models.money import RunCost, Terms
from shardwright.planner.what_if.axes import CHOICES, SCALED, Axis, axes_of, product
from shardwright.planner.what_if.cache import Cache, default_folder
from shardwright.planner.what_if.points import Outcome, Point
from shardwright.planner.what_if.rows import (
    Limits,
    Row,
    Slope,
    front,
    median_slopes,
    row_of,
    slopes,
)
from shardwright.planner.what_if.runner import Runner, Watch
from shardwright.planner.what_if.solve import UNKNOWNS, Solved, Unknown, solve
from shardwright.specs import InputError, ModelSpec
from shardwright.specs.ranges import MOST_TOKENS
from shardwright.specs.units import parse

if TYPE_CHECKING:
    from shardwright.hardware_profiles.profile import HardwareProfile

WHAT_IF_SCHEMA = "shardwright.what-if/1"
PICKS = ("fastest", "cheapest", "smallest")


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """Every point with its plan or the reason why it has none, and what follows from all."""

    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]
    slopes: tuple[Slope, ...]
    solved: tuple[Solved, ...]
    """One per row where something was solved for, else empty."""
    limits: Limits
    terms: Terms
    num_planned: int
    """Points that were planned anew; the others were kept from before."""

    @property
    def feasible(self) -> bool:
        """Whether any point has a plan."""
        return any(row.step_time_s is not None for row in self.rows)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why points have no plan, each reason once."""
        return tuple(dict.fromkeys(row.outcome.reason or "" for row in self.rows))

    @property
    def suggestions(self) -> tuple[str, ...]:
        """None of its own: `plan` of a single point has them."""
        return ()

    def models(self) -> list[tuple[str, int]]:
        """Names and depths of the models that were asked about, in their order."""
        asked = (row.outcome.asked for row in self.rows if row.outcome.asked)
        return list(dict.fromkeys((one["model"], one["layers"]) for one in asked))

    def pick(self, what: str, model: tuple[str, int] | None = None) -> int | None:
        """The ``fastest``, ``cheapest`` or ``smallest`` row, of those that keep the limits.

        ``model``: one of `models`; None where there is but one. The faster of equally cheap or
        small ones; the first of those that are equal in all. None where there is none, or where
        what is asked for is not known.
        """
        open_rows = [
            (self._rank(what, row), place)
            for place, row in enumerate(self.rows)
            if row.step_time_s is not None
            and row.meets is not False
            and model in (None, (row.outcome.asked["model"], row.outcome.asked["layers"]))
        ]
        best = min(open_rows, default=None)
        return None if best is None or math.isinf(best[0][0]) else best[1]

    def _rank(self, what: str, row: Row) -> tuple[float, float]:
        assert row.outcome.prediction is not None
        pace = 1 / row.outcome.prediction["tokens_per_s"]
        time_s = pace if row.cost is None else row.cost.time_s
        if what == "fastest":
            return time_s, 0.0
        if what == "smallest":
            return row.num_devices, time_s
        usd = None if row.cost is None else row.cost.cost_usd
        return math.inf if usd is None else usd, time_s

    def to_json_dict(self) -> dict[str, Any]:
        """The answer of ``--json``: the keys are a contract."""
        return {
            "schema": WHAT_IF_SCHEMA,
            "axes": [{"name": axis.name, "values": list(axis.values)} for axis in self.axes],
            "terms": {key: _finite(value) for key, value in asdict(self.terms).items()},
            "limits": asdict(self.limits),
            "points": [self._row_json(place) for place in range(len(self.rows))],
            "picks": [
                {"model": model[0], "layers": model[1]}
                | {what: self.pick(what, model) for what in PICKS}
                for model in self.models()
            ],
            "elasticities": [asdict(slope) for slope in self.slopes],
            "median_elasticities": {
                name: {"low": low, "median": median, "high": high}
                for name, (low, median, high) in median_slopes(self.slopes).items()
            },
        }

    def _row_json(self, place: int) -> dict[str, Any]:
        row = self.rows[place]
        outcome = row.outcome.to_json_dict()
        solved = self.solved[place] if self.solved else None
        return {
            "varied": row.varied,
            **outcome,
            "run": None if row.cost is None else run_json(row.cost),
            "meets": row.meets,
            "on_front": row.is_on_front,
            "solved": None if solved is None else _solved_json(solved),
        }


def run_json(cost: RunCost) -> dict[str, Any]:
    """A run's cost with the figures that people ask for; null where infinite or not known."""
    found = asdict(cost)
    return {key: _finite(value) for key, value in {**found, "days": cost.days}.items()}


def _solved_json(solved: Solved) -> dict[str, Any]:
    return {
        "unknown": solved.unknown,
        "value": solved.value,
        "beyond": solved.beyond,
        "exhaustive": solved.is_exhaustive,
        "tried": {f"{value}": works for value, works in solved.tried.items()},
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def what_if(
    *,
    model: str | ModelSpec | None = None,
    cluster: str | HardwareProfile | None = None,
    vary: Iterable[str] | Mapping[str, Iterable[object]] = (),
    settings: Mapping[str, object] | None = None,
    tokens: str | int | None = None,
    fix: str = "",
    forbid: Iterable[str] = (),
    terms: Terms | None = None,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    unknown: Unknown | None = None,
    jobs: int | None = None,
    cache_folder: Path | None = None,
    use_cache: bool = True,
    time_limit_s: float | None = None,
    progress: Watch | None = None,
) -> WhatIfAnswer:
    """Plan every combination of what varies, each to its certified optimum.

    Args:
        model: a name as `resolve_model` reads it, or a model; may vary instead.
        cluster: a name as `resolve_cluster` reads it, or a profile; may vary instead.
        vary: ``["gpus=64..1024:64", "seq_len=8k,32k"]`` or ``{"gpus": [64, 128]}``.
        settings: what does not vary: gpus, nodes, seq_len, global_batch, precision, optimizer,
            gradient_dtype, trainable, stack, layers, and parts of the cluster (memory="50%").
        tokens: to train on in all, such as ``"15T"``; then a run's time and cost are reckoned.
        fix, forbid: as for `plan`.
        terms: prices, failures and checkpoints where they are not the catalogue's.
        deadline_s, budget_usd: what a run may take; needs ``tokens``.
        unknown: ``seq_len``, ``micro_batch``, ``layers`` (largest) or ``gpus`` (fewest) to find.
        jobs: processes at once; default all cores.
        cache_folder: where results are kept; default the user's folder for caches.
        time_limit_s: for each point, as for `plan`.
        progress: called with how many points are done, and of how many.

    Raises:
        InputError: what is asked for does not exist or contradicts itself, or every point is wrong.
    """
    axes = axes_of(vary)
    base = {name: f"{value}" for name, value in (settings or {}).items() if value is not None}
    limits = Limits(deadline_s, budget_usd)
    budget = None if tokens is None else f"{tokens}"
    _check(axes, base, model, cluster, budget, limits, unknown)
    combinations = product(axes)
    plain = Point("", "", base, fix, tuple(forbid), time_limit_s)
    points = [_point(plain, model, cluster, varied) for varied in combinations]
    folder = (cache_folder or default_folder()) if use_cache else None
    runner = Runner(Cache(folder), jobs=jobs)
    terms = terms or Terms()

    def row(varied: dict[str, str], outcome: Outcome) -> Row:
        return row_of(varied, outcome, varied.get("tokens", budget), terms, limits)

    solved: tuple[Solved, ...] = ()
    if unknown is not None:
        solved = _solve_all(unknown, points, combinations, runner, row, progress)
        outcomes = [one.outcome or Outcome("invalid") for one in solved]
    else:
        outcomes = runner.run(points, progress)
    _refuse_if_all_wrong(outcomes)
    rows = [row(varied, outcome) for varied, outcome in zip(combinations, outcomes, strict=True)]
    if solved:
        rows = [_with_value(one, found) for one, found in zip(rows, solved, strict=True)]
    marked = [replace(one, is_on_front=on) for one, on in zip(rows, front(rows), strict=True)]
    return WhatIfAnswer(
        axes, tuple(marked), slopes(axes, marked), solved, limits, terms, runner.num_planned
    )


def _solve_all(
    unknown: Unknown,
    points: Sequence[Point],
    combinations: Sequence[dict[str, str]],
    runner: Runner,
    row: Callable[[dict[str, str], Outcome], Row],
    progress: Watch | None,
) -> tuple[Solved, ...]:
    found = []
    for place, (point, varied) in enumerate(zip(points, combinations, strict=True)):
        if progress is not None:
            progress(place, len(points))

        def works(outcome: Outcome, varied: dict[str, str] = varied) -> bool:
            made = row(varied, outcome)
            return made.step_time_s is not None and made.meets is not False

        try:
            found.append(solve(unknown, point, runner, works))
        except InputError as error:
            outcome = Outcome("invalid", reason=str(error))
            found.append(Solved(unknown, None, outcome, outcome.reason, False, {}))
    return tuple(found)


def _with_value(row: Row, found: Solved) -> Row:
    """The row under the value that was found, without a plan where none was."""
    if found.value is not None:
        return replace(row, varied={**row.varied, found.unknown: f"{found.value}"})
    outcome = row.outcome
    if outcome.verdict != "invalid":
        why = f"no {found.unknown} works; {found.beyond}"
        outcome = Outcome("infeasible", reason=why, asked=outcome.asked)
    return replace(row, outcome=outcome, cost=None, varied={**row.varied, found.unknown: "-"})


def _point(
    plain: Point,
    model: str | ModelSpec | None,
    cluster: str | HardwareProfile | None,
    varied: Mapping[str, str],
) -> Point:
    named = ("model", "cluster", "tokens")
    settings = {**plain.settings, **{n: v for n, v in varied.items() if n not in named}}
    wanted_model = varied.get("model", model)
    wanted_cluster = varied.get("cluster", cluster)
    assert wanted_model is not None
    assert wanted_cluster is not None
    return replace(plain, model=wanted_model, cluster=wanted_cluster, settings=settings)


def _check(
    axes: Sequence[Axis],
    base: Mapping[str, str],
    model: object,
    cluster: object,
    tokens: str | None,
    limits: Limits,
    unknown: Unknown | None,
) -> None:
    """Refuse questions that contradict themselves; raises `InputError`."""
    varied = {axis.name for axis in axes}
    for name, given in (("model", model), ("cluster", cluster)):
        if given is None and name not in varied:
            raise InputError(f"no {name} is given", fix=f"name one, or vary {name}=A,B")
    _check_settings(varied, base, unknown)
    if tokens is not None:
        count = parse(tokens, "count")
        if not 1 <= count <= MOST_TOKENS:
            raise InputError(f"{tokens} is no number of tokens", fix="write one such as 15T")
    elif limits != Limits() and "tokens" not in varied:
        raise InputError(
            "a deadline or a budget needs to know how long the run is",
            fix="say how many tokens it trains on, such as tokens = 15T",
        )
    for what, value in (("deadline", limits.deadline_s), ("budget", limits.budget_usd)):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"a {what} of {value:g} leaves nothing", fix=f"give a positive {what}")


def _check_settings(varied: set[str], base: Mapping[str, str], unknown: Unknown | None) -> None:
    known = {
        "gpus", "nodes", "seq_len", "global_batch", "precision", "optimizer", "gradient_dtype",
        "trainable", "stack", "layers", *SCALED, *CHOICES,
    }  # fmt: skip
    for name in base:
        if name not in known:
            raise InputError(
                f"{name!r} is no setting", fix=f"choose from {', '.join(sorted(known))}"
            )
    counts = {"gpus", "nodes"} & ({*base, *varied})
    if counts == {"gpus", "nodes"}:
        raise InputError("both gpus and nodes are given", fix="give one of the two")
    if unknown is None:
        return
    if unknown not in UNKNOWNS:
        raise InputError(
            f"{unknown} cannot be solved for", fix=f"choose one of {', '.join(UNKNOWNS)}"
        )
    clash = {"gpus", "nodes"} if unknown == "gpus" else {unknown}
    if clash & varied:
        raise InputError(f"{unknown} is varied and solved for", fix="leave one of the two out")


def _refuse_if_all_wrong(outcomes: Sequence[Outcome]) -> None:
    """One wrong point is a row; a question that is wrong everywhere is an error."""
    if all(outcome.verdict == "invalid" for outcome in outcomes):
        raise InputError(outcomes[0].reason or "no point can be planned")
