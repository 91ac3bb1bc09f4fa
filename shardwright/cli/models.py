"""``shardwright models [NAME]``: the models that are known by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.specs.sources.presets import Preset


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One entry with its source.")
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """List the models that are known by name, or show one with its source."""
    from shardwright.cli import _output
    from shardwright.specs.sources.presets import list_presets, preset

    if name is not None:
        _show(named_preset(name), as_json=as_json)
        return
    rows = [row(preset(slug)) for slug in list_presets()]
    if as_json:
        _output.print_json({"models": rows})
        return
    table = _output.table(*(heading.replace("_", " ") for heading in rows[0]))
    for values in rows:
        table.add_row(*(_output.plain_text(value) for value in values.values()))
    _output.print_tables(table)


def named_preset(name: str) -> Preset:
    """The preset of that name or hub id; raises `InputError` with the nearest ones."""
    from shardwright.cli import _inputs
    from shardwright.specs.sources.presets import find_preset, list_presets, preset

    found = find_preset(name)
    return found or preset(_inputs.one_of(name, list_presets(), "NAME"))


def row(known: Preset) -> dict[str, Any]:
    """What a list shows of a preset."""
    spec = known.read().spec
    return {
        "name": known.slug,
        "family": spec.family,
        "parameters": spec.num_parameters,
        "layers": spec.decoder.num_layers,
        "hidden_size": spec.decoder.hidden_size,
        "vocab_size": spec.vocab_size,
        "max_seq_len": spec.max_seq_len,
    }


def _show(known: Preset, *, as_json: bool) -> None:
    from shardwright.cli import _output

    if as_json:
        _output.print_json(known.model_dump(mode="json") | row(known))
        return
    shown = row(known) | {
        "published_parameters": known.published_parameters,
        "hub_ids": ", ".join(known.hub_ids),
        "source": known.source,
    }
    lines = (f"{field:21} {_output.plain_text(value)}" for field, value in shown.items())
    _output.print_lines(*lines, "", f"next: shardwright model {known.slug}")
