"""What `what-if` reads of its options and writes of its answer: a table, lines, CSV."""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.cost_models.money import Terms
from shardwright.planner.what_if.api import PICKS
from shardwright.planner.what_if.axes import number_of
from shardwright.planner.what_if.rows import Row, median_slopes
from shardwright.planner.what_if.solve import UNKNOWNS, Unknown
from shardwright.specs.errors import InputError
from shardwright.specs.units import format_bytes, format_seconds_band, parse

if TYPE_CHECKING:
    from shardwright.planner.what_if.api import WhatIfAnswer

logger = logging.getLogger(__name__)

JOULES_PER_KWH = 3.6e6


def terms_of(
    usd_per_gpu_hour: float | None,
    mtbf: str | None,
    checkpoint_time: str | None,
    restart_time: str | None,
    pue: float,
) -> Terms:
    """The terms that were typed; raises `InputError`."""
    return Terms(
        usd_per_gpu_hour=usd_per_gpu_hour,
        device_mtbf_s=math.inf if mtbf == "never" else duration(mtbf, "--mtbf"),
        checkpoint_s=duration(checkpoint_time, "--checkpoint-time", least_s=0.0),
        restart_s=duration(restart_time, "--restart-time", least_s=0.0),
        pue=pue,
    )


def duration(text: str | None, option: str, *, least_s: float = 1.0) -> float | None:
    """``60d`` in seconds; raises `InputError` for what is no duration."""
    if text is None:
        return None
    value = parse(text, "seconds")
    if not least_s <= value < math.inf:
        raise InputError(
            f"{option} is {text}, which is no time to go by",
            fix=f"write {option} such as 60d or 40s",
        )
    return value


def dollars(text: str | None) -> float | None:
    """``5M`` in dollars; raises `InputError`."""
    return None if text is None else parse(text.removeprefix("$").replace("k", "K"), "count")


def unknown(text: str | None) -> Unknown | None:
    """What is solved for; raises `InputError`."""
    if text is None:
        return None
    name = text.replace("-", "_")
    for known in UNKNOWNS:
        if name == known:
            return known
    raise InputError(f"--solve cannot be {text!r}", fix=f"choose one of {', '.join(UNKNOWNS)}")


