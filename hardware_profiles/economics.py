"""What it takes to run nodes for long: prices, power and how often they fail, as dated facts."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.catalogue import Fact, PriceRow
from shardwright.specs import NodeGroup, Spec

_RELIABILITY = Path(__file__).parent / "catalogue_data" / "reliability.json"


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one device costs."""

    usd_per_gpu_hour: float
    low_usd_per_gpu_hour: float
    """Cheapest known offer; the price itself where there is only one."""
    high_usd_per_gpu_hour: float
    source: str
    """Who offers it and as of when."""


@dataclass(frozen=True, slots=True)
class Power:
    """What one device and its share of the host draw at most, in watts."""

    device_watts: float
    """The vendor's limit of one device (TDP)."""
    host_watts: float | None
    """A device's share of everything else in its node at the node's maximum; None where nobody
    states it."""
    source: str


@dataclass(frozen=True, slots=True)
class ReliabilityFacts:
    """How often one device stops a job, and what that and saving cost, where nobody says."""

    device_mtbf_s: float
    """Of a device with its share of host and network."""
    device_mtbf_source: str
    checkpoint_s: float
    """How long training waits for one checkpoint."""
    checkpoint_source: str
    restart_s: float
    """From a failure until training goes on."""
    restart_source: str


class _ReliabilityFile(Spec):
    facts: dict[str, Fact]


def price_of(group: NodeGroup) -> Price | None:
    """The price of these nodes: their own, else the median of dated offers; None where none is.

    Offers count that are open to anyone at any time (on demand) for the very same accelerator.
    """
    if group.usd_per_gpu_hour is not None:
        usd = group.usd_per_gpu_hour
        return Price(usd, usd, usd, _own_source(group))
    offers = [
        row
        for row in catalogue.prices()
        if row.accelerator == group.accelerator.name and row.price_kind.startswith("on-demand")
    ]
    return _median(offers) if offers else None


def _own_source(group: NodeGroup) -> str:
    known = catalogue.node_entry(group.name).price if group.name in catalogue.list_nodes() else None
    if known is not None and known.value == group.usd_per_gpu_hour:
        return known.source
    return f"as stated for {group.name}"


def _median(offers: Sequence[PriceRow]) -> Price:
    ordered = sorted(offers, key=lambda row: row.usd_per_gpu_hour)
    values = [row.usd_per_gpu_hour for row in ordered]
    ends = [f"{row.usd_per_gpu_hour:g} ({row.provider}, {row.as_of})" for row in ordered]
    source = f"median of {len(offers)} dated offers, {ends[0]} to {ends[-1]}"
    return Price(
        statistics.median(values),
        values[0],
        values[-1],
        source if len(offers) > 1 else f"the one dated offer known: {ends[0]}",
    )


def power_of(group: NodeGroup) -> Power | None:
    """What these nodes draw at most, by device; None where the vendor states no limit."""
    slug = group.accelerator.name
    if slug not in catalogue.list_accelerators():
        return None
    limit = catalogue.accelerator_entry(slug).tdp
    if limit is None:
        return None
    device_watts = limit.in_base_units("watts")
    source = f"{device_watts:g} W per device ({limit.source})"
    node = catalogue.node_entry(group.name) if group.name in catalogue.list_nodes() else None
    if node is None or node.max_power is None:
        return Power(device_watts, None, f"{source}; the host's share is not stated")
    # A node's own maximum below the sum of its devices' limits leaves nothing to share out.
    host_watts = max(
        0.0, node.max_power.in_base_units("watts") / node.devices_per_node - device_watts
    )
    words = f"host's share {host_watts:g} W of {node.name} ({node.max_power.source})"
    return Power(device_watts, host_watts, f"{source}; {words}")


@functools.cache
def reliability_facts() -> ReliabilityFacts:
    """Published figures of large jobs."""
    text = _RELIABILITY.read_text(encoding="utf-8")
    facts = _ReliabilityFile.from_json(text, source=_RELIABILITY.name).facts
    mtbf, checkpoint, restart = facts["device_mtbf"], facts["checkpoint"], facts["restart"]
    return ReliabilityFacts(
        device_mtbf_s=mtbf.in_base_units("seconds"),
        device_mtbf_source=mtbf.source,
        checkpoint_s=checkpoint.in_base_units("seconds"),
        checkpoint_source=checkpoint.source,
        restart_s=restart.in_base_units("seconds"),
        restart_source=restart.source,
    )
