"""The catalogue: accelerators, nodes and how well software uses them, as data files with sources.

Names of the `Parameter`s in a catalogue profile (no curves were measured; a formula prices):

| name | unit | meaning |
|---|---|---|
| ``matmul_efficiency.<dtype>`` | 1 | best measured fraction of the dense peak for large matmuls |
| ``matmul_slowdown.<precision>`` | 1 | its products, over others of the same dtype; absent: 1 |
| ``matmul_tile_m``, ``matmul_tile_n`` | elements | output tile of one work group, for wave counts |
| ``num_sm`` | count | work groups that run at once (SMs, CUs); absent where unknown |
| ``attention_efficiency.forward``, ``.backward`` | 1 | fraction of the bf16 peak of the attention \
kernel, by FLOPs that count the causal half only |
| ``memory_bandwidth_efficiency`` | 1 | achieved fraction of the memory bandwidth |
| ``launch_overhead_s`` | s | per kernel, where kernels are launched one by one |
| ``collective_efficiency.intra_node``, ``.inter_node`` | 1 | bus bandwidth of large ring \
collectives over the wire rate of the link tier |
| ``collective_latency.base_s`` | s | once per collective |
| ``collective_latency.intra_node_s``, ``.inter_node_s`` | s | per ring step inside a node and \
between nodes |
| ``in_switch_all_reduce.gain`` | 1 | all_reduce bandwidth through switches that add up (NVLS), \
over a ring's, for a full node or domain; absent where there are none |
| ``in_switch_all_reduce.min_ranks`` | count | smallest group in a node for which it is used |
| ``memory.context_bytes`` | B | device memory of a process's context; taken off an \
`AcceleratorSpec`'s usable memory already |
| ``memory.first_communicator_bytes``, ``memory.communicator_bytes`` | B | device memory of the \
first process group, and of each further one |
| ``memory.fragmentation_fraction`` | 1 | our own runtime's margin for the allocator |
| ``memory.allocator_fraction``, ``memory.most_allocator_fraction`` | 1 | what other software's \
allocator loses, over what tensors take up: usually, and at most |
| ``memory.expandable_fraction``, ``memory.most_expandable_fraction`` | 1 | the same with \
expandable segments |
| ``memory.central_ratio``, ``memory.high_ratio`` | 1 | measured over predicted peak: median, 90th \
percentile |
| ``tie.ratio`` | 1 | predicted steps up to this multiple of the best cannot be told apart from it |
| ``band.low_ratio``, ``band.high_ratio`` | 1 | multiples of a predicted step time between which \
80 % of published measurements lie (``benchmarks/published_steps.md``); wider where nothing was \
measured on the accelerator |

Values are for the most specific of: the node type, the accelerator, its links, its family, all.
Where nothing was measured on an accelerator its family's median stands in, marked ``derived``.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import PositiveInt

from shardwright.hardware_profiles.profile import Parameter
from shardwright.specs import AcceleratorSpec, InputError, LinkTier, NodeGroup, SharedResource, Spec
from shardwright.specs.cluster import Provenance
from shardwright.specs.training import DTYPE_BYTES, DType
from shardwright.specs.units import Dimension, parse

CATALOGUE_DATE = "2026-11-30"
"""When the facts were collected."""

_EVIDENCE = {
    "matrix products": "matmul_efficiency",
    "attention": "attention_efficiency",
    "collectives": "collective_efficiency.intra_node",
}
"""What has to be measured on an accelerator, or on one of its family, for steps to be trusted."""

_DATA = Path(__file__).parent / "catalogue_data"
_WEAKEST_LAST: tuple[Provenance, ...] = ("measured", "datasheet", "user", "derived", "recalled")


class Fact(Spec):
    """One number with its unit, how it came to be known and where it was found."""

    value: float
    unit: str
    kind: Provenance
    source: str

    def in_base_units(self, dimension: Dimension) -> float:
        """The value in bytes, bytes per second, FLOPs per second, seconds or watts."""
        return parse(f"{self.value!r} {self.unit}", dimension)


class AcceleratorEntry(Spec):
    """What the catalogue knows of one accelerator; peaks are dense, links per direction."""

    slug: str
    name: str
    vendor: str
    family: str
    """Generation, such as ``hopper``: what unmeasured members borrow from measured ones."""
    architecture: str
    memory: Fact
    """The vendor's figure."""
    device_reported_memory: Fact
    memory_bandwidth: Fact
    peak_dense: dict[str, Fact]
    """By number format; ``tf32`` is listed, but no `DType` of ours means it."""
    link: Fact | None
    """To all peers together."""
    link_to_one_peer: Fact | None
    """Where that is less than ``link``."""
    link_description: str
    host_link: str | None
    num_linked_devices: PositiveInt | None
    """How many devices a bridge joins; null where ``link`` reaches every device of a node."""
    host_bandwidth: Fact | None
    compute_units: Fact | None
    tdp: Fact | None
    notes: str | None

    def to_spec(self) -> AcceleratorSpec:
        """As a device of a cluster: usable memory is what it reports less a context."""
        reported_bytes = int(self.device_reported_memory.in_base_units("bytes"))
        peaks = {dtype: self.peak_dense[dtype] for dtype in _dtypes(self.peak_dense)}
        facts = [self.device_reported_memory, self.memory_bandwidth, *peaks.values()]
        return AcceleratorSpec(
            name=self.slug,
            vendor=self.vendor,
            memory_bytes=reported_bytes,
            usable_memory_bytes=reported_bytes - context_bytes(),
            memory_bandwidth_bytes_per_s=self.memory_bandwidth.in_base_units("bytes_per_s"),
            peak_flops_per_s={d: fact.in_base_units("flops_per_s") for d, fact in peaks.items()},
            provenance=weakest([fact.kind for fact in facts]),
            source="; ".join(dict.fromkeys(fact.source for fact in facts)),
        )


