"""``shardwright run PLAN --data D --steps N``: train a plan on this machine or cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli import _options


def run(
    plan: _options.PlanFile,
    data: Annotated[
        str,
        typer.Option(metavar="D", help="A text file or folder, `python-stdlib`, or `mock`."),
    ],
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Optimizer steps in all.")],
    init_from: Annotated[
        Path | None,
        typer.Option(metavar="HF_DIR", help="Start from the weights of a Hugging Face folder."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep checkpoints and records here.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint of --save.")
    ] = False,
    as_json: _options.Json = False,
) -> None:
    """Train a plan: audit the built model, train, save, and compare with the prediction."""
