"""``shardwright models [NAME]``: the models that are known by name."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.cli import _options


def models(
    name: Annotated[str | None, typer.Argument(help="One entry with its source.")] = None,
    as_json: _options.Json = False,
) -> None:
    """List the models that are known by name, or show one with its source."""
    from shardwright.cli import _output, model
    from shardwright.specs.sources import list_presets, resolve_model

    if name is not None:
        model.show(resolve_model(name), seq_len=None, as_json=as_json)
        return
    specs = [resolve_model(preset) for preset in list_presets()]
    if as_json:
        _output.print_json({"models": [_row(spec) for spec in specs]})
        return
    table = _output.table("name", "family", "parameters", "layers", "hidden", "positions")
    for spec in specs:
        table.add_row(
            *(
                f"{value:,}" if isinstance(value, int) else f"{value}"
                for value in _row(spec).values()
            )
        )
    _output.console().print(table)
