"""``shardwright export PLAN --to TARGET``: the files with which other software runs a plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.planner.exporters.exported import Exported


def export(
    plan: _options.PlanFile,
    to: Annotated[
        str,
        typer.Option(metavar="TARGET", help="megatron-lm, torchtitan, deepspeed or accelerate."),
    ],
    target_version: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="Of the target; Megatron-LM: main (default), core_v0.15.0, core_r0.9.0.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Write the files into this folder."),
    ] = None,
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Write a plan as launch and configuration files of other software."""
    from shardwright.cli import _output
    from shardwright.planner.exporters.api import export as export_plan
    from shardwright.planner.exporters.files import write_folder
    from shardwright.specs import Plan

    exported = export_plan(Plan.load(plan), to, target_version)
    written = [] if output is None else write_folder(exported, output, force=force)
    if as_json:
        _output.print_json(as_json_dict(exported, written))
    elif written:
        _output.print_lines(*_summary(exported, written))
    else:
        for name, text in exported.files.items():
            _output.print_lines(f"# ==== {name} ====")
            sys.stdout.write(text)


def as_json_dict(exported: Exported, written: list[Path]) -> dict[str, Any]:
    """The JSON object that ``--json`` prints."""
    return {
        "target": exported.target,
        "version": exported.version,
        "files": dict(exported.files),
        "arguments": [list(option) for option in exported.arguments],
        "environment": dict(exported.environment),
        "notes": list(exported.notes),
        "written": [str(path) for path in written],
    }


def _summary(exported: Exported, written: list[Path]) -> list[str]:
    return [
        f"target    {exported.target} {exported.version}",
        *(f"note      {note}" for note in exported.notes),
        *(f"wrote     {path}" for path in written),
    ]
