"""What crosses from one node group to another: messages of pipelines, and sums of gradients.

A group's ranks share a trunk to the others, as large as their own links to it, their nodes'
networks and what the cluster states in all:

    message      latency + bytes / rate
    exchange     2 (k - 1) latency + 2 (k - 1) / k bytes / rate, a ring over k sets of replicas

Both directions of a trunk carry traffic at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwright.hardware_profiles.groups import network_bytes_per_s
from shardwright.specs import ClusterSpec


class Trunks:
    """Prices traffic between the groups of one cluster."""

    def __init__(self, cluster: ClusterSpec, parameters: Sequence[Mapping[str, float]]) -> None:
        """``parameters``: of each group; see `cost_models.stacks.parameters`."""
        self._cluster, self._parameters = cluster, parameters

    @property
    def latency_s(self) -> float:
        """From any group to any other."""
        tier = self._cluster.between_groups
        return 0.0 if tier is None else tier.latency_s

    def bytes_per_s(self, num_devices: Mapping[int, int]) -> float:
        """What traffic through these groups reaches, so many of whose devices send or receive."""
        tier = self._cluster.between_groups
        assert tier is not None
        total = self._cluster.between_groups_total_bytes_per_s
        rates = [] if total is None else [total]
        for index, count in num_devices.items():
            rates.append(count * tier.bandwidth_bytes_per_s)
            own = network_bytes_per_s(self._cluster.groups[index], count)
            rates += [] if own is None else [own]
        efficiency = min(
            self._parameters[index]["collective_efficiency.inter_node"] for index in num_devices
        )
        return min(rates) * efficiency

    def message_s(
        self, num_bytes: float, num_devices: Mapping[int, int], num_crossings: int = 1
    ) -> float:
        """``num_bytes`` in all, where a group on the way has so many such boundaries."""
        return self.latency_s + num_bytes * num_crossings / self.bytes_per_s(num_devices) * (
            self._ratio(num_devices)
        )

    def exchange_s(self, num_bytes: float, num_devices: Mapping[int, int], num_sets: int) -> float:
        """Summing ``num_bytes`` that each of several sets of replicas has."""
        if num_sets == 1 or not num_bytes:
            return 0.0
        share = 2 * (num_sets - 1) / num_sets
        seconds = share * num_bytes / self.bytes_per_s(num_devices) * self._ratio(num_devices)
        return 2 * (num_sets - 1) * self.latency_s + seconds

    def _ratio(self, num_devices: Mapping[int, int]) -> float:
        return max(self._parameters[index]["stack.collective_ratio"] for index in num_devices)
