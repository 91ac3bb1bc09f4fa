"""What `validate` says: one JSON object, and the same as tables for people.

The keys of ``rows``, ``summary`` and ``problems`` are a contract; errors are fractions there, and
percent in the tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.hardware_profiles.stacks import fitted
from shardwright.planner.validation.anchor import AnchorScore, over_stacks
from shardwright.planner.validation.cross import FoldScore
from shardwright.planner.validation.results import RowResult
from shardwright.planner.validation.scores import (
    Errors,
    OomScores,
    ProblemScore,
    Scores,
    StepScores,
    score,
)

_ROW_KEYS = (
    "id", "measured_step_time_s", "predicted_step_time_s", "band_s", "measured_peak_memory_bytes",
    "predicted_peak_memory_bytes", "measured_oom", "predicted_oom", "skipped",
)  # fmt: skip
_PROBLEM_KEYS = ("problem", "num_layouts", "best_id", "picked_id", "regret", "pairwise_accuracy")
_MOST_LETTERS, _MOST_REASON = 60, 110
_MOST_LINES = 15
"""Of problems and of reasons in tables; ``--json`` has all of them."""


@dataclass(frozen=True, slots=True)
class Report:
    """Every row of a file beside its prediction, and what follows."""

    results: tuple[RowResult, ...]
    scores: Scores
    anchors: tuple[AnchorScore, ...] | None = None
    """After calibration on a few rows of each stack, where that was asked for."""
    num_anchors: int | None = None
    folds: tuple[FoldScore, ...] | None = None
    hold_out: str | None = None
    """How rows were left out of fitting; None: nothing was fitted to this file."""

    @property
    def num_known(self) -> int:
        """Rows of stacks that the catalogue has fitted numbers of."""
        known = fitted().stacks
        return sum(one.ratio is not None and one.stack in known for one in self.results)

    @classmethod
    def of(cls, results: Sequence[RowResult], **further: Any) -> Report:
        return cls(tuple(results), score(results), **further)


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table in words: a title, headings, and rows of the same length."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def as_json_dict(report: Report) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    return {
        "rows": [_row_json(result) for result in report.results],
        "summary": _summary_json(report),
        "problems": [
            {key: getattr(problem, key) for key in _PROBLEM_KEYS}
            for problem in report.scores.problems
        ],
    }


def _row_json(result: RowResult) -> dict[str, Any]:
    row = {key: getattr(result, key) for key in _ROW_KEYS}
    row["band_s"] = None if result.band_s is None else list(result.band_s)
    return row


def _summary_json(report: Report) -> dict[str, Any]:
    scores = report.scores
    regrets = scores.regrets
    summary: dict[str, Any] = {
        "step_time": _step_json(scores.step),
        "order": {
            "pairs": sum(problem.num_pairs for problem in scores.problems),
            "right": sum(problem.num_right for problem in scores.problems),
            "repeats": sum(problem.num_repeats for problem in scores.problems),
            "pairwise_accuracy": scores.pairwise_accuracy,
        },
        "regret": {
            "problems": len(regrets),
            "mean": sum(regrets) / len(regrets) if regrets else None,
            "worst": max(regrets, default=None),
        },
        "memory": {kind: dataclasses.asdict(errors) for kind, errors in scores.memory.items()},
        "oom": dataclasses.asdict(scores.oom)
        | {"near_capacity_refused_fraction": scores.oom.near_capacity_refused_fraction},
        "by_stack": {stack: _step_json(found) for stack, found in scores.by_stack.items()},
        "groups": [
            {"stack": stack, "accelerator": accelerator, **_step_json(found)}
            for (stack, accelerator), found in scores.groups.items()
        ],
        "skipped": dict(scores.skips),
    }
    if report.anchors is not None:
        found = [dataclasses.asdict(anchor) for anchor in report.anchors]
        whole = over_stacks(report.anchors)
        summary["anchor"] = {
            "num_anchors": report.num_anchors,
            "all": None if whole is None else dataclasses.asdict(whole),
            "stacks": found,
        }
    if report.folds is not None:
        parts = [dataclasses.asdict(fold) for fold in report.folds]
        summary["hold_out"] = {"by": report.hold_out, "folds": parts}
    return summary


def _step_json(scores: StepScores) -> dict[str, Any]:
    return {
        "rows": scores.num_rows,
        "skipped": scores.num_skipped,
        **dataclasses.asdict(scores.errors),
        "band_coverage": scores.band_coverage,
        "noise_floor": scores.noise,
        "full_configuration": {
            "rows": scores.num_full,
            "skipped": scores.num_full_skipped,
            "skipped_fraction": _fraction(scores.num_full_skipped, scores.num_full),
            "with_skipped_as_100_percent": dataclasses.asdict(scores.strict),
        },
    }


def _fraction(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def headline(report: Report) -> Iterator[str]:
    """The file in a few lines."""
    scores = report.scores
    step = scores.step
    yield f"rows      {step.num_rows}, of which {step.num_skipped} skipped"
    full = f"{step.num_full} with a full configuration, of which {step.num_full_skipped} skipped"
    yield f"coverage  {full} ({_percent(_fraction(step.num_full_skipped, step.num_full))})"
    yield f"step time {_errors_in_words(step.errors)}"
    yield f"          {_errors_in_words(step.strict)} (full configuration, skipped = 100 %)"
    yield f"band      {_percent(step.band_coverage)} of measured steps inside the 80 % band"
    pairs = sum(problem.num_pairs for problem in scores.problems)
    yield f"order     {_percent(scores.pairwise_accuracy)} of {pairs} clear pairs ordered right"
    regrets = scores.regrets
    mean = sum(regrets) / len(regrets) if regrets else None
    yield (
        f"regret    {_percent(mean)} mean, {_percent(max(regrets, default=None))} worst of"
        f" {len(regrets)} problems"
    )
    if report.hold_out is not None:
        yield f"fitted    without the rows that are scored, left out by {report.hold_out}"
    elif report.num_known:
        yield (
            f"fitted    {report.num_known} rows are of stacks that were fitted to published runs:"
            " if these are among them, use --hold-out stack"
        )


def _errors_in_words(errors: Errors) -> str:
    return (
        f"{errors.count} rows: MAPE {_percent(errors.mape)}, median {_percent(errors.median)},"
        f" p90 {_percent(errors.p90)}, bias {_signed(errors.bias)}"
    )


def tables(report: Report) -> Iterator[TextTable]:
    """Everything else, each table only where it has rows."""
    made = [
        _group_table(report.scores),
        _memory_table(report.scores.memory),
        _oom_table(report.scores.oom),
        _problem_table(report.scores.problems),
        _anchor_table(report.anchors or (), report.num_anchors),
        _fold_table(report.folds or (), report.hold_out),
        _skip_table(report.scores.skips),
    ]
    yield from (table for table in made if table.rows)


def _group_table(scores: Scores) -> TextTable:
    rows = [
        _step_cells(stack, accelerator, found)
        for (stack, accelerator), found in scores.groups.items()
    ]
    rows += [_step_cells(stack, "all", found) for stack, found in scores.by_stack.items()]
    headings = (
        "stack", "accelerator", "rows", "skipped", "MAPE", "median", "p90", "bias", "in band",
        "noise floor",
    )  # fmt: skip
    return TextTable("Step time", headings, tuple(rows))


def _step_cells(stack: str, accelerator: str, scores: StepScores) -> tuple[str, ...]:
    counts = (f"{scores.num_rows}", f"{scores.num_skipped}")
    errors = _error_cells(scores.errors)
    return (stack, accelerator, *counts, *errors, _percent(scores.band_coverage),
            _percent(scores.noise))  # fmt: skip


def _error_cells(errors: Errors) -> tuple[str, ...]:
    return (_percent(errors.mape), _percent(errors.median), _percent(errors.p90),
            _signed(errors.bias))  # fmt: skip


def _memory_table(memory: Mapping[str, Errors]) -> TextTable:
    rows = tuple(
        (kind.replace("_", " "), f"{errors.count}", *_error_cells(errors))
        for kind, errors in memory.items()
    )
    return TextTable("Peak memory", ("kind", "rows", "MAPE", "median", "p90", "bias"), rows)


def _oom_table(oom: OomScores) -> TextTable:
    rows = (
        ("out of memory", f"{oom.oom_refused}", f"{oom.oom_accepted}"),
        ("ran", f"{oom.ran_refused}", f"{oom.ran_accepted}"),
        (
            "ran, with 80 % of the device's memory or more",
            f"{oom.near_capacity_refused}",
            f"{oom.near_capacity - oom.near_capacity_refused}",
        ),
        (
            "out of memory by fragmentation (refused or at risk)",
            f"{oom.fragmentation_at_risk}",
            f"{oom.fragmentation_missed}",
        ),
    )
    shown = tuple(row for row in rows if row[1:] != ("0", "0"))
    return TextTable("Memory verdicts", ("measured", "refused", "accepted"), shown)


def _problem_table(problems: Sequence[ProblemScore]) -> TextTable:
    """Those with the largest regret."""
    several = [p for p in problems if p.num_layouts > 1 and p.regret is not None]
    several.sort(key=lambda p: (-(p.regret or 0.0), p.problem))
    rows = tuple(
        (_shortened(p.problem), f"{p.num_layouts}", p.best_id, p.picked_id or "-",
         _percent(p.regret), _percent(p.pairwise_accuracy))
        for p in several[:_MOST_LINES]
    )  # fmt: skip
    title = f"Problems with several layouts, largest regret first ({len(rows)} of {len(several)})"
    return TextTable(title, ("problem", "layouts", "best", "picked", "regret", "ordered"), rows)


def _anchor_table(anchors: Sequence[AnchorScore], num_anchors: int | None) -> TextTable:
    whole = over_stacks(anchors)
    rows = tuple(
        (a.stack, f"{a.num_rows}", f"{a.num_choices}", _percent(a.mape), _percent(a.median),
         _percent(a.p90), _signed(a.bias), _percent(a.band_coverage))
        for a in (*anchors, *([whole] if whole else []))
    )  # fmt: skip
    title = f"Step time after calibration on {num_anchors} rows of each stack, mean over choices"
    headings = ("stack", "rows", "choices", "MAPE", "median", "p90", "bias", "in band")
    return TextTable(title, headings, rows)


def _fold_table(folds: Sequence[FoldScore], hold_out: str | None) -> TextTable:
    rows = tuple(
        (fold.name, f"{fold.num_fitted}", f"{fold.errors.count}", *_error_cells(fold.errors))
        for fold in folds
    )
    headings = (f"{hold_out} left out", "fitted to", "rows", "MAPE", "median", "p90", "bias")
    return TextTable("Step time without the rows that were left out", headings, rows)


def _skip_table(skips: Mapping[str, int]) -> TextTable:
    rows = [(f"{count}", reason[:_MOST_REASON]) for reason, count in skips.items()]
    if len(rows) > _MOST_LINES:
        rest = sum(list(skips.values())[_MOST_LINES:])
        rows = [*rows[:_MOST_LINES], (f"{rest}", "for other reasons (see --json)")]
    return TextTable("Skipped", ("rows", "why"), tuple(rows))


def _shortened(name: str) -> str:
    """A problem's name in one line of a table: its beginning and its end."""
    return name if len(name) <= _MOST_LETTERS else f"{name[:20]}...{name[23 - _MOST_LETTERS :]}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}".replace("%", " %")


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}".replace("%", " %")
