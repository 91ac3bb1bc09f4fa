"""`ClusterSpec`: what hardware there is, as groups of identical nodes and the links between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from shardwright.specs._base import Spec
from shardwright.specs.ranges import MOST_DEVICES, Bytes, Degree, Rate, Seconds
from shardwright.specs.training import DType
from shardwright.specs.units import format_bytes, format_rate

if TYPE_CHECKING:
    import networkx

Provenance = Literal["measured", "datasheet", "derived", "recalled", "user"]
"""How a number came to be known; ``recalled`` and ``derived`` get the widest bands."""


class LinkTier(Spec):
    """One class of links: every pair of ranks that it joins gets this bandwidth and latency."""

    name: str
    """Such as ``nvlink``, ``pcie``, ``infiniband``, ``shared-memory``."""
    bandwidth_bytes_per_s: Rate
    """Per rank and direction, what the wire carries (not what a collective achieves)."""
    pair_bandwidth_bytes_per_s: Rate | None = None
    """To one single peer, where that is less than to all peers together (MI300X: one of 7)."""
    latency_s: Seconds
    provenance: Provenance
    source: str


class AcceleratorSpec(Spec):
    """One device: a GPU, an NPU, or a CPU that the ranks on it share."""

    name: str
    """Slug, one per memory size: ``h100-sxm5-80gb``."""
    vendor: str
    memory_bytes: Bytes
    """What the device reports, not the marketing figure."""
    usable_memory_bytes: Bytes
    """What a training process may allocate: reported less context and driver."""
    memory_bandwidth_bytes_per_s: Rate
    peak_flops_per_s: dict[DType, Rate]
    """Dense peak by matmul dtype; a dtype that is absent is not supported."""
    provenance: Provenance
    source: str

    @model_validator(mode="after")
    def _usable_is_part_of_memory(self) -> AcceleratorSpec:
        if self.usable_memory_bytes > self.memory_bytes:
            raise ValueError(
                f"usable_memory_bytes ({self.usable_memory_bytes}) exceeds memory_bytes"
                f" ({self.memory_bytes})"
            )
        return self


class SharedResource(Spec):
    """Something that several ranks of a node use at once and share fairly while both are busy."""

    kind: Literal["cores", "nic", "switch"]
    capacity: float = Field(gt=1e-3, le=MOST_DEVICES)
    """How many ranks can use it at full speed at the same time."""
    ranks: Degree
    """How many ranks of the node share it."""


class NodeGroup(Spec):
    """Identical nodes."""

    name: str
    """Node type: ``dgx-h100``."""
    num_nodes: Degree
    devices_per_node: Degree
    """Ranks per node. On a CPU these are processes."""
    accelerator: AcceleratorSpec
    intra_node: LinkTier
    inter_node: LinkTier | None = None
    """Absent or null: a machine that stands alone."""
    scale_up_domain_gpus: Degree
    """Devices joined by ``intra_node``, across nodes where the domain is larger (NVL72: 72); fewer
    than a node where its devices are linked in pairs or fours (``inter_node`` joins those)."""
    shared_resources: tuple[SharedResource, ...] = ()
    usd_per_gpu_hour: float | None = Field(default=None, gt=0, le=1e6)
    host_memory_bytes: Bytes | None = None

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @property
    def node_network_bytes_per_s(self) -> float:
        """What leaves a node per direction: all devices' links, or its adapters where fewer."""
        if self.inter_node is None:
            return 0.0
        adapters = [r.capacity for r in self.shared_resources if r.kind == "nic"]
        return self.inter_node.bandwidth_bytes_per_s * min([self.devices_per_node, *adapters])


