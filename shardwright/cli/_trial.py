"""What came of a trial, for people, as JSON, and as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.cli import _output
from shardwright.planner.layouts import layout_in_words
from shardwright.planner.trials.plot import Bar, plot
from shardwright.planner.trials.terms import IN_WORDS, busiest, predicted_terms
from shardwright.specs.plan import write_text
from shardwright.specs.units import format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from shardwright.cli.trial import Result
    from shardwright.planner.trials.shortlist import Skipped
    from shardwright.runtime.race import Standing

SCHEMA = "shardwright.trial/1"

Row = tuple[str, float, float, float | None]
"""A term, predicted before, measured, predicted after correction."""


def write(
    result: Result, output: Path | None, corrected: Path | None, drawing: Path | None
) -> None:
    """The files that were asked for. A picked plan is priced from the corrected profile where that
    is kept, so that `explain` finds its prices."""
    from shardwright.planner.trials.pick import priced_by

    plan, correction = result.picked_plan(), result.correction
    if corrected is not None and correction is not None:
        write_text(corrected, correction.profile.to_json())
        plan = priced_by(plan, correction.profile.content_hash(), str(corrected))
    else:
        plan = plan.model_copy(update={"prediction": result.candidate(0).prediction})
    if output is not None:
        plan.save(output)
    if drawing is not None:
        write_text(drawing, plot(list(_bars(result)), title=_title(result)))


def _title(result: Result) -> str:
    plan = result.asked.plan
    return f"{plan.model.name} on {plan.cluster.in_words()}: {len(result.standings)} layouts"


def _bars(result: Result) -> Iterator[Bar]:
    for place, one in enumerate(result.timed):
        after = None if result.correction is None else result.correction.after[place].step_time_s
        stages = [one.of_stage(rank) for rank in range(one.layout.pp)]
        yield Bar(
            name=layout_in_words(one.layout),
            step_time_s=one.step_time_s,
            terms_s=stages[busiest(stages)],
            predicted_s=result.candidate(place).prediction.step_time_s,
            corrected_s=after,
        )


def term_rows(result: Result, place: int) -> list[Row]:
    """Of the pipeline rank that is busiest as measured, beside a prediction's own busiest rank."""
    timed, correction = result.timed[place], result.correction
    before = predicted_terms(result.candidate(place).prediction.breakdown)
    after = None if correction is None else predicted_terms(correction.after[place].breakdown)
    stages = [timed.of_stage(rank) for rank in range(timed.layout.pp)]
    measured = stages[busiest(stages)]
    return [
        (name, before[name], measured[name], None if after is None else after[name])
        for name in IN_WORDS
        if max(before[name], measured[name]) > 0
    ]


# JSON


def as_dict(result: Result) -> dict[str, Any]:
    """The object that ``--json`` prints; times in seconds."""
    correction = result.correction
    return {
        "schema": SCHEMA,
        "picked": layout_in_words(result.timed[0].layout),
        "ties": [
            layout_in_words(timed.layout)
            for one, timed in zip(result.standings, result.timed, strict=True)
            if one.verdict == "tied"
        ],
        "layouts": [_layout_dict(result, place) for place in range(len(result.standings))],
        "failed": [_named(one) for one in result.failed],
        "skipped": [_named(one) for one in result.asked.skipped],
        "rounds": max(one.num_rounds for one in result.standings),
        "most_rounds": result.job.num_rounds,
        "steps_per_round": result.job.steps_per_visit,
        "confidence": result.job.confidence,
        "resolution": result.job.resolution,
        "correction": None if correction is None else {
            "taken": correction.is_taken,
            "parameters": [
                {"name": one.name, "unit": one.unit, "before": one.before, "after": one.after,
                 "spread": one.spread}
                for one in correction.changes
            ],
            "median_error": {
                when: correction.median_error(result.timed, when)
                for when in ("before", "after", "left_out")
            },
        },
    }  # fmt: skip


def _named(one: Skipped) -> dict[str, str]:
    return {"layout": layout_in_words(one.layout), "reason": one.reason}


def _layout_dict(result: Result, place: int) -> dict[str, Any]:
    one, candidate, correction = result.standings[place], result.candidate(place), result.correction
    low, high = one.ratio_interval
    left_out = None if correction is None else correction.left_out_s
    return {
        "layout": layout_in_words(candidate.layout),
        "predicted_step_time_s": candidate.prediction.step_time_s,
        "corrected_step_time_s": None
        if correction is None
        else correction.after[place].step_time_s,
        "left_out_step_time_s": None if left_out is None else left_out[place],
        "measured_step_time_s": one.step_time_s,
        "rounds": one.num_rounds,
        "round_times_s": result.job.round_times_s()[one.index],
        "ratio": one.ratio,
        "ratio_interval": [low, high if high < 1e308 else None],
        "verdict": one.verdict,
        "rank_terms_s": [dict(row) for row in result.timed[place].terms_s],
        "terms": [
            {"term": name, "predicted_s": before, "measured_s": measured, "corrected_s": after}
            for name, before, measured, after in term_rows(result, place)
        ],
    }


