"""The application: every command under its name, in the order in which people meet them.

Command modules import nothing of ours at their top, so that ``--help`` is quick and no command
pays for what another needs.
"""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from shardwright import __version__
from shardwright.cli import (
    calibrate,
    cluster,
    clusters,
    doctor,
    estimate,
    explain,
    export,
    import_,
    model,
    models,
    plan,
    profile,
    run,
    stacks,
    trial,
    validate,
    what_if,
)

app = typer.Typer(
    name="shardwright",
    help="Plan how to train a large Transformer on a given cluster, and run that plan.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardwright {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")
    ] = False,
) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")


app.command("models")(models.models)
app.command("model")(model.model)
app.command("clusters")(clusters.clusters)
app.add_typer(cluster.app, name="cluster")
app.command("stacks")(stacks.stacks)
app.command("profile")(profile.profile)
app.command("plan")(plan.plan)
app.command("estimate")(estimate.estimate)
app.command("explain")(explain.explain)
app.command("import")(import_.import_)
app.command("export")(export.export)
app.command("what-if")(what_if.what_if)
app.command("trial")(trial.trial)
app.command("run")(run.run)
app.command("calibrate")(calibrate.calibrate)
app.command("validate")(validate.validate)
app.command("doctor")(doctor.doctor)