def check_file(path: Path, *, force: bool) -> None:
    """Make sure, before any work is done, that a file may be written; raises `InputError`."""
    from shardwright.specs.plan import check_folder

    check_folder(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder", fix="name a file in it")
    if path.exists() and not force:
        raise InputError(
            f"{path} exists, so it is left as it is",
            fix="choose another path, or add --force to overwrite it",
        )


def warn(answer: WhatIfAnswer) -> None:
    """Each model's notes once, as `plan` warns of them."""
    rows = (row.outcome for row in answer.rows)
    for name, note in dict.fromkeys(
        (row.asked["model"], note) for row in rows for note in row.notes
    ):
        logger.warning("%s: %s", name, note)


def print_answer(answer: WhatIfAnswer) -> None:
    """The points for people."""
    from shardwright.cli import _output

    _output.print_lines(*_heading(answer), "")
    _output.print_lines(*points_table(answer), "")
    _output.print_lines(*_remarks(answer))


def _heading(answer: WhatIfAnswer) -> Iterator[str]:
    asked = [row.outcome.asked for row in answer.rows if row.outcome.asked]
    for label, words in (
        ("model", lambda one: f"{one['model']}: {one['num_parameters']:,} parameters"),
        ("cluster", lambda one: one["cluster_in_words"]),
        ("training", _training_in_words),
        ("software", lambda one: one["software"]),
    ):
        said = {words(one) for one in asked}
        if len(said) == 1:
            yield f"{label:<9} {said.pop()}"
    assumed = [row.outcome.assumed for row in answer.rows if row.outcome.assumed]
    common = {
        name: value
        for name, value in (assumed[0] if assumed else {}).items()
        if all(one.get(name) == value for one in assumed)
    }
    if common:
        yield "assumed:  " + ", ".join(f"{name} {value}" for name, value in common.items())
    if any(row.cost is not None for row in answer.rows):
        yield from _sources_in_words(answer)


def _training_in_words(asked: dict[str, Any]) -> str:
    return (
        f"{asked['global_batch']:,} sequences x {asked['seq_len']:,} tokens ="
        f" {asked['tokens_per_step']:,} tokens a step, {asked['precision']}, {asked['optimizer']}"
        + (f", {asked['trainable']}" if asked["trainable"] != "full" else "")
    )


def _sources_in_words(answer: WhatIfAnswer) -> Iterator[str]:
    """What money, energy and failures rest on; prices and powers where one holds for all."""
    from shardwright.cost_models.money import failures_in_words

    sources = [row.outcome.sources for row in answer.rows if row.cost is not None]
    stated = answer.terms.usd_per_gpu_hour
    if stated is not None:
        yield f"price     {stated:g} USD per GPU hour (as stated)"
    for name in ("price", "power"):
        found = dict.fromkeys(one[name] for one in sources)
        if name != "price" or stated is None:
            yield from (f"{name:<9} {words}" for words in found)
    failing, saving, restarting = failures_in_words(answer.terms)
    yield f"failures  {failing}; checkpoint {saving}; restart {restarting}"


def points_table(answer: WhatIfAnswer) -> Iterator[str]:
    """One row per point, in the order of what varies; points on the front have a star."""
    from shardwright.cli._output import aligned, terminal_columns

    costed = any(row.cost is not None for row in answer.rows)
    limited = any(row.meets is not None for row in answer.rows)
    names = list(answer.rows[0].varied)  # what was solved for comes last
    extra = _extra_names(answer, names)
    headings = [
        *(name.replace("_", " ") for name in (*names, *extra)),
        *("step (80 % band)", "tokens/s", "MFU", "peak / usable"),
        *(["days", "GPU-hours", "cost", "MWh"] if costed else []),
        *(["meets"] if limited else []),
        *("front", "layout"),
    ]
    notes = _notes(answer)
    rows = [
        [
            *(_value_text(name, row.varied[name]) for name in names),
            *(_asked_text(row, name) for name in extra),
            *_found_cells(row, costed=costed, limited=limited, notes=notes),
        ]
        for row in answer.rows
    ]
    return aligned(headings, rows, most=terminal_columns())


def _extra_names(answer: WhatIfAnswer, names: Sequence[str]) -> list[str]:
    """Of the question what differs from row to row without being varied: default batches, sizes."""
    asked = [row.outcome.asked for row in answer.rows if row.outcome.asked]
    return [
        name
        for name in ("gpus", "global_batch", "seq_len")
        if name not in names
        and not (name == "gpus" and "nodes" in names)
        and len({one[name] for one in asked}) > 1
    ]


def _value_text(name: str, value: str) -> str:
    number = number_of(name, value) if value != "-" else None
    return f"{int(number):,}" if number is not None and value.isdigit() else value


def _asked_text(row: Row, name: str) -> str:
    value = row.outcome.asked.get(name)
    return "-" if value is None else f"{value:,}"


def _found_cells(row: Row, *, costed: bool, limited: bool, notes: dict[str, int]) -> list[str]:
    found = row.outcome.prediction
    meets = [{None: "", True: "yes", False: "no"}[row.meets]] if limited else []
    if row.step_time_s is None or found is None:
        why = {"infeasible": "nothing fits", "invalid": "not possible"}.get(row.outcome.verdict, "")
        note = f"{why} [{notes[row.outcome.reason or '']}]"
        return [note, "", "", "", *([""] * 4 if costed else []), *meets, "", ""]
    peak = max(found["peak_memory_bytes"])
    low, high = found["step_time_band_s"]
    return [
        format_seconds_band(found["step_time_s"], (low, high)),
        f"{found['tokens_per_s']:,.0f}",
        "" if found["mfu"] is None else f"{found['mfu']:.1%}",
        f"{format_bytes(peak)} / {format_bytes(found['memory_capacity_bytes'])}",
        *(_cost_cells(row) if costed else []),
        *meets,
        "*" if row.is_on_front else "",
        (row.outcome.layout_text or "").partition(",stages=")[0],
    ]


def _cost_cells(row: Row) -> list[str]:
    cost = row.cost
    if cost is None:
        return [""] * 4
    if math.isinf(cost.time_s):
        return ["never ends", "", "", ""]
    energy = cost.energy_joules
    return [
        _rounded(cost.days),
        large(cost.gpu_hours),
        "not known" if cost.cost_usd is None else f"${large(cost.cost_usd)}",
        "not known" if energy is None else _rounded(energy / JOULES_PER_KWH / 1000),
    ]


def _rounded(number: float) -> str:
    """Three digits, and whole numbers in full."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def large(number: float) -> str:
    """``31.2 M``: three digits and the thousands in a letter."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {letter}"
    return f"{number:.3g}"


def _notes(answer: WhatIfAnswer) -> dict[str, int]:
    """Reasons why points have no plan, numbered in their order."""
    reasons = [row.outcome.reason or "" for row in answer.rows if row.step_time_s is None]
    return {reason: number for number, reason in enumerate(dict.fromkeys(reasons), 1)}


def _remarks(answer: WhatIfAnswer) -> Iterator[str]:
    yield from (f"[{number}] {reason}" for reason, number in _notes(answer).items())
    yield from _solved_in_words(answer)
    if answer.feasible:
        yield from _picks_in_words(answer)
        yield from _goodput_in_words(answer)
        yield from _slopes_in_words(answer)
        yield from _certainty_in_words(answer)


def _solved_in_words(answer: WhatIfAnswer) -> Iterator[str]:
    for row, solved in zip(answer.rows, answer.solved, strict=False):
        if solved.value is None:
            continue
        which = "fewest" if solved.unknown == "gpus" else "largest"
        others = ", ".join(f"{n} {v}" for n, v in row.varied.items() if n != solved.unknown)
        how = "" if solved.is_exhaustive else " (its neighbours were tried, not every value)"
        yield (
            f"solved    {which} {solved.unknown}{f' at {others}' if others else ''}:"
            f" {solved.value:,}{how}"
        )
        if solved.beyond:
            yield f"          beyond: {solved.beyond}"


def _picks_in_words(answer: WhatIfAnswer) -> Iterator[str]:
    limits = [
        f"{answer.limits.deadline_s / 86400:g} days" if answer.limits.deadline_s else "",
        f"${large(answer.limits.budget_usd)}" if answer.limits.budget_usd else "",
    ]
    within = " and ".join(filter(None, limits))
    if within and answer.pick("fastest") is None:
        yield f"limits    no point keeps within {within}"
        return
    models = answer.models()
    if len(answer.rows) == len(models):
        return
    for model in models:
        for what in PICKS:
            place = answer.pick(what, model)
            if place is not None:
                row = answer.rows[place]
                point = ", ".join(f"{name} {value}" for name, value in row.varied.items())
                yield f"{what:<9} {point}{f' within {within}' if within else ''}: {_in_short(row)}"


def _in_short(row: Row) -> str:
    if row.cost is None:
        found = row.outcome.prediction
        assert found is not None
        return f"{found['tokens_per_s']:,.0f} tokens/s on {row.num_devices:,} devices"
    money = "" if row.cost.cost_usd is None else f", ${large(row.cost.cost_usd)}"
    return f"{_rounded(row.cost.days)} days, {large(row.cost.gpu_hours)} GPU-hours{money}"


def _goodput_in_words(answer: WhatIfAnswer) -> Iterator[str]:
    """Between which shares of the time steps count."""
    shares = sorted(row.cost.goodput.fraction for row in answer.rows if row.cost is not None)
    if shares:
        spread = f"{shares[0]:.1%}" + (f" to {shares[-1]:.1%}" if len(shares) > 1 else "")
        yield f"goodput   {spread} of the time goes into steps that count"


def _slopes_in_words(answer: WhatIfAnswer) -> Iterator[str]:
    for name, (low, median, high) in median_slopes(answer.slopes).items():
        spread = "" if low == high else f" (median; {low:+.2f} to {high:+.2f})"
        yield f"slope     1 % more {name} changes the step time by {median:+.2f} %{spread}"


def _certainty_in_words(answer: WhatIfAnswer) -> Iterator[str]:
    gaps = [
        row.outcome.certificate["gap"]
        for row in answer.rows
        if row.step_time_s is not None and row.outcome.certificate is not None
        and not row.outcome.certificate["optimal"]
    ]  # fmt: skip
    verdict = (
        f"{len(gaps)} points ran out of time: better layouts may exist, by {max(gaps):.2%} at most"
        if gaps
        else "every plan is the best under this model"
    )
    yield f"certain   {verdict}; {answer.num_planned:,} points planned now, the rest kept"


def csv_rows(answer: WhatIfAnswer) -> list[dict[str, Any]]:
    """Flat records, one per point; empty where there is nothing."""
    return [_csv_row(row) for row in answer.rows]


def _csv_row(row: Row) -> dict[str, Any]:
    outcome = row.outcome
    found = outcome.prediction if row.step_time_s is not None else None
    asked = {name: value for name, value in outcome.asked.items() if name != "cluster_in_words"}
    record: dict[str, Any] = {
        **{f"varied_{name}": value for name, value in row.varied.items()},
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        **{name: asked.get(name) for name in ASKED},
        **{name: None for name in FOUND},
    }
    if found is not None:
        record |= {name: found[name] for name in ("step_time_s", "tokens_per_s", "mfu")}
        record["step_time_low_s"], record["step_time_high_s"] = found["step_time_band_s"]
        record["peak_memory_bytes"] = max(found["peak_memory_bytes"])
        record["memory_capacity_bytes"] = found["memory_capacity_bytes"]
        record["layout"] = outcome.layout_text
        record["optimal"] = outcome.certificate and outcome.certificate["optimal"]
        record["on_front"] = row.is_on_front
        record["meets"] = row.meets
    if row.cost is not None and math.isfinite(row.cost.time_s):
        record |= {
            "days": row.cost.days,
            "gpu_hours": row.cost.gpu_hours,
            "cost_usd": row.cost.cost_usd,
            "energy_joules": row.cost.energy_joules,
            "goodput": row.cost.goodput.fraction,
        }
    return record


ASKED = (
    "model", "num_parameters", "layers", "cluster", "gpus", "nodes", "seq_len", "global_batch",
    "tokens_per_step", "precision", "optimizer", "trainable", "software",
)  # fmt: skip
FOUND = (
    "step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s", "mfu",
    "peak_memory_bytes", "memory_capacity_bytes", "days", "gpu_hours", "cost_usd",
    "energy_joules", "goodput", "meets", "on_front", "optimal", "layout",
)  # fmt: skip


def write_csv(path: Path, answer: WhatIfAnswer) -> None:
    """One line per point; raises `InputError` where the file cannot be written."""
    from shardwright.specs.plan import write_text

    records = csv_rows(answer)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    write_text(path, text.getvalue())
