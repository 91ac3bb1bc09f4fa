"""The same cluster with more or less of one thing: what if its network were twice as fast?

Links, rates and memory of every node group are multiplied, and so is what was measured of them: a
curve's seconds are divided, latency and all, since a faster part of the kind would be measured
faster. What a software stack reaches on a part (clocks, efficiencies) stays what it is there.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from shardwright.hardware_profiles.groups import group_parameter
from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Parameter
from shardwright.hardware_profiles.stacks import device_key, fitted
from shardwright.specs import ClusterSpec, LinkTier, NodeGroup

Quantity = Literal[
    "flops_per_s", "memory_bandwidth", "memory", "intra_node_bandwidth", "inter_node_bandwidth"
]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)

_CLOCK = "clock.sustained_ratio"
_COMPUTE = {"matmul": "flops_per_s", "attention": "flops_per_s", "elementwise": "memory_bandwidth"}
"""What the first word of a compute curve's operation is bound by."""


def scaled(profile: HardwareProfile, quantity: Quantity, factor: float) -> HardwareProfile:
    """The profile with ``factor`` times as much of one quantity on every node.

    ``inter_node_bandwidth`` is that of nodes and of node groups; ``memory`` the device's, of which
    ``usable_memory_bytes`` is what counts.
    """
    assert factor > 0, factor
    cluster = profile.devices
    groups = tuple(_group(group, quantity, factor) for group in cluster.groups)
    update: dict[str, Any] = {"groups": groups}
    if quantity == "inter_node_bandwidth" and cluster.between_groups is not None:
        update["between_groups"] = _link(cluster.between_groups, factor)
        total = cluster.between_groups_total_bytes_per_s
        update["between_groups_total_bytes_per_s"] = None if total is None else total * factor
    curves = tuple(_curve(curve, quantity, factor) for curve in profile.curves)
    parameters = _with_clock(profile) if quantity == "memory_bandwidth" else profile.parameters
    return profile.model_copy(
        update={
            "devices": cluster.model_copy(update=update),
            "curves": curves,
            "parameters": parameters,
        }
    )


def is_used(cluster: ClusterSpec, quantity: Quantity) -> bool:
    """Whether a cluster has such a thing: one device has no links, one node no network."""
    if quantity == "intra_node_bandwidth":
        return any(group.num_devices > 1 for group in cluster.groups)
    if quantity == "inter_node_bandwidth":
        return len(cluster.groups) > 1 or any(
            group.inter_node is not None and group.num_devices > group.scale_up_domain_gpus
            for group in cluster.groups
        )
    return True


def _group(group: NodeGroup, quantity: Quantity, factor: float) -> NodeGroup:
    device = group.accelerator
    if quantity == "intra_node_bandwidth":
        return group.model_copy(update={"intra_node": _link(group.intra_node, factor)})
    if quantity == "inter_node_bandwidth":
        if group.inter_node is None:
            return group
        return group.model_copy(update={"inter_node": _link(group.inter_node, factor)})
    update: dict[str, Any]
    if quantity == "flops_per_s":
        update = {
            "peak_flops_per_s": {
                dtype: rate * factor for dtype, rate in device.peak_flops_per_s.items()
            }
        }
    elif quantity == "memory_bandwidth":
        update = {"memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s * factor}
    else:
        update = {
            name: int(getattr(device, name) * factor)
            for name in ("memory_bytes", "usable_memory_bytes")
        }
    return group.model_copy(update={"accelerator": device.model_copy(update=update)})


def _link(tier: LinkTier, factor: float) -> LinkTier:
    pair = tier.pair_bandwidth_bytes_per_s
    return tier.model_copy(
        update={
            "bandwidth_bytes_per_s": tier.bandwidth_bytes_per_s * factor,
            "pair_bandwidth_bytes_per_s": None if pair is None else pair * factor,
        }
    )


def _curve(curve: Curve, quantity: Quantity, factor: float) -> Curve:
    if _bound_by(curve) != quantity:
        return curve
    points = tuple(
        point._replace(median_s=point.median_s / factor, spread_s=point.spread_s / factor)
        for point in curve.points
    )
    return curve.model_copy(update={"points": points})


def _bound_by(curve: Curve) -> str | None:
    """What a measured operation would be faster with; None for launches."""
    kind = curve.op.removeprefix("shared/").partition("@")[0].partition("/")[0]
    if kind in _COMPUTE:
        return _COMPUTE[kind]
    if math.prod(curve.group_shape) > 1:
        return "inter_node_bandwidth" if curve.group_shape[1] > 1 else "intra_node_bandwidth"
    return None


def _with_clock(profile: HardwareProfile) -> tuple[Parameter, ...]:
    """With the clock of each part as it is: parts are told apart by their memory's bandwidth."""
    stated, groups = {one.name for one in profile.parameters}, profile.devices.groups
    names = [_CLOCK] if len(groups) == 1 else [
        group_parameter(index, _CLOCK) for index in range(len(groups))
    ]  # fmt: skip
    kept = [
        _clock(group, name) for group, name in zip(groups, names, strict=True) if name not in stated
    ]
    return (*profile.parameters, *kept)


def _clock(group: NodeGroup, name: str) -> Parameter:
    known, device = fitted(), group.accelerator
    return Parameter(
        name=name, value=known.clocks.get(device_key(device), known.clock_population[0]), unit="1",
        kind="derived", fitted_from=f"the clock of {device.name} before it was scaled",
    )  # fmt: skip
