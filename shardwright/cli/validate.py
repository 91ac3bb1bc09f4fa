"""``shardwright validate RUNS``: predicted against measured runs, with error statistics."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardwright.planner.validation.report import Report
    from shardwright.planner.validation.results import Job, Skip
    from shardwright.planner.validation.shapes import Configs


def validate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="A JSON file of measured runs.")],
    anchor: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Also calibrate on N rows of each stack and score the others."
        ),
    ] = None,
    hold_out: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Fit to the other rows first: stack, model, problem or each-problem.",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hugging Face configs by name, beyond the presets."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write plots into this folder."),
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """Price measured runs and say how far off, in which order and at what regret."""
    from shardwright.cli import _inputs, _output
    from shardwright.planner.validation import cross, problem, results, rows, stack_fits
    from shardwright.specs.plan import check_folder

    if hold_out is not None:
        _inputs.one_of(hold_out, list(cross.HOLD_OUTS), "--hold-out")
    if output is not None:
        check_folder(output)
    found = rows.read_runs(runs)
    configs = {} if models is None else read_configs(models)
    maker = problem.CaseMaker(defaults=stack_fits.run_defaults, configs=configs)
    items = results.prepare(found.rows, maker)
    with _output.progress("pricing runs") as progress:
        report = _report(items, anchor, hold_out, progress)
    _warn_of_faults(report)
    if output is not None:
        from shardwright.planner.validation.plots import write_plots

        write_plots(report.results, output)
    _print(report, as_json=as_json)


def _report(
    items: Sequence[Job | Skip],
    anchor: int | None,
    hold_out: Any,
    progress: Callable[[str, float], None],
) -> Report:
    """Every row priced, by a model that did not see it where one is fitted."""
    from shardwright.planner.validation import pricers
    from shardwright.planner.validation.anchor import anchor_scores
    from shardwright.planner.validation.cross import held_out
    from shardwright.planner.validation.report import Report
    from shardwright.planner.validation.results import evaluate

    pricer = pricers.default_pricer()
    fitter = pricers.default_fitter(items, forget=hold_out == "stack")
    plain = evaluate(items, pricer, progress)
    found: dict[str, Any] = {"results": plain}
    if anchor is not None:
        found["anchors"] = anchor_scores(items, plain, anchor, fitter, progress)
        found["num_anchors"] = anchor
    if hold_out is not None:
        left_out = held_out(items, hold_out, fitter, progress)
        found |= {"results": left_out.results, "folds": left_out.folds, "hold_out": hold_out}
    return Report.of(**found)


def _warn_of_faults(report: Report) -> None:
    """Say on stderr that rows were skipped by our own fault, which no row should be."""
    from shardwright.planner.validation.results import FAULTS

    faults = [r for r in report.results if r.skipped and r.skipped.startswith(FAULTS)]
    if faults:
        logger.warning(
            "%d rows are skipped by a fault of ours, the first: %s: %s",
            len(faults), faults[0].id, faults[0].skipped,
        )  # fmt: skip


def read_configs(path: Path) -> Configs:
    """Configs by name; each the config itself, or an object that holds it as ``config``.

    Raises:
        InputError: no such file, or no object of objects.
    """
    from shardwright.specs import InputError
    from shardwright.specs._base import parse_json
    from shardwright.specs.plan import read_text

    value = parse_json(read_text(path, what="model configs"), source=str(path))
    fix = 'write {"name": {...config...}, ...}'
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no configs by name (a {type(value).__name__})", fix=fix)
    found = {}
    for name, entry in value.items():
        config = entry.get("config", entry) if isinstance(entry, dict) else entry
        if not isinstance(config, dict):
            raise InputError(
                f"the config {name!r} of {path} is a {type(config).__name__}, not an object",
                fix=fix,
            )
        found[name] = config
    return found


def _print(report: Report, *, as_json: bool) -> None:
    from shardwright.cli import _output
    from shardwright.planner.validation import report as reporting

    if as_json:
        _output.print_json(reporting.as_json_dict(report))
        return
    _output.print_lines(*reporting.headline(report))
    for shown in reporting.tables(report):
        _output.print_lines("", shown.title)
        made = _output.table(*shown.headings)
        for row in shown.rows:
            made.add_row(*row)
        _output.print_tables(made)
