"""``shardwright run PLAN --data D --steps N``: train a plan on this machine or cluster."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli import _options


def run(
    plan: _options.PlanFile,
    data: Annotated[
        str, typer.Option(metavar="D", help="A text file or folder, `python-stdlib`, or `mock`.")
    ],
    steps: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Steps of the whole run, earlier ones included."),
    ],
    init_from: Annotated[
        Path | None,
        typer.Option(metavar="HF_DIR", help="Start from the weights of a Hugging Face folder."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep checkpoints and metrics here.")
    ] = None,
    save_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Steps between checkpoints; default at the end."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint of --save.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of weights and data order; default the plan's."),
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """Train a plan: audit the built model, train, save, and compare with the prediction.

    Inside a launch of torchrun, srun or mpirun this process is one of its ranks; otherwise one
    process per rank of the plan is started on this machine.
    """
    from shardwright.cli import _inputs, _output

    _inputs.require_torch("run")
    from shardwright.runtime import api

    logging.getLogger("shardwright").setLevel(logging.INFO)
    summary = api.run(
        plan_path=plan, data=data, steps=steps, save_dir=save, resume=resume,
        save_every=save_every, seed=seed, init_from=init_from,
    )  # fmt: skip
    if summary is None:  # a rank that is not the first of a launch
        return
    if as_json:
        _output.print_json(summary.model_dump(mode="json"))
    else:
        _output.print_lines(summary.as_text())
