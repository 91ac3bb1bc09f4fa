"""``shardwright explain PLAN``: where time and memory go, and why not another layout."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.cli import _options


def explain(
    plan: _options.PlanFile,
    why_not: Annotated[
        str | None, typer.Option(metavar="L", help="Another layout: tp=4,pp=2; the rest is free.")
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """Show where a plan's time and memory go, and why another layout was not chosen."""
