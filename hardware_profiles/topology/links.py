"""From a matrix of link names to tiers with bandwidths: what joins the devices of a node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.catalogue import AcceleratorEntry, Fact
from shardwright.hardware_profiles.topology.readings import DeviceMatrix
from shardwright.specs import LinkTier

_BONDED = re.compile(r"(?:NV|MT)(\d+)")
_LINKED = re.compile(r"(?:NV|MT)\d+|XGMI|HCCS\w*|SIO|UB\w*|MX\w*|XL\d+|MDF")
SWITCHED_PCIE = {"PIX", "PXB", "SPB", "MPB"}
"""Through PCIe switches alone, without the host's bridge."""

_LINK_GB_PER_S = {"volta": 25.0, "ampere": 25.0, "hopper": 25.0, "blackwell": 50.0}
"""One NVLink of a generation, per direction: 25 GB/s since NVLink 2, 50 GB/s in NVLink 5 (vendor's
data sheets: 300 GB/s over 6 links of V100, 600 over 12 of A100, 900 over 18 of H100, 1800 over 18
of B200, both directions together)."""
_BRIDGE_LINKS = 4
"""Links of a bridge between consumer and workstation cards: 112.5 GB/s over 4 (RTX 3090)."""
_BRIDGED_GB_PER_S = 56.25
"""Such a bridge as the catalogue has it, per direction; data-centre bridges have 300 or more."""


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """How the devices of one node are joined."""

    intra: LinkTier
    domain_devices: int
    """Devices that ``intra`` joins: all of the node, or those of each island."""
    between_islands: LinkTier | None = None
    words: str = ""
    """Where the figures come from."""
    doubts: tuple[str, ...] = ()


def node_links(
    matrix: DeviceMatrix | None,
    entry: AcceleratorEntry,
    num_devices: int,
    link_rates_bytes_per_s: Sequence[float] = (),
    host_bytes_per_s: float | None = None,
) -> NodeLinks:
    """The tiers of a node; without a matrix, what is usual for the accelerator, as a guess.

    ``host_bytes_per_s`` is that of a device's slot, where a tool reports it.
    """
    if num_devices == 1 or matrix is None or not matrix.classes:
        tier = catalogue.default_links(entry, num_devices)
        unseen = ["the links within a node: no matrix was given"] if num_devices > 1 else []
        words = "usual for the accelerator"
        return NodeLinks(tier, num_devices, words=words, doubts=tuple(unseen))
    islands = _islands(matrix.links[:num_devices])
    sizes = {len(island) for island in islands}
    if sizes == {1}:
        tier, words = _host_tier(matrix, entry, host_bytes_per_s)
        return NodeLinks(tier, num_devices, words=words)
    if len(islands) == 1:
        tier, words, doubts = _linked_tier(matrix, entry, islands[0], link_rates_bytes_per_s)
        return NodeLinks(tier, num_devices, words=words, doubts=doubts)
    host, host_words = _host_tier(matrix, entry, host_bytes_per_s)
    in_order = [device for island in islands for device in island] == list(range(num_devices))
    if len(sizes) == 1 and in_order:
        tier, words, doubts = _linked_tier(matrix, entry, islands[0], link_rates_bytes_per_s)
        size = sizes.pop()
        words = f"islands of {size} by {words}; between them {host_words}"
        return NodeLinks(tier, size, host, words, doubts)
    doubt = f"links join only some devices ({_in_words(islands)}); priced as if all had PCIe alone"
    return NodeLinks(host, num_devices, words=host_words, doubts=(doubt,))


def _islands(links: Sequence[Sequence[str | None]]) -> list[list[int]]:
    """Devices that the accelerators' own links join, directly or over others; by first member."""
    remaining = list(range(len(links)))
    islands = []
    while remaining:
        island = [remaining.pop(0)]
        for device in island:
            row = [(link or "").upper() for link in links[device]]
            near = [other for other in remaining if _LINKED.fullmatch(row[other])]
            island += near
            remaining = [other for other in remaining if other not in near]
        islands.append(sorted(island))
    return islands