class LinkEntry(Spec):
    """The links between the devices of a node; bandwidth per device and direction."""

    name: str
    description: str
    bandwidth: Fact
    bandwidth_to_one_peer: Fact | None


class NetworkEntry(Spec):
    """The network adapters of a node."""

    name: str
    description: str
    adapters: Fact
    adapter_rate: Fact
    bandwidth: Fact
    """Each device's share of all adapters, per direction."""


class NodeEntry(Spec):
    """What the catalogue knows of one node type."""

    slug: str
    name: str
    kind: str
    accelerator: str
    devices_per_node: PositiveInt
    intra_node: LinkEntry
    inter_node: NetworkEntry | None
    scale_up_domain_gpus: PositiveInt
    """Devices that ``intra_node`` joins, across nodes where that is more than one node."""
    rail_optimized: bool | None
    oversubscription: str | None
    max_power: Fact | None
    price: Fact | None
    notes: str | None

    def to_group(self) -> NodeGroup:
        """One such node."""
        return NodeGroup(
            name=self.slug,
            num_nodes=1,
            devices_per_node=self.devices_per_node,
            accelerator=accelerator(self.accelerator),
            intra_node=link_tier(
                self.intra_node.name,
                self.intra_node.bandwidth,
                self.intra_node.bandwidth_to_one_peer,
            ),
            inter_node=self._network_tier(),
            scale_up_domain_gpus=self.scale_up_domain_gpus,
            shared_resources=self._shared_adapters(),
            usd_per_gpu_hour=None if self.price is None else self.price.value,
        )

    def _network_tier(self) -> LinkTier | None:
        """Fewer adapters than devices: one device alone gets a whole adapter, all share them."""
        if self.inter_node is None:
            return None
        if self._shared_adapters():
            return link_tier(self.inter_node.name, self.inter_node.adapter_rate)
        return link_tier(self.inter_node.name, self.inter_node.bandwidth)

    def _shared_adapters(self) -> tuple[SharedResource, ...]:
        if self.inter_node is None or self.inter_node.adapters.value >= self.devices_per_node:
            return ()
        adapters = self.inter_node.adapters.value
        return (SharedResource(kind="nic", capacity=adapters, ranks=self.devices_per_node),)


class SoftwareFact(Spec):
    """A parameter and whom it is for; without a scope it is for everyone."""

    name: str
    value: float
    unit: str
    kind: Provenance
    fitted_from: str
    nodes: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    """Names of link tiers, such as ``pcie`` or ``efa``."""
    families: tuple[str, ...] = ()

    def specificity(self, node: str, device: str, tiers: Sequence[str], family: str) -> int:
        """4 for this node, 3 this accelerator, 2 its links, 1 its family, 0 all, -1 others."""
        matches = (
            (node in self.nodes, 4),
            (device in self.accelerators, 3),
            (any(tier in self.tiers for tier in tiers), 2),
            (family in self.families, 1),
        )
        scoped = self.nodes or self.accelerators or self.tiers or self.families
        return max((rank for hit, rank in matches if hit), default=-1 if scoped else 0)

    def to_parameter(self) -> Parameter:
        return Parameter(
            name=self.name,
            value=self.value,
            unit=self.unit,
            kind=self.kind,
            fitted_from=self.fitted_from,
        )


class SoftwareFacts(Spec):
    """The file of software parameters."""

    parameters: tuple[SoftwareFact, ...]