class ClusterSpec(Spec):
    """Groups of identical nodes; more than one group is a heterogeneous cluster."""

    name: str
    groups: tuple[NodeGroup, ...] = Field(min_length=1)
    between_groups: LinkTier | None = None
    """What each rank of a group reaches towards other groups."""
    between_groups_total_bytes_per_s: Rate | None = None
    """What all ranks of a group together reach towards the others, per direction: a line between
    sites. Null: as much as the ranks that send."""

    @model_validator(mode="after")
    def _groups_are_joined(self) -> ClusterSpec:
        if self.num_devices > MOST_DEVICES:
            raise ValueError(f"{self.num_devices} devices are more than {MOST_DEVICES}")
        if len(self.groups) > 1 and self.between_groups is None:
            raise ValueError(
                f"{len(self.groups)} groups need between_groups, the links from one to another"
            )
        return self

    @property
    def num_devices(self) -> int:
        return sum(group.num_devices for group in self.groups)

    @property
    def accelerator(self) -> AcceleratorSpec:
        """The accelerator of the first group."""
        return self.groups[0].accelerator

    def ranks_of(self, index: int) -> range:
        """The ranks of a group; ranks fill groups and nodes in order."""
        first = sum(group.num_devices for group in self.groups[:index])
        return range(first, first + self.groups[index].num_devices)

    def group_index_of(self, rank: int) -> int:
        """Which node group a global rank runs on; raises `IndexError` where there is none."""
        for index in range(len(self.groups)):
            if rank in self.ranks_of(index):
                return index
        raise IndexError(f"rank {rank} of {self.num_devices}")

    def group_of(self, rank: int) -> NodeGroup:
        """The node group that a global rank runs on."""
        return self.groups[self.group_index_of(rank)]

    def tier_between(self, rank_a: int, rank_b: int) -> LinkTier:
        """The slowest class of link on the path between two ranks."""
        index = self.group_index_of(rank_a)
        if index != self.group_index_of(rank_b):
            assert self.between_groups is not None
            return self.between_groups
        group, first = self.groups[index], self.ranks_of(index)[0]
        domain = group.scale_up_domain_gpus
        is_near = (rank_a - first) // domain == (rank_b - first) // domain
        if is_near or group.inter_node is None:
            return group.intra_node
        return group.inter_node

    def link_graph(self) -> networkx.Graph[str]:
        """Nodes, their switches and the fabric as a graph with ``bandwidth`` and ``latency``."""
        import networkx

        graph: networkx.Graph[str] = networkx.Graph(name=self.name)
        for group_index, group in enumerate(self.groups):
            for node in range(group.num_nodes):
                node_name = f"{group_index}/{node}"
                intra = group.intra_node
                graph.add_edge(
                    node_name, f"{node_name}/devices", tier=intra.name,
                    bandwidth_bytes_per_s=intra.bandwidth_bytes_per_s, latency_s=intra.latency_s,
                )  # fmt: skip
                if group.inter_node is not None:
                    inter = group.inter_node
                    graph.add_edge(
                        node_name, f"{group_index}/fabric", tier=inter.name,
                        bandwidth_bytes_per_s=group.node_network_bytes_per_s,
                        latency_s=inter.latency_s,
                    )  # fmt: skip
        if self.between_groups is not None:
            for group_index in range(1, len(self.groups)):
                graph.add_edge(
                    "0/fabric", f"{group_index}/fabric", tier=self.between_groups.name,
                    bandwidth_bytes_per_s=self.between_groups_total_bytes_per_s
                    or self.between_groups.bandwidth_bytes_per_s,
                    latency_s=self.between_groups.latency_s,
                )  # fmt: skip
        return graph

    def in_words(self) -> str:
        """``8 nodes x 8 = 64 x H100-SXM5-80GB (79.1 GiB usable)``."""
        parts = []
        for group in self.groups:
            nodes = "1 node" if group.num_nodes == 1 else f"{group.num_nodes} nodes"
            usable = format_bytes(group.accelerator.usable_memory_bytes)
            parts.append(
                f"{nodes} x {group.devices_per_node} = {group.num_devices} x "
                f"{group.accelerator.name.upper()} ({usable} usable)"
            )
        if self.between_groups is None:
            return " + ".join(parts)
        total = self.between_groups_total_bytes_per_s
        rate = format_rate(total or self.between_groups.bandwidth_bytes_per_s)
        return f"{' + '.join(parts)}, {rate} {'' if total else 'per device '}between them"