def _linked_tier(
    matrix: DeviceMatrix, entry: AcceleratorEntry, island: Sequence[int], rates: Sequence[float]
) -> tuple[LinkTier, str, tuple[str, ...]]:
    """The tier of an island, its words and its doubts."""
    counts = [
        [_bonded(matrix.links[one][other]) for other in island if other != one] for one in island
    ]
    if not any(any(row) for row in counts):
        return _named_tier(matrix, entry, island)
    rate, origin = _link_rate(entry, counts, rates)
    own = entry.link.in_base_units("bytes_per_s") if entry.link else 0.0
    sums = [sum(row) for row in counts]
    missing = any(count == 0 for row in counts for count in row)
    if max(sums) * rate > own * 1.01:  # more than a device has: the pairs share it, by a switch
        count = min(max(row) for row in counts)
        tier = _tier(matrix, count * rate, None, origin)
        return tier, f"{count} links per device to a switch, {origin}", ()
    least = min(count for row in counts for count in row if count)
    total = min(sums) * rate
    pair = least * rate if least * rate < total else None
    tier = _tier(matrix, total, pair, origin)
    words = f"{min(sums)} links per device, {least} to one peer, {origin}"
    doubts = ("some pairs have no link of their own; they are priced as the weakest pair",)
    return tier, words, doubts if missing else ()


def _named_tier(
    matrix: DeviceMatrix, entry: AcceleratorEntry, island: Sequence[int]
) -> tuple[LinkTier, str, tuple[str, ...]]:
    """Links without a count, such as XGMI and HCCS: as the catalogue has them."""
    kind = matrix.links[island[0]][island[1]] or ""
    if entry.link is None:
        tier = catalogue.default_links(entry, len(island))
        return tier, kind, (f"the bandwidth of {kind} of {entry.slug}",)
    name = "xgmi" if kind.upper() == "XGMI" else catalogue.link_name(entry)
    tier = catalogue.link_tier(name, entry.link, entry.link_to_one_peer)
    return tier, f"{kind} as the catalogue has it: {entry.link.source}", ()


def _link_rate(
    entry: AcceleratorEntry, counts: Sequence[Sequence[int]], rates: Sequence[float]
) -> tuple[float, str]:
    """Bytes per second and direction of one link, and how that is known."""
    if rates:
        rate = sum(rates) / len(rates)
        return rate, f"{rate / 1e9:.4g} GB/s per link as the device reports"
    own = entry.link
    if own is not None and own.value == _BRIDGED_GB_PER_S:
        rate = own.in_base_units("bytes_per_s") / _BRIDGE_LINKS
        return rate, f"{rate / 1e9:.4g} GB/s per link of a bridge ({own.source})"
    if entry.family in _LINK_GB_PER_S:
        rate = _LINK_GB_PER_S[entry.family]
        return rate * 1e9, f"{rate:g} GB/s per link and direction (data sheet)"
    total = max(sum(row) for row in counts)
    bandwidth = own.in_base_units("bytes_per_s") if own else 0.0
    return bandwidth / total, f"all {total} links together as the catalogue has it"


def _tier(matrix: DeviceMatrix, total: float, pair: float | None, origin: str) -> LinkTier:
    source = f"{matrix.tool} counts the links; {origin}"
    name = "mtlink" if matrix.tool == "mthreads-gmi" else "nvlink"

    def fact(value: float) -> Fact:
        return Fact(value=value, unit="B/s", kind="datasheet", source=source)

    return catalogue.link_tier(name, fact(total), None if pair is None else fact(pair))


def _host_tier(
    matrix: DeviceMatrix, entry: AcceleratorEntry, slot_bytes_per_s: float | None
) -> tuple[LinkTier, str]:
    """Through the host: at a port's rate below PCIe switches, at half of it through memory."""
    size = len(matrix.links)
    kinds = {
        (matrix.links[i][j] or "SYS").upper() for i in range(size) for j in range(size) if i != j
    }
    through_host = {kind for kind in kinds if not _LINKED.fullmatch(kind)}
    no_peers = "P2P" in entry.link_description
    direct = through_host <= SWITCHED_PCIE and not no_peers
    how = "below PCIe switches" if direct else "through the host's memory"
    words = f"{'/'.join(sorted(through_host))}: {how}"
    if slot_bytes_per_s is None:
        return catalogue.host_links(entry, direct=direct), words
    fact = Fact(
        value=slot_bytes_per_s if direct else slot_bytes_per_s / 2,
        unit="B/s",
        kind="datasheet" if direct else "derived",
        source=f"{'' if direct else 'half of '}the slot of the device as it reports it",
    )
    return catalogue.link_tier("pcie", fact), f"{words}, {fact.source}"


def _bonded(link: str | None) -> int:
    found = _BONDED.fullmatch((link or "").upper())
    return int(found[1]) if found else 0


def _in_words(islands: Sequence[Sequence[int]]) -> str:
    return ", ".join("-".join(map(str, island)) for island in islands)
