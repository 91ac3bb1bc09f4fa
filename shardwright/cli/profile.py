"""``shardwright profile``: measure this machine, or the cluster that the command is launched on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli import _options


def profile(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the profile to this file.")
    ] = Path("profile.json"),
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Processes on this machine; default its devices.")
    ] = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Keep the file where it still matches this machine.")
    ] = False,
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Measure compute, memory and collectives on this machine."""
