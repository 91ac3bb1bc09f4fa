"""What a collective costs on its group's path through the cluster.

Measured curves (by kind, group shape and how many such groups are busy at once) win. Where a shape
was not measured, the nearest one is scaled by the ring's counts of steps and bytes. For hardware
known from datasheets alone: latency and bandwidth of the ring, the tree and, where the switches add
up, of the switch, the fastest of them; bandwidth is that of the narrowest link on the path.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.cost_models.blocks.operations import Collective, CollectiveKind
from shardwright.cost_models.curves import ParameterTable, SizeCurve
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import ClusterSpec, LinkTier, NodeGroup
from shardwright.specs.training import DType

INTRA_NODE_RATIO = "correction.intra_node_ratio"
INTER_NODE_RATIO = "correction.inter_node_ratio"
"""Parameters: time of collectives inside a link domain, and across, in training steps over that of
the same ones measured alone; absent: 1. A trial finds them."""

GroupShape = tuple[int, int]
"""(Ranks per domain, domains): a domain is what ``intra_node`` links join, mostly a node."""


@dataclass(frozen=True, slots=True)
class GroupPath:
    """Where a group's traffic goes."""

    num_ranks: int
    shape: GroupShape
    domain_ranks: int
    """Ranks of a full domain."""
    intra: LinkTier
    inter: LinkTier | None
    """Null where the group stays inside one domain."""
    nic_capacity: float | None
    """How many ranks of a node drive its network cards at full rate; null = all of them."""

    def __hash__(self) -> int:
        """Of what mostly differs: paths are looked up for every price, and links hash slowly."""
        return hash((self.num_ranks, self.shape))


class CommunicationModel:
    """Prices collectives on a profiled or catalogued cluster."""

    def __init__(self, profile: HardwareProfile) -> None:
        self._cluster = profile.devices
        self._measured = MeasuredCollectives(profile)
        self._formulas = CollectiveFormulas(profile)
        values = ParameterTable(profile)
        self._intra_ratio = values.get(INTRA_NODE_RATIO) or 1.0
        self._inter_ratio = values.get(INTER_NODE_RATIO) or 1.0
        self._paths: dict[tuple[int, ...], GroupPath] = {}
        self._cache: dict[tuple[CollectiveKind, int, DType, GroupPath, int], float] = {}

    def seconds(
        self, collective: Collective, ranks: tuple[int, ...], concurrent_groups: int = 1
    ) -> float:
        """Wall time of one call over the global ``ranks``.

        ``concurrent_groups`` is how many such groups of a node communicate at the same time.
        """
        if len(ranks) == 1:
            return 0.0
        return self.seconds_on(collective, self.path(ranks), concurrent_groups)

    def path(self, ranks: tuple[int, ...]) -> GroupPath:
        """Where the traffic of these global ranks goes; keep it to price many calls fast."""
        found = self._paths.get(ranks)
        if found is None:
            found = self._paths[ranks] = group_path(self._cluster, ranks)
        return found

    def seconds_on(
        self, collective: Collective, path: GroupPath, concurrent_groups: int = 1
    ) -> float:
        """As `seconds`, for a group whose path is already known."""
        kind, size, dtype = collective.kind, collective.input_bytes, collective.dtype
        key = (kind, size, dtype, path, concurrent_groups)
        cached = self._cache.get(key)
        if cached is None:
            cached = self._measured.seconds(kind, size, dtype, path.shape, concurrent_groups)
            if cached is None:
                cached = self._formulas.seconds(kind, size, path, concurrent_groups)
            cached *= self._intra_ratio if path.inter is None else self._inter_ratio
            self._cache[key] = cached
        return cached


