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
        str | None,
        typer.Option(metavar="D", help="A text file or folder, `python-stdlib`, or `mock`."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Steps of the whole run, earlier ones included."),
    ] = None,
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
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train nothing: build ranks of a plan of any size here, without a device or data,"
            " run one step of each, and hold it against the plan.",
        ),
    ] = False,
    rank: Annotated[
        str | None,
        typer.Option(metavar="R", help="Ranks of --dry-run, such as 0,last,3-5; default 0,last."),
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """Train a plan: audit the built model, train, save, and compare with the prediction.

    Inside a launch of torchrun, srun or mpirun this process is one of its ranks; otherwise one
    process per rank of the plan is started on this machine.
    """
    from shardwright.cli import _inputs, _output
    from shardwright.specs import InputError

    _inputs.require_torch("run")
    if dry_run:
        from shardwright.cli._dry_run import print_dry_run

        given = {
            "--data": data, "--steps": steps, "--save": save, "--save-every": save_every,
            "--resume": resume or None, "--init-from": init_from, "--seed": seed,
        }  # fmt: skip
        print_dry_run(plan, rank, [name for name, value in given.items() if value is not None],
                      as_json=as_json)  # fmt: skip
        return
    if rank is not None:
        raise InputError("--rank is for --dry-run alone", fix="add --dry-run, or leave it out")
    if data is None or steps is None:
        missing = "--data" if data is None else "--steps"
        raise InputError(f"run needs {missing}", fix="give --data D and --steps N, or --dry-run")
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
