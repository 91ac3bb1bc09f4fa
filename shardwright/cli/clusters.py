"""``shardwright clusters [NAME]``: the node types and accelerators of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.hardware_profiles.catalogue import AcceleratorEntry, Fact, NodeEntry
    from shardwright.specs import Spec


def clusters(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One entry with its sources.")
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """List the clusters of the catalogue, or show one with every number's source."""
    from shardwright.cli import _output
    from shardwright.hardware_profiles import catalogue

    if name is not None:
        entries = named_entries(name)
        if as_json:
            _output.print_json({kind: entry.model_dump() for kind, entry in entries.items()})
        else:
            _print_entries(entries)
        return
    nodes = [node_row(slug) for slug in catalogue.list_nodes()]
    accelerators = [accelerator_row(slug) for slug in catalogue.list_accelerators()]
    if as_json:
        _output.print_json({"nodes": nodes, "accelerators": accelerators})
    else:
        _print_rows("node", nodes)
        _print_rows("accelerator", accelerators)


def named_entries(name: str) -> dict[str, NodeEntry | AcceleratorEntry]:
    """The node type of that name with its accelerator, or the accelerator; raises `InputError`."""
    from shardwright.hardware_profiles import catalogue

    if name.lower() in catalogue.list_accelerators():
        return {"accelerator": catalogue.accelerator_entry(name.lower())}
    slugs = [*catalogue.list_nodes(), *catalogue.list_accelerators()]
    slug = catalogue.resolve_slug(name, slugs, "cluster or accelerator")
    if slug in catalogue.list_accelerators():
        return {"accelerator": catalogue.accelerator_entry(slug)}
    node = catalogue.node_entry(slug)
    return {"node": node, "accelerator": catalogue.accelerator_entry(node.accelerator)}


def node_row(slug: str) -> dict[str, Any]:
    """The facts of a node type that a list shows, in base units."""
    from shardwright.hardware_profiles import catalogue

    group = catalogue.node(slug)
    inter = group.inter_node
    return {
        "name": slug,
        "accelerator": group.accelerator.name,
        "devices_per_node": group.devices_per_node,
        "scale_up_domain_gpus": group.scale_up_domain_gpus,
        "intra_node_bytes_per_s": group.intra_node.bandwidth_bytes_per_s,
        "inter_node_bytes_per_s": None if inter is None else inter.bandwidth_bytes_per_s,
        "software": "measured" if catalogue.is_measured(group.accelerator.name) else "datasheet",
    }


def accelerator_row(slug: str) -> dict[str, Any]:
    """The facts of an accelerator that a list shows, in base units."""
    from shardwright.hardware_profiles import catalogue

    device = catalogue.accelerator(slug)
    return {
        "name": slug,
        "vendor": device.vendor,
        "usable_memory_bytes": device.usable_memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "bf16_flops_per_s": device.peak_flops_per_s.get("bf16"),
        "software": "measured" if catalogue.is_measured(slug) else "datasheet",
    }


def facts(entry: Spec, prefix: str = "") -> Iterator[tuple[str, Fact]]:
    """Every number of an entry with the names of the fields that lead to it."""
    from shardwright.hardware_profiles.catalogue import Fact
    from shardwright.specs import Spec

    for name in type(entry).model_fields:
        value = getattr(entry, name)
        named = value if isinstance(value, dict) else {"": value}
        for key, item in named.items():
            path = ".".join(part for part in (prefix, name, key) if part)
            if isinstance(item, Fact):
                yield path, item
            elif isinstance(item, Spec):
                yield from facts(item, path)


def _print_entries(entries: dict[str, NodeEntry | AcceleratorEntry]) -> None:
    from shardwright.cli import _output

    for kind, entry in entries.items():
        notes = [f"note: {entry.notes}"] if entry.notes else []
        _output.print_lines(f"{kind} {entry.slug}: {entry.name}", *notes)
        table = _output.table("number", "value", "kind", "source")
        for path, fact in facts(entry):
            table.add_row(path, f"{fact.value:g} {fact.unit}", fact.kind, fact.source)
        _output.print_tables(table)


def _print_rows(kind: str, rows: list[dict[str, Any]]) -> None:
    from shardwright.cli import _output

    headings = [name.replace("_flops_per_s", " peak") for name in rows[0]]
    headings = [name.removesuffix("_bytes_per_s").removesuffix("_bytes") for name in headings]
    table = _output.table(kind, *(heading.replace("_", " ") for heading in headings[1:]))
    for row in rows:
        table.add_row(*(cell(name, value) for name, value in row.items()))
    _output.print_tables(table)


def cell(name: str, value: float | str | None) -> str:
    """A value of a row for people, by the unit in its name."""
    from shardwright.specs import units

    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name.endswith("_flops_per_s"):
        return units.format_flops(value)
    if name.endswith("_bytes_per_s"):
        return units.format_rate(value)
    return units.format_bytes(value) if name.endswith("_bytes") else f"{value:,}"