class MeasuredCollectives:
    """Curves by kind, dtype, group shape and concurrency."""

    def __init__(self, profile: HardwareProfile) -> None:
        self._curves: dict[str, dict[DType, dict[GroupShape, dict[int, SizeCurve]]]] = {}
        for curve in profile.curves:
            if math.prod(curve.group_shape) > 1:
                by_dtype = self._curves.setdefault(curve.op, {})
                by_shape = by_dtype.setdefault(curve.dtype, {})
                by_concurrency = by_shape.setdefault(curve.group_shape, {})
                by_concurrency[curve.concurrency] = SizeCurve.of(curve.points)

    def seconds(
        self, kind: CollectiveKind, size: int, dtype: DType, shape: GroupShape, groups: int
    ) -> float | None:
        """None where the profile measured no such kind between or within nodes."""
        by_dtype = self._curves.get(kind)
        if by_dtype is None:
            return None
        by_shape = by_dtype.get(dtype) or next(iter(by_dtype.values()))
        if shape in by_shape:
            return _at_concurrency(by_shape[shape], groups, size)
        alike = [known for known in by_shape if (known[1] > 1) == (shape[1] > 1)]
        if not alike:
            return None
        nearest = min(alike, key=lambda known: (_shape_distance(known, shape), known))
        return self._scaled(kind, by_shape[nearest], nearest, shape, size, groups)

    @staticmethod
    def _scaled(
        kind: CollectiveKind,
        curves: dict[int, SizeCurve],
        known: GroupShape,
        wanted: GroupShape,
        size: int,
        groups: int,
    ) -> float:
        """Latency by the ring's steps, the rest by its bytes per rank."""
        known_ranks, wanted_ranks = math.prod(known), math.prod(wanted)
        latency = _at_concurrency(curves, groups, 0)
        transfer = _at_concurrency(curves, groups, size) - latency
        steps = ring_steps(kind, wanted_ranks) / ring_steps(kind, known_ranks)
        traffic = sent_share(kind, wanted_ranks) / sent_share(kind, known_ranks)
        return latency * steps + transfer * traffic


class CollectiveFormulas:
    """Latency and bandwidth from link tiers and the catalogue's parameters."""

    def __init__(self, profile: HardwareProfile, values: Mapping[str, float] | None = None) -> None:
        """``values``: of the parameters, in place of the profile's own."""
        self._parameters = ParameterTable(profile, values)

    def seconds(self, kind: CollectiveKind, size: int, path: GroupPath, groups: int) -> float:
        transfer = self._transfer_s(kind, size, path, groups)
        ring = self._latency_s(path, *_ring_hops(kind, path.shape)) + transfer
        if kind != "all_reduce":
            return ring
        tree = self._latency_s(path, *_tree_hops(path.shape)) + self._tree_transfer_s(
            size, path, groups
        )
        return min(ring, tree, self._in_switch_s(transfer, path))

    def _transfer_s(self, kind: CollectiveKind, size: int, path: GroupPath, groups: int) -> float:
        """Bytes over the narrowest link. All-to-all loads both tiers with different bytes."""
        sent_bytes = sent_share(kind, path.num_ranks) * size
        intra = self._intra_bytes_per_s(path)
        if path.inter is None:
            return sent_bytes / intra
        per_rank = self._inter_bytes_per_s(path, groups)
        width, domains = path.shape
        if kind == "all_to_all":
            outside = size * (domains - 1) / domains
            return max((sent_bytes - outside) / intra, outside / per_rank)
        rails = 1 if kind == "send_recv" else width
        return max(sent_bytes / intra, sent_bytes / (rails * per_rank))

    def _tree_transfer_s(self, size: int, path: GroupPath, groups: int) -> float:
        """Up and down the tree: twice the data over every link, pipelined."""
        slowest = self._intra_bytes_per_s(path)
        if path.inter is not None:
            slowest = min(slowest, path.shape[0] * self._inter_bytes_per_s(path, groups))
        return 2 * size / slowest

    def _in_switch_s(self, ring_transfer_s: float, path: GroupPath) -> float:
        """All-reduce by switches that add up, inside one domain; infinite where it is not used.

        Each rank sends S (1 + 1 / n) instead of a ring's 2 S (n - 1) / n; the measured gain of a
        full domain shrinks with that ratio in smaller groups.
        """
        gain = self._parameters.get("in_switch_all_reduce.gain")
        if gain is None or path.inter is not None:
            return math.inf
        if path.num_ranks < self._parameters["in_switch_all_reduce.min_ranks"]:
            return math.inf
        full = max(path.domain_ranks, path.num_ranks)
        gain *= _in_switch_bound(path.num_ranks) / _in_switch_bound(full)
        return self._latency_s(path, 2, 0) + ring_transfer_s / gain

    def _latency_s(self, path: GroupPath, intra_hops: float, inter_hops: float) -> float:
        base = self._parameters["collective_latency.base_s"]
        intra = self._parameters["collective_latency.intra_node_s"]
        latency = base + intra_hops * intra
        if path.inter is not None:
            latency += inter_hops * self._parameters["collective_latency.inter_node_s"]
        return latency

    def _intra_bytes_per_s(self, path: GroupPath) -> float:
        """What a rank reaches inside its domain: on meshes only the links to its group's peers."""
        width = path.shape[0]
        if width == 1:
            return math.inf
        wire = path.intra.bandwidth_bytes_per_s
        pair = path.intra.pair_bandwidth_bytes_per_s
        if pair is not None:
            wire = min(wire, (width - 1) * pair)
        return wire * self._parameters["collective_efficiency.intra_node"]

    def _inter_bytes_per_s(self, path: GroupPath, groups: int) -> float:
        """What each rank gets of the network while all busy ranks of its node send."""
        assert path.inter is not None
        wire = path.inter.bandwidth_bytes_per_s
        share = 1.0
        if path.nic_capacity is not None:
            share = min(1.0, path.nic_capacity / (groups * path.shape[0]))
        return wire * share * self._parameters["collective_efficiency.inter_node"]