# Text


def print_result(result: Result, output: Path | None, corrected: Path | None) -> None:
    """Who won by how much, term by term, what was corrected, what next."""
    plan = result.asked.plan
    _output.print_lines(
        f"trial     {plan.model.name} on {plan.cluster.in_words()}",
        f"rounds    {_rounds_in_words(result)}",
        *_set_aside(result),
    )
    _output.print_tables(_standings_table(result), _terms_table(result))
    if result.correction is not None:
        _output.print_tables(_changes_table(result))
        _output.print_lines(_errors_in_words(result))
    _output.print_lines(_verdict(result), "", *_next(output, corrected))


def _rounds_in_words(result: Result) -> str:
    rounds = max(one.num_rounds for one in result.standings)
    most, steps = result.job.num_rounds, result.job.steps_per_visit
    each = f"{steps} timed {'step' if steps == 1 else 'steps'} of each layout"
    early = f", stopped early of {most}: the answer is clear" if rounds < most else ""
    return f"{rounds} of {each}, in turn{early}"


def _set_aside(result: Result) -> Iterator[str]:
    for word, rows in (("skipped", result.asked.skipped), ("failed", result.failed)):
        for one in rows:
            yield f"{word:9} {layout_in_words(one.layout)}: {one.reason}"


def _standings_table(result: Result) -> Table:
    table = _output.table(
        "layout", "predicted", "measured", "off", "corrected", "off", "slower than the fastest",
        "rounds", "",
    )  # fmt: skip
    for place, one in enumerate(result.standings):
        before = result.candidate(place).prediction.step_time_s
        after = result.corrected_candidate(place).prediction.step_time_s
        is_corrected = result.correction is not None
        table.add_row(
            layout_in_words(result.timed[place].layout), format_seconds(before),
            format_seconds(one.step_time_s), f"{before / one.step_time_s - 1:+.1%}",
            format_seconds(after) if is_corrected else "-",
            f"{after / one.step_time_s - 1:+.1%}" if is_corrected else "-",
            _slower_in_words(one), f"{one.num_rounds}", one.verdict,
            style="bold" if place == 0 else None,
        )  # fmt: skip
    return table


def _slower_in_words(one: Standing) -> str:
    if one.verdict == "fastest":
        return "-"
    low, high = one.ratio_interval
    upper = f"{high - 1:+.1%}" if high < 10 else "any"
    return f"{one.ratio - 1:+.1%} ({low - 1:+.1%} to {upper})"


def _terms_table(result: Result) -> Table:
    table = _output.table("of the pick, on its busiest rank", "predicted", "measured", "corrected")
    for name, before, measured, after in term_rows(result, 0):
        table.add_row(
            IN_WORDS[name], _seconds(before), _seconds(measured),
            "-" if after is None else _seconds(after),
        )  # fmt: skip
    return table


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"


def _changes_table(result: Result) -> Table:
    from shardwright.planner.calibration.learn import MEANINGS as OF_STACKS
    from shardwright.planner.trials.correction import MEANINGS

    assert result.correction is not None
    table = _output.table("corrected", "before", "after", "give or take", "what it is")
    for one in result.correction.changes:
        unit = "" if one.unit == "1" else f" {one.unit}"
        table.add_row(
            one.name, f"{one.before:.3g}{unit}", f"{one.after:.3g}{unit}",
            "-" if one.spread is None else f"{one.spread:.1%}",
            (MEANINGS | OF_STACKS)[one.name],
        )  # fmt: skip
    return table


def _errors_in_words(result: Result) -> str:
    assert result.correction is not None
    before, after, left_out = (
        result.correction.median_error(result.timed, when)
        for when in ("before", "after", "left_out")
    )
    others = "" if left_out is None else f"; {left_out:.1%} where the others alone correct each"
    if not result.correction.is_taken:
        return f"error     median {before:.1%}{others}: so the profile is left as it was"
    return f"error     median {before:.1%} before, {after:.1%} after{others}"


def _verdict(result: Result) -> str:
    picked = layout_in_words(result.timed[0].layout)
    ties = sum(one.verdict == "tied" for one in result.standings)
    how = f"{result.job.confidence:.0%} sure, over all looks and pairs"
    if len(result.standings) == 1:
        return f"pick      {picked}: the only one that was timed"
    if not ties:
        return f"pick      {picked}: faster than all others ({how})"
    count = f"{ties} other" if ties == 1 else f"{ties} others"
    return f"pick      {picked}: the fastest, not told apart from {count} ({how})"


def _next(output: Path | None, corrected: Path | None) -> Iterator[str]:
    if output is None:
        yield "next: the same command with -o picked.json keeps the pick"
    else:
        yield f"next: shardwright run {output} --data DATA --steps 100"
    if corrected is not None:
        yield f"      shardwright plan MODEL --cluster {corrected}"
