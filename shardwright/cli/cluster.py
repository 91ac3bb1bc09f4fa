"""``shardwright cluster init|show``: describe a cluster from what its nodes say, or show one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.hardware_profiles.topology import TopologyReading
    from shardwright.hardware_profiles.topology.cluster import DescribedCluster
    from shardwright.specs import AcceleratorSpec, LinkTier, NodeGroup

GUESSED = ("derived", "recalled")
"""Kinds of knowledge that `cluster show` lists as guesses."""


def init(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here; default: print it.")
    ] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE", help="Captured output of a tool; may be given many times."
        ),
    ] = None,
    nodes: _options.Nodes = None,
    accelerator: Annotated[
        str | None, typer.Option(metavar="A", help="The accelerator, where no text names it.")
    ] = None,
    inter: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Network of a node per direction: 400GB/s."),
    ] = None,
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Describe this machine, or one whose tools' outputs you have, as a cluster file."""
    from shardwright.cli import _output
    from shardwright.hardware_profiles.topology.cluster_file import cluster_toml
    from shardwright.specs.errors import InputError
    from shardwright.specs.plan import write_text

    if output is not None:
        check_new(output, force=force)
    readings = read_files(sources) if sources else []
    try:
        described = describe(readings, nodes=nodes, accelerator=accelerator, inter=inter)
    except InputError as error:
        if as_json and readings:  # what each text said is an answer, too
            _output.print_json({"cluster": None, "problem": str(error), **readings_dict(readings)})
        raise
    text = cluster_toml(described)
    if output is not None:
        write_text(output, text)
    if as_json:
        _output.print_json(as_dict(described, readings, output))
    elif output is None:
        _output.print_lines(text.rstrip("\n"))
    else:
        _output.print_lines(
            f"cluster   {described.cluster.in_words()}",
            f"written   {output}",
            *(f"a guess   {guess}" for guess in described.guesses),
            *(f"seen      {note}" for note in described.notes),
            "",
            f"next: shardwright cluster show {output}",
        )


