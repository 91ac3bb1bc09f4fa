"""``shardwright profile``: measure this machine."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.hardware_profiles.profile import HardwareProfile


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
    """Measure compute, memory and collectives on this machine, in under two minutes."""
    from shardwright.cli import _inputs, _output

    _inputs.require_torch("profile")
    from shardwright.hardware_profiles import measure
    from shardwright.hardware_profiles.discover import local_cluster
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.specs.plan import write_text

    _output.check_output(output, HardwareProfile, force=force)
    num_ranks = ranks or local_cluster().num_devices
    found = load_if_fitting(output, num_ranks) if reuse and not force else None
    reused = found is not None
    if found is None:
        with _output.progress("measuring") as progress:
            found = measure.profile(num_ranks=num_ranks, progress=progress)
        write_text(output, found.to_json())
    if as_json:
        _output.print_json(summary(found, output, reused=reused))
    else:
        _print(found, output, reused=reused)


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
    tier = profile.devices.groups[0].intra_node
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
        "parameters": {parameter.name: parameter.value for parameter in profile.parameters},
    }


def _print(profile: HardwareProfile, path: Path, *, reused: bool) -> None:
    from shardwright.cli import _output
    from shardwright.specs.units import format_flops, format_rate, format_seconds

    device = profile.devices.accelerator
    tier = profile.devices.groups[0].intra_node
    peaks = ", ".join(f"{d} {format_flops(p)}" for d, p in device.peak_flops_per_s.items())
    made = f"{profile.provenance.created_at} on {profile.provenance.host}"
    _output.print_lines(
        f"profile   {path}, {'reused, made' if reused else 'made'} {made}",
        f"cluster   {profile.devices.in_words()}",
        f"compute   {peaks} a rank, with all ranks busy",
        f"memory    {format_rate(device.memory_bandwidth_bytes_per_s)} a rank",
        f"links     {format_rate(tier.bandwidth_bytes_per_s)} and"
        f" {format_seconds(tier.latency_s)} between two ranks",
        f"curves    {len(profile.curves)}, {len(profile.parameters)} parameters",
        "",
        f"next: shardwright plan MODEL --cluster {path}",
    )
