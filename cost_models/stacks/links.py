"""Seconds of collectives between the ranks of a layout's groups.

Ranks are numbered tp, cp, dp, pp from the fastest axis; experts fold over the same ranks as etp,
ep, edp. A group is given by its size and its stride, so its path needs no list of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardwright.cost_models.communication import CollectiveFormulas, GroupPath
from shardwright.cost_models.stacks.operations import CollectiveKind
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import ClusterSpec, Layout, NodeGroup


class Links:
    """Prices collectives of any layout on one cluster."""

    def __init__(self, profile: HardwareProfile, parameters: Mapping[str, float]) -> None:
        """``parameters``: see `cost_models.stacks.parameters`."""
        self._cluster = profile.devices
        self._formulas = CollectiveFormulas(profile, parameters)
        self._ratio = parameters["stack.collective_ratio"]
        self._paths: dict[tuple[int, int], GroupPath] = {}
        self._seconds: dict[tuple[CollectiveKind, float, int, int], float] = {}

    def seconds(self, kind: CollectiveKind, num_bytes: float, size: int, stride: int) -> float:
        """One call over ``size`` ranks, each ``stride`` after the one before, all groups busy."""
        if size == 1 or num_bytes <= 0:
            return 0.0
        key = (kind, num_bytes, size, stride)
        found = self._seconds.get(key)
        if found is None:
            path = self.path(size, stride)
            groups = max(1, self._ranks_per_node // path.shape[0])
            seconds = self._formulas.seconds(kind, int(num_bytes), path, groups)
            found = self._seconds[key] = seconds * self._ratio
        return found

    def dispatch(
        self, num_bytes: float, size: int, stride: int, copies: int, most_domains: int
    ) -> float:
        """Sending each token to the ranks of its ``copies`` experts, or bringing it back.

        A token crosses to a link domain once, however many of its experts are there, and is handed
        on inside (DeepSeek-V3, arXiv 2412.19437, section 3.2.2). With experts chosen evenly,
        D (1 - (1 - 1/D)^copies) of D domains are met.
        """
        if size == 1:
            return 0.0
        domains = self.path(size, stride).shape[1]
        if domains == 1 or copies == 1:
            return self.seconds("all_to_all", num_bytes, size, stride)
        met = domains * (1.0 - (1.0 - 1.0 / domains) ** copies)
        if most_domains:
            met = min(met, most_domains)
        inside = self.seconds("all_to_all", num_bytes, size // domains, stride)
        across = num_bytes * met / copies
        outside = self.seconds("all_to_all", across, domains, stride * (size // domains))
        return max(inside, outside)

    @property
    def _ranks_per_node(self) -> int:
        group = self._cluster.groups[0]
        return min(group.devices_per_node, group.num_devices)

    def message_s(self, num_bytes: float, source: int, target: int, stride: int) -> float:
        """One message between two pipeline ranks, whose ranks are ``stride`` apart."""
        domain = self._cluster.groups[0].scale_up_domain_gpus
        apart = source * stride // domain != target * stride // domain
        return self.seconds("send_recv", num_bytes, 2, max(domain, stride) if apart else 1)

    def path(self, size: int, stride: int) -> GroupPath:
        """Where the traffic of a group goes."""
        key = (size, stride)
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = strided_path(self._cluster, size, stride)
        return found


def strided_path(cluster: ClusterSpec, size: int, stride: int) -> GroupPath:
    """The path of a group of ranks at equal distances, starting anywhere.

    Groups that cross from one node group to another use the links between these.
    """
    group = _slowest(cluster)
    domain = group.scale_up_domain_gpus
    domains = (size - 1) * stride // domain + 1 if stride < domain else size
    # Where domains hold unequal parts of the group, the fewest ranks limit what enters a domain.
    last = size - math.ceil((domains - 1) * domain / stride)
    width = max(1, min(size, domain // stride, last))
    if domains == 1:
        return GroupPath(size, (width, 1), domain, group.intra_node, None, None)
    inter = group.inter_node or group.intra_node
    if cluster.between_groups is not None and size * stride > min(
        part.num_devices for part in cluster.groups
    ):
        inter = cluster.between_groups
    return GroupPath(size, (width, domains), domain, group.intra_node, inter, _nics(group))


def _slowest(cluster: ClusterSpec) -> NodeGroup:
    return min(
        cluster.groups,
        key=lambda g: g.inter_node.bandwidth_bytes_per_s if g.inter_node else math.inf,
    )


def _nics(group: NodeGroup) -> float | None:
    return next((r.capacity for r in group.shared_resources if r.kind == "nic"), None)


def axes(layout: Layout) -> dict[str, tuple[int, int]]:
    """(size, stride) of every group of a layout, by name."""
    tp, cp, dp, pp = layout.tp, layout.cp, layout.dp, layout.pp
    per_stage = tp * cp * dp
    inside = layout.etp * layout.ep
    edp = max(1, per_stage // inside)
    shard = layout.zero_shard_degree
    expert_shard = min(layout.expert_zero_shard_degree, edp)
    # With the pipeline inside, neighbours in data are as far apart as whole pipelines.
    apart = pp if layout.rank_order == "tp-cp-pp-dp" else 1
    return {
        "tp": (tp, 1),
        "cp": (cp, tp),
        "ep": (layout.ep, layout.etp),
        "etp": (layout.etp, 1),
        "dp": (cp * dp, tp * apart),
        "edp": (edp, inside * apart),
        "shard": (shard, tp * apart),
        "replica": (cp * dp // max(1, shard), tp * shard * apart),
        "expert_shard": (expert_shard, inside * apart),
        "expert_replica": (edp // max(1, expert_shard), inside * expert_shard * apart),
        "pp": (2 if pp > 1 else 1, tp * cp if apart > 1 else per_stage),
        "world": (per_stage * pp, 1),
    }