def check_new(
    path: Path, *, force: bool, why: str = "a cluster file holds what you changed by hand"
) -> None:
    """Make sure that nothing is overwritten without ``--force``.

    Raises:
        InputError: the path holds something, or is in no folder that can be written.
    """
    from shardwright.specs.errors import InputError
    from shardwright.specs.plan import check_folder

    check_folder(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder", fix="name a file in it with -o")
    if path.exists() and not force:
        raise InputError(
            f"{path} exists and is left as it is",
            why=why,
            fix="choose another path for -o, or add --force to overwrite it",
        )


def read_files(paths: Sequence[Path]) -> list[TopologyReading]:
    """What each file says; raises `InputError` where one cannot be read or says nothing."""
    from shardwright.hardware_profiles.topology import read_topology
    from shardwright.specs.plan import read_text

    return [read_topology(read_text(p, what="captured"), source=str(p)) for p in paths]


def describe(
    readings: Sequence[TopologyReading],
    *,
    nodes: int | None,
    accelerator: str | None,
    inter: str | None,
) -> DescribedCluster:
    """The cluster of the readings, else of this machine; raises `InputError`."""
    from shardwright.hardware_profiles.discover import describe_this_node
    from shardwright.hardware_profiles.topology.cluster import Stated, cluster_from_readings
    from shardwright.specs.errors import InputError
    from shardwright.specs.units import parse

    rate = None if inter is None else parse(inter, "bytes_per_s")
    if rate is not None and rate <= 0:
        raise InputError(f"--inter {inter} must be positive", fix="write such as --inter 400GB/s")
    stated = Stated(num_nodes=nodes, accelerator=accelerator, inter_bytes_per_s=rate)
    return cluster_from_readings(readings, stated) if readings else describe_this_node(stated)


def as_dict(
    described: DescribedCluster, readings: Sequence[TopologyReading], path: Path | None
) -> dict[str, Any]:
    """The object that ``init --json`` prints: the cluster, and what each text said."""
    return {
        "file": None if path is None else str(path),
        "cluster": described.cluster.model_dump(mode="json"),
        "in_words": described.cluster.in_words(),
        "origins": {key: words for key, words in described.origins.items() if words},
        "guesses": list(described.guesses),
        "notes": list(described.notes),
        **readings_dict(readings),
    }


def readings_dict(readings: Sequence[TopologyReading]) -> dict[str, Any]:
    """What each text said, in the units of the tools."""
    return {"readings": [{"kind": r.kind, "kinds": list(r.kinds), **r.as_json()} for r in readings]}


def show(
    cluster: Annotated[str, typer.Argument(metavar="C", help="As for --cluster of `plan`.")],
    gpus: _options.Gpus = None,
    nodes: _options.Nodes = None,
    as_json: _options.Json = False,
) -> None:
    """Show tiers, usable memory, shared resources, what is a guess, and every parameter."""
    from shardwright.cli import _output
    from shardwright.hardware_profiles.resolve import resolve_cluster

    profile = resolve_cluster(cluster, gpus=gpus, nodes=nodes)
    if as_json:
        _output.print_json(summary(profile))
        return
    _output.print_lines(*overview(profile))
    for group in profile.devices.groups:
        _output.print_lines("", f"group {group.name}", *group_lines(group))
        _print_tiers(group)
    table = _output.table("parameter", "value", "unit", "kind", "source")
    for parameter in profile.parameters:
        table.add_row(
            parameter.name, f"{parameter.value:.4g}", parameter.unit, parameter.kind,
            parameter.fitted_from,
        )  # fmt: skip
    _output.print_tables(table)


def summary(profile: HardwareProfile) -> dict[str, Any]:
    """The object that ``show --json`` prints."""
    return {
        "in_words": profile.devices.in_words(),
        "evidence": evidence(profile),
        "provenance": profile.provenance.model_dump(mode="json"),
        "cluster": profile.devices.model_dump(mode="json"),
        "guesses": list(guesses(profile)),
        "curves": len(profile.curves),
        "parameters": [p.model_dump(mode="json") for p in profile.parameters],
    }


def evidence(profile: HardwareProfile) -> str:
    """How well the cluster is known: measured here, by others, or from data sheets only."""
    from shardwright.hardware_profiles.resolve import evidence_in_words

    if profile.curves:
        return f"measured, {len(profile.curves)} curves"
    if profile.software is not None:
        return f"calibrated on runs of {profile.software.framework}"
    return evidence_in_words(profile) or "measured by others on such accelerators"


def guesses(profile: HardwareProfile) -> Iterator[str]:
    """What nobody measured or printed in a data sheet, in one line each."""
    for group in profile.devices.groups:
        parts: dict[str, AcceleratorSpec | LinkTier | None] = {
            "accelerator": group.accelerator,
            "intra_node": group.intra_node,
            "inter_node": group.inter_node,
        }
        for name, part in parts.items():
            if part is not None and part.provenance in GUESSED:
                yield f"{group.name} {name} ({part.provenance}): {part.source}"
    for parameter in profile.parameters:
        if parameter.kind in GUESSED:
            yield f"{parameter.name} = {parameter.value:.4g} ({parameter.kind})"


def overview(profile: HardwareProfile) -> Iterator[str]:
    """The lines above the tables."""
    from shardwright.specs.units import format_rate

    found = list(guesses(profile))
    origin = profile.provenance
    yield f"cluster   {profile.devices.in_words()}"
    yield f"known     {evidence(profile)}"
    yield f"source    {origin.host}, {origin.created_at}"
    between = profile.devices.between_groups
    if between is not None:
        total = profile.devices.between_groups_total_bytes_per_s
        shared = "" if total is None else f"; {format_rate(total)} for all of a group together"
        yield f"between   {_tier_in_words(between)}{shared}"
    yield f"guesses   {len(found)} of the numbers below are derived or recalled"


def group_lines(group: NodeGroup) -> Iterator[str]:
    """A group's devices, what they share and what they cost."""
    from shardwright.specs.units import format_bytes, format_flops, format_rate

    device = group.accelerator
    peaks = ", ".join(f"{d} {format_flops(rate)}" for d, rate in device.peak_flops_per_s.items())
    yield f"nodes     {group.num_nodes} x {group.devices_per_node} {device.name} ({device.vendor})"
    yield (
        f"memory    {format_bytes(device.usable_memory_bytes)} usable of"
        f" {format_bytes(device.memory_bytes)}, {format_rate(device.memory_bandwidth_bytes_per_s)}"
    )
    yield f"peaks     {peaks} (dense; {device.provenance})"
    yield f"domain    {group.scale_up_domain_gpus} devices joined by {group.intra_node.name}"
    for shared in group.shared_resources:
        yield (
            f"shared    {shared.kind}: {shared.ranks} ranks of a node share it,"
            f" {shared.capacity:g} at full speed"
        )
    if group.host_memory_bytes is not None:
        yield f"host      {format_bytes(group.host_memory_bytes)} of memory"
    yield f"price     {_price_in_words(group)}"


def _price_in_words(group: NodeGroup) -> str:
    """What the file or the catalogue's node says, else the range of dated offers for the device."""
    from shardwright.hardware_profiles import catalogue

    if group.usd_per_gpu_hour is not None:
        return f"{group.usd_per_gpu_hour:g} USD per GPU hour"
    offers = [row for row in catalogue.prices() if row.accelerator == group.accelerator.name]
    if not offers:
        return "not known"
    ends = [pick(offers, key=lambda row: row.usd_per_gpu_hour) for pick in (min, max)]
    named = dict.fromkeys(
        f"{row.usd_per_gpu_hour:g} ({row.provider}, {row.as_of})" for row in ends
    )  # fmt: skip
    return f"not stated; dated offers: {' to '.join(named)} USD per GPU hour"


def _tier_in_words(tier: LinkTier) -> str:
    from shardwright.specs.units import format_rate, format_seconds

    return (
        f"{tier.name}, {format_rate(tier.bandwidth_bytes_per_s)} per device,"
        f" {format_seconds(tier.latency_s)} ({tier.provenance})"
    )


def _print_tiers(group: NodeGroup) -> None:
    from shardwright.cli import _output
    from shardwright.specs.units import format_rate, format_seconds

    table = _output.table("tier", "link", "per device", "one peer", "latency", "kind", "source")
    for name, tier in (("within a domain", group.intra_node), ("between", group.inter_node)):
        if tier is None:
            continue
        pair = tier.pair_bandwidth_bytes_per_s
        table.add_row(
            name,
            tier.name,
            format_rate(tier.bandwidth_bytes_per_s),
            "as all" if pair is None else format_rate(pair),
            format_seconds(tier.latency_s),
            tier.provenance,
            tier.source,
        )
    _output.print_tables(table)


app = typer.Typer(
    help="Describe a cluster in a file (init), or show what is known of one (show).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("init")(init)
app.command("show")(show)