def group_path(cluster: ClusterSpec, ranks: tuple[int, ...]) -> GroupPath:
    """The shape of a group and the links that it uses: the slowest between any two domains."""
    domains = {rank: _domain_of(cluster, rank) for rank in ranks}
    counts = Counter(domains.values())
    firsts = list({domain: rank for rank, domain in reversed(domains.items())}.values())
    group = cluster.group_of(ranks[0])
    domain = group.scale_up_domain_gpus
    # Where domains hold unequal parts of the group, the fewest ranks limit what enters a domain.
    shape = (min(counts.values()), len(counts))
    if len(firsts) == 1:
        return GroupPath(len(ranks), shape, domain, group.intra_node, None, None)
    tiers = [cluster.tier_between(firsts[0], other) for other in firsts[1:]]
    inter = min(tiers, key=lambda tier: tier.bandwidth_bytes_per_s)
    return GroupPath(len(ranks), shape, domain, group.intra_node, inter, _nic_capacity(group))


def _domain_of(cluster: ClusterSpec, rank: int) -> tuple[int, int]:
    """Which scale-up domain of which node group a rank belongs to."""
    first = 0
    for index, group in enumerate(cluster.groups):
        if rank < first + group.num_devices:
            return index, (rank - first) // group.scale_up_domain_gpus
        first += group.num_devices
    raise IndexError(f"rank {rank} of {cluster.num_devices}")


def _nic_capacity(group: NodeGroup) -> float | None:
    for resource in group.shared_resources:
        if resource.kind == "nic":
            return resource.capacity
    return None


def ring_steps(kind: CollectiveKind, num_ranks: int) -> int:
    """Messages that follow one another in a ring (pairwise exchange for all_to_all)."""
    if kind == "send_recv":
        return 1
    return (2 if kind == "all_reduce" else 1) * (num_ranks - 1)


def sent_share(kind: CollectiveKind, num_ranks: int) -> float:
    """Bytes that each rank sends, over the input bytes of the call (`Collective.input_bytes`)."""
    match kind:
        case "all_reduce":
            return 2 * (num_ranks - 1) / num_ranks
        case "reduce_scatter" | "all_to_all":
            return (num_ranks - 1) / num_ranks
        case "all_gather":
            return num_ranks - 1
        case "broadcast" | "send_recv":
            return 1.0


def _ring_hops(kind: CollectiveKind, shape: GroupShape) -> tuple[float, float]:
    """Steps of a ring inside domains and between them; the ring enters each domain once."""
    width, domains = shape
    if kind == "send_recv":
        return (0, 1) if domains > 1 else (1, 0)
    rounds = 2 if kind == "all_reduce" else 1
    between = rounds * (domains - 1)
    return rounds * (width * domains - 1) - between, between


def _tree_hops(shape: GroupShape) -> tuple[float, float]:
    """A chain inside each domain, a binary tree between them, up and down."""
    width, domains = shape
    return 2 * (width - 1), 2 * math.log2(domains)


def _in_switch_bound(num_ranks: int) -> float:
    """Bytes that a rank sends in a ring all_reduce over those that it sends to adding switches."""
    return 2 * (num_ranks - 1) / (num_ranks + 1)


def _shape_distance(one: GroupShape, other: GroupShape) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(one, other, strict=True))


def _at_concurrency(curves: dict[int, SizeCurve], groups: int, size: float) -> float:
    """Seconds with ``groups`` busy: measured, in proportion between measured counts, or beyond."""
    if groups in curves:
        return curves[groups].seconds(size)
    below = max((count for count in curves if count < groups), default=min(curves))
    above = min((count for count in curves if count > groups), default=below)
    low = curves[below].seconds(size)
    if above <= groups:
        return low * groups / below
    if below >= groups:
        return low
    share = (groups - below) / (above - below)
    return low + share * (curves[above].seconds(size) - low)
