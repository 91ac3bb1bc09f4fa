"""``shardwright clusters [NAME]``: the clusters and accelerators of the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.cli import _options


def clusters(
    name: Annotated[str | None, typer.Argument(help="One entry with its sources.")] = None,
    as_json: _options.Json = False,
) -> None:
    """List the clusters of the catalogue, or show one with every number's source."""