class PriceRow(Spec):
    """One dated price."""

    provider: str
    sku: str
    accelerator: str
    gpus: PositiveInt | None
    usd_per_gpu_hour: float
    price_kind: str
    as_of: str
    kind: Provenance
    source: str


class PriceList(Spec):
    """The file of prices."""

    prices: tuple[PriceRow, ...]


class LinkLatencies(Spec):
    """The file of latencies by link tier."""

    latencies: dict[str, Fact]


def list_accelerators() -> list[str]:
    """Slugs of all accelerators, sorted."""
    return sorted(path.stem for path in (_DATA / "accelerators").glob("*.json"))


def list_nodes() -> list[str]:
    """Slugs of all node types, sorted."""
    return sorted(path.name.removesuffix(".json") for path in (_DATA / "nodes").glob("*.json"))


def accelerator(slug: str) -> AcceleratorSpec:
    """A device by its slug, or by a part before a dash that only one slug begins with.

    Raises:
        InputError: no slug or several fit; names the nearest.
    """
    return accelerator_entry(slug).to_spec()


def node(slug: str) -> NodeGroup:
    """One node of a type, found as in `accelerator`."""
    return node_entry(slug).to_group()


@functools.cache
def accelerator_entry(slug: str) -> AcceleratorEntry:
    """Every number of an accelerator with its source."""
    found = resolve_slug(slug, list_accelerators(), "accelerator")
    return AcceleratorEntry.from_json(_read(f"accelerators/{found}.json"), source=found)


@functools.cache
def node_entry(slug: str) -> NodeEntry:
    """Every number of a node type with its source."""
    found = resolve_slug(slug, list_nodes(), "node type")
    return NodeEntry.from_json(_read(f"nodes/{found}.json"), source=found)


def prices() -> tuple[PriceRow, ...]:
    """All dated prices, as found."""
    return PriceList.from_json(_read("prices.json"), source="prices.json").prices


def is_measured(slug: str) -> bool:
    """Whether any software parameter was measured on this very accelerator."""
    return any(slug in fact.accelerators and fact.kind == "measured" for fact in _software())


def parameters_for(group: NodeGroup) -> tuple[Parameter, ...]:
    """Everything that pricing needs to know about how well software uses these nodes.

    For each name the most specific value: of the node type, else of the accelerator, its links,
    its family, else of all. Names as listed at the top of this module.
    """
    device = group.accelerator.name
    entry = accelerator_entry(device) if device in list_accelerators() else None
    family = entry.family if entry else "other"
    best: dict[str, tuple[int, SoftwareFact]] = {}
    for fact in _software():
        fit = fact.specificity(group.name, device, _tiers_read_by(fact.name, group), family)
        if fit >= 0 and fit > best.get(fact.name, (-1,))[0]:
            best[fact.name] = (fit, fact)
    found = [fact.to_parameter() for _, fact in best.values()]
    if "in_switch_all_reduce.gain" not in best:
        found = [p for p in found if not p.name.startswith("in_switch_all_reduce")]
    return (*found, *_num_sm(entry))


def context_bytes() -> int:
    """What a process's context takes of a device's memory before the first tensor."""
    fact = next(fact for fact in _software() if fact.name == "memory.context_bytes")
    return int(fact.value)


def default_links(entry: AcceleratorEntry, devices_per_node: int) -> LinkTier:
    """How the devices of a node of this accelerator are joined, where nobody said.

    By its own links where they reach all of them, else through the host, at half the rate of its
    port: without peer access every byte crosses the host's memory, in and out again. (Node types
    of the catalogue without peer access state 16 of 31 and 32 of 63 GB/s.)
    """
    reach = entry.num_linked_devices or devices_per_node
    if entry.link is not None and devices_per_node <= reach:
        return link_tier(link_name(entry), entry.link, entry.link_to_one_peer)
    return host_links(entry)


def host_links(entry: AcceleratorEntry, *, direct: bool = False) -> LinkTier:
    """Links through the host; ``direct``: through PCIe switches, at the full rate of a port.

    Raises:
        InputError: the catalogue does not know the accelerator's port.
    """
    port = entry.host_bandwidth
    if port is None:
        raise InputError(
            f"nothing is known of the links between {entry.slug} of a node through their host",
            fix="add their bandwidth per device and direction, such as intra=50GB/s",
        )
    if direct:
        return link_tier("pcie", port)
    half = Fact(
        value=port.value / 2,
        unit=port.unit,
        kind="derived",
        source=f"half of {entry.host_link}: {port.source}",
    )
    return link_tier("pcie", half)


