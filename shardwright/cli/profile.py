"""``shardwright profile``: measure this machine."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.hardware_profiles.measure import Party
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.runtime.rendezvous import Rendezvous

JOIN_TIMEOUT_S = 300.0
"""How long the processes of a launch may take to meet."""


def profile(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the profile to this file.")
    ] = Path("profile.json"),
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Processes; default one per accelerator, or 2 on a CPU."),
    ] = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Keep the file where it still fits this machine.")
    ] = False,
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Measure compute, memory and collectives on this machine, in about two minutes.

    Inside a launch of torchrun, srun or mpirun: on all nodes that it spans, and between them.
    """
    from shardwright.cli import _inputs, _output

    _inputs.require_torch("profile")
    from shardwright.hardware_profiles import measure
    from shardwright.hardware_profiles.discover import local_cluster
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.runtime.rendezvous import find_rendezvous

    rendezvous = find_rendezvous(os.environ)
    if rendezvous is not None and rendezvous.world_size > 1:
        if rendezvous.rank == 0:
            _output.check_output(output, HardwareProfile, force=force)
        party = party_of(rendezvous, ranks, reuse=reuse)
        if not party.leads:
            measure.profile_party(party)
            return
        with _output.progress("measuring") as progress:
            made = measure.profile_party(party, progress=progress)
        assert made is not None
        _finish(made, output, reused=False, as_json=as_json)
        return
    _output.check_output(output, HardwareProfile, force=force)
    num_ranks = ranks or local_cluster().num_devices
    found = load_if_fitting(output, num_ranks) if reuse and not force else None
    reused = found is not None
    if found is None:
        with _output.progress("measuring") as progress:
            found = measure.profile(num_ranks=num_ranks, progress=progress)
    _finish(found, output, reused=reused, as_json=as_json)


def _finish(profile: HardwareProfile, output: Path, *, reused: bool, as_json: bool) -> None:
    from shardwright.cli import _output
    from shardwright.specs.plan import write_text

    if not reused:
        write_text(output, profile.to_json())
    if as_json:
        _output.print_json(summary(profile, output, reused=reused))
    else:
        _print(profile, output, reused=reused)


def party_of(rendezvous: Rendezvous, ranks: int | None, *, reuse: bool = False) -> Party:
    """The launch's ranks, of which this process starts one.

    Raises:
        InputError: another number of ``ranks`` was asked for, or a profile to be reused, or nodes
            have unequal numbers of ranks.
        RunError: the launch's other processes did not come.
    """
    from shardwright.hardware_profiles.measure import Party
    from shardwright.hardware_profiles.rank_environment import CoreClaim
    from shardwright.runtime.seats import Seats
    from shardwright.specs import InputError

    if reuse:
        raise InputError(
            "--reuse cannot tell whether a profile fits all nodes of a launch",
            fix="leave it out, or use the file that is there",
        )
    if ranks not in (None, rendezvous.world_size):
        raise InputError(
            f"--ranks {ranks}, but this {rendezvous.launcher} launch has {rendezvous.world_size}",
            fix="leave out --ranks: every process of a launch is a rank",
        )
    seats = Seats.joined(rendezvous, JOIN_TIMEOUT_S)
    claims = seats.gather_all("cores", CoreClaim.own().to_text())
    port = seats.share("port", str(seats.free_port()) if seats.leads else None)
    return Party.joined(
        claims, rank=rendezvous.rank, ranks_per_node=rendezvous.ranks_on_node,
        meeting=f"tcp://{rendezvous.address}:{port}",
    )  # fmt: skip


def load_if_fitting(path: Path, num_ranks: int) -> HardwareProfile | None:
    """The profile in that file where it was made on such a machine with this torch, else None."""
    from shardwright.hardware_profiles.discover import local_cluster
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.specs.plan import read_text

    if not path.exists():
        return None
    found = HardwareProfile.from_json(read_text(path, what="profile"), source=str(path))
    fits = (
        found.num_ranks == num_ranks
        and found.devices.name == local_cluster(num_ranks).name
        and found.provenance.software.get("torch") == importlib.metadata.version("torch")
    )
    return found if fits else None


def summary(profile: HardwareProfile, path: Path, *, reused: bool) -> dict[str, Any]:
    """The main numbers of a profile as the JSON object that ``--json`` prints."""
    device = profile.devices.accelerator
    group = profile.devices.groups[0]
    tier, network = group.intra_node, group.inter_node
    return {
        "profile": str(path),
        "reused": reused,
        "cluster": profile.devices.in_words(),
        "num_ranks": profile.num_ranks,
        "curves": len(profile.curves),
        "peak_flops_per_s": device.peak_flops_per_s,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "usable_memory_bytes": device.usable_memory_bytes,
        "link_bandwidth_bytes_per_s": tier.bandwidth_bytes_per_s,
        "link_latency_s": tier.latency_s,
        "network_bandwidth_bytes_per_s": network and network.bandwidth_bytes_per_s,
        "network_latency_s": network and network.latency_s,
        "parameters": {parameter.name: parameter.value for parameter in profile.parameters},
    }


def _print(profile: HardwareProfile, path: Path, *, reused: bool) -> None:
    from shardwright.cli import _output
    from shardwright.specs.units import format_flops, format_rate, format_seconds

    device = profile.devices.accelerator
    group = profile.devices.groups[0]
    tiers = [("a node", group.intra_node), ("two nodes", group.inter_node)]
    peaks = ", ".join(f"{d} {format_flops(p)}" for d, p in device.peak_flops_per_s.items())
    made = f"{profile.provenance.created_at} on {profile.provenance.host}"
    _output.print_lines(
        f"profile   {path}, {'reused, made' if reused else 'made'} {made}",
        f"cluster   {profile.devices.in_words()}",
        f"compute   {peaks} a rank, with all ranks busy",
        f"memory    {format_rate(device.memory_bandwidth_bytes_per_s)} a rank",
        *(
            f"links     {format_rate(tier.bandwidth_bytes_per_s)} and"
            f" {format_seconds(tier.latency_s)} between two ranks of {place}"
            for place, tier in tiers
            if tier is not None
        ),
        f"curves    {len(profile.curves)}, {len(profile.parameters)} parameters",
        "",
        f"next: shardwright plan MODEL --cluster {path}",
    )
