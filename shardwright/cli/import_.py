"""``shardwright import FILE --from TARGET``: a job of other software, in our nouns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.planner.importers.reading import Reading
    from shardwright.specs import Layout

SCHEMA = "shardwright.import/1"


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A launch script, a list of arguments, or a configuration."
        ),
    ],
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="TARGET", help="megatron-lm, torchtitan, deepspeed or accelerate."
        ),
    ],
    gpus: _options.Gpus = None,
    set_: _options.Variables = None,
    add: _options.More = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the layout to this file.")
    ] = None,
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Read a job of other software: its model, training, cluster and layout. Nothing is run."""
    from dataclasses import replace

    from shardwright.cli import _importing, _output
    from shardwright.planner.importers.registry import read_file, target_named
    from shardwright.specs import InputError, Layout

    if output is not None:
        _output.check_output(output, Layout, force=force)
    given = replace(_importing.given(set_, add), world=gpus)
    reading = read_file(file, target_named(from_), given)
    if output is not None:
        if reading.layout is None:
            raise InputError(
                f"{file} states no whole layout: {_why_none(reading)}",
                fix="leave out -o, or say what is missing with --gpus, --set or --add",
            )
        _save(reading.layout, output)
    if as_json:
        _output.print_json(reading_json(reading))
    else:
        _output.print_lines(*reading_lines(reading, output))


def _save(layout: Layout, path: Path) -> None:
    from shardwright.specs.plan import write_text

    write_text(path, layout.to_json())


def _why_none(reading: Reading) -> str:
    return "; ".join((*reading.conflicts, *reading.unread)[:2]) or "its model is not known"


def reading_json(reading: Reading) -> dict[str, Any]:
    """The one object of ``--json``: the keys are a contract."""
    model, training, layout = reading.model, reading.training, reading.layout
    return {
        "schema": SCHEMA,
        "source": reading.source,
        "target": reading.target,
        "stated": dict(reading.stated),
        "model": None if model is None else model.model_dump(mode="json"),
        "num_parameters": None if model is None else model.num_parameters,
        "training": None if training is None else training.model_dump(mode="json"),
        "cluster": {
            "gpus": reading.gpus, "nodes": reading.nodes, "gpus_per_node": reading.gpus_per_node,
            "accelerator": reading.accelerator,
        },
        "layout": None if layout is None else layout.model_dump(mode="json"),
        "choices": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in reading.choices.items()
        },
        "software": reading.software,
        "environment": dict(reading.environment),
        "arguments": [list(option) for option in reading.arguments],
        "assumed": dict(reading.assumed),
        "unread": list(reading.unread),
        "conflicts": list(reading.conflicts),
    }  # fmt: skip


def reading_lines(reading: Reading, written: Path | None) -> Iterator[str]:
    """What was read, what was assumed, and what was not."""
    from shardwright.cli import _tables

    model, training = reading.model, reading.training
    yield f"source    {reading.source} ({reading.target})"
    yield (
        "model     not stated" if model is None else
        f"model     {model.name}: {model.num_parameters:,} parameters,"
        f" {model.decoder.num_layers} layers x {model.decoder.hidden_size:,}"
    )  # fmt: skip
    if training is not None:
        yield (
            f"training  {training.global_batch:,} sequences x {training.seq_len:,} tokens a step,"
            f" {training.precision}, {training.optimizer.name}"
        )
    yield f"cluster   {_cluster_in_words(reading)}"
    yield f"layout    {_layout_in_words(reading)}"
    if reading.layout is not None and reading.layout.pp > 1:
        yield f"stages    layers {_tables.stages_in_words(reading.layout)}"
    if reading.software is not None:
        yield f"software  {reading.software}"
    if reading.assumed:
        yield _tables.assumed_in_words(dict(reading.assumed))
    yield from (f"conflict  {text}" for text in reading.conflicts)
    yield from (f"not read  {text}" for text in reading.unread)
    if written is not None:
        yield f"wrote     {written}"
    if reading.target == "megatron-lm":
        yield ""
        yield f"next: shardwright plan --from-megatron {reading.source} --cluster C"


def _cluster_in_words(reading: Reading) -> str:
    if reading.gpus is None:
        parts = [f"{reading.nodes} nodes"] if reading.nodes else []
        parts += [f"{reading.gpus_per_node} devices a node"] if reading.gpus_per_node else []
        return ", ".join(["number of devices not stated", *parts])
    words = f"{reading.gpus} devices"
    if reading.nodes is not None and reading.gpus_per_node is not None:
        nodes = "1 node" if reading.nodes == 1 else f"{reading.nodes} nodes"
        words = f"{nodes} x {reading.gpus_per_node} = {words}"
    return f"{words} ({reading.accelerator})" if reading.accelerator else words


def _layout_in_words(reading: Reading) -> str:
    from shardwright.planner.changes import choices_text
    from shardwright.planner.layouts import layout_in_words

    if reading.layout is not None:
        return layout_in_words(reading.layout)
    plain = {name: value for name, value in reading.choices.items() if name != "stages"}
    return f"{choices_text(plain)}; dp not known"