def own_network(entry: AcceleratorEntry, devices_per_node: int) -> LinkTier | None:
    """Each device's share of the network of the vendor's own node; None where none is known."""
    for slug in list_nodes():
        known = node_entry(slug)
        own = known.kind in ("server", "rack-scale") and known.accelerator == entry.slug
        if own and known.inter_node and known.devices_per_node == devices_per_node:
            return link_tier(known.inter_node.name, known.inter_node.bandwidth)
    return None


def evidence_in_words(device: str) -> str | None:
    """``datasheet only`` where nothing was measured on an accelerator; None where all was.

    Names what was measured where that is a part only. A figure of the same die counts as its own.
    """
    if device not in list_accelerators():
        return None
    family = accelerator_entry(device).family

    def is_evidence(fact: SoftwareFact) -> bool:
        on_device = device in fact.accelerators and fact.kind in ("measured", "derived")
        return on_device or (family in fact.families and fact.kind == "measured")

    facts = {
        what: [f for f in _software() if f.name.startswith(prefix) and is_evidence(f)]
        for what, prefix in _EVIDENCE.items()
    }
    measured = [what for what, found in facts.items() if found]
    if not any(device in fact.accelerators for found in facts.values() for fact in found):
        return "datasheet only"
    if len(measured) == len(_EVIDENCE):
        return None
    return f"datasheet only but for measured {' and '.join(measured)}"


def link_name(entry: AcceleratorEntry) -> str:
    """The tier name of an accelerator's own links; ``nvlink`` stands for any unlisted kind."""
    described = re.sub("[^a-z]", "", entry.link_description.lower())
    return next((name for name in _latencies() if name in described), "nvlink")


def link_tier(name: str, bandwidth: Fact, to_one_peer: Fact | None = None) -> LinkTier:
    """A tier whose latency is the catalogue's for links of this name."""
    latency = _latencies()[name]
    return LinkTier(
        name=name,
        bandwidth_bytes_per_s=bandwidth.in_base_units("bytes_per_s"),
        pair_bandwidth_bytes_per_s=to_one_peer and to_one_peer.in_base_units("bytes_per_s"),
        latency_s=latency.in_base_units("seconds"),
        provenance=weakest([bandwidth.kind, latency.kind]),
        source=f"bandwidth: {bandwidth.source}; latency: {latency.source}",
    )


def weakest(kinds: Sequence[Provenance]) -> Provenance:
    """The least certain of several ways to know a number."""
    return max(kinds, key=_WEAKEST_LAST.index)


def resolve_slug(text: str, slugs: Sequence[str], what: str) -> str:
    """The slug meant by ``text``: itself, or the only one that continues it after a dash.

    Raises:
        InputError: none or several do; names them or the nearest.
    """
    wanted = text.strip().lower()
    if wanted in slugs:
        return wanted
    longer = [slug for slug in slugs if wanted and slug.startswith(f"{wanted}-")]
    if len(longer) == 1:
        return longer[0]
    if longer:
        raise InputError(
            f"{text!r} may be any of {len(longer)} {what}s",
            fix=f"choose one of {', '.join(longer)}",
        )
    near = difflib.get_close_matches(wanted, slugs, n=4, cutoff=0.4)
    raise InputError(
        f"the catalogue has no {what} {text!r}",
        fix=f"try {', '.join(near)}" if near else "see `shardwright clusters`",
    )


def _tiers_read_by(name: str, group: NodeGroup) -> list[str]:
    """The tier that a parameter speaks of: ``.intra_node`` and ``.inter_node`` ones know theirs."""
    tier: LinkTier | None = None
    if ".intra_node" in name:
        tier = group.intra_node
    elif ".inter_node" in name:
        tier = group.inter_node
    return [tier.name] if tier else []


def _num_sm(entry: AcceleratorEntry | None) -> tuple[Parameter, ...]:
    if entry is None or entry.compute_units is None:
        return ()
    fact = entry.compute_units
    return (
        Parameter(
            name="num_sm",
            value=fact.value,
            unit="count",
            kind=fact.kind,
            fitted_from=fact.source,
        ),
    )


def _dtypes(peaks: dict[str, Fact]) -> list[DType]:
    return [dtype for dtype in DTYPE_BYTES if dtype in peaks]


@functools.cache
def _software() -> tuple[SoftwareFact, ...]:
    return SoftwareFacts.from_json(_read("software.json"), source="software.json").parameters


@functools.cache
def _latencies() -> dict[str, Fact]:
    text = _read("link_latency.json")
    return LinkLatencies.from_json(text, source="link_latency.json").latencies


def _read(name: str) -> str:
    return (_DATA / name).read_text(encoding="utf-8")
