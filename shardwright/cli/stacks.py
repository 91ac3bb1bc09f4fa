"""``shardwright stacks [NAME]``: the training software that the catalogue knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.hardware_profiles.stacks import StackFacts


def stacks(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One entry with its numbers.")
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """List the software stacks that `--stack` knows, or show one with its numbers and source."""
    from shardwright.cli import _inputs, _output
    from shardwright.hardware_profiles.stacks import list_stacks, stack_facts

    if name is not None:
        facts = stack_facts(_inputs.one_of(name, list_stacks(), "NAME"))
        if as_json:
            _output.print_json(as_json_dict(facts))
        else:
            _show(facts)
        return
    rows = [row(stack_facts(known)) for known in list_stacks()]
    if as_json:
        _output.print_json({"stacks": rows})
        return
    table = _output.table("stack", "description", "fitted from", "source")
    for values in rows:
        table.add_row(*(_output.plain_text(value) for value in values.values()))
    _output.print_tables(table)


def row(facts: StackFacts) -> dict[str, Any]:
    """What a list shows of a stack."""
    from shardwright.hardware_profiles.stacks import fitted

    runs = fitted().num_runs.get(facts.name)
    return {
        "name": facts.name,
        "description": facts.description,
        "fitted_from": f"{runs} runs" if runs else None,
        "source": facts.source,
    }


def as_json_dict(facts: StackFacts) -> dict[str, Any]:
    """An entry with the numbers that were fitted for it, or those of the population."""
    return facts.model_dump(mode="json") | {
        "fitted_from": row(facts)["fitted_from"],
        "parameters": numbers(facts.name),
    }


def numbers(name: str) -> dict[str, float]:
    """Its fitted numbers by name; for the others the centre of all stacks."""
    from shardwright.hardware_profiles.stacks import fitted

    known = fitted()
    centre = {key: value for key, (value, _) in known.population.items()}
    return centre | known.stacks.get(name, {})


def _show(facts: StackFacts) -> None:
    from shardwright.cli import _output
    from shardwright.hardware_profiles.stacks import fitted

    known, own = fitted(), fitted().stacks.get(facts.name, {})
    _output.print_lines(f"{facts.name}: {facts.description}", f"source    {facts.source}")
    software = facts.software.model_dump(mode="json", exclude={"framework"})
    shown = ", ".join(f"{key} {str(value).lower()}" for key, value in software.items())
    _output.print_lines(f"software  {shown}")
    table = _output.table("number", "value", "where from")
    for key, value in numbers(facts.name).items():
        source = known.fitted_from if key in own else "the centre of all stacks"
        table.add_row(key, f"{value:.4g}", source)
    _output.print_tables(table)
