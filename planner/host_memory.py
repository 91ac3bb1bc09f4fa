"""Whether what a layout offloads fits the memory of the hosts."""

from __future__ import annotations

from shardwright.cost_models.stacks.step import StackModel
from shardwright.specs import Layout
from shardwright.specs.units import format_bytes


def host_overflow_in_words(pricer: StackModel, layout: Layout) -> str | None:
    """By how many bytes a node's ranks exceed its host memory; None where they fit, nothing is
    offloaded, or the host's memory is not known.

    A node is taken to hold ranks of the fullest pipeline rank alone, as nodes do where a stage
    fills one. Activations are not counted (`StackMemory.host_bytes`).
    """
    group = pricer.profile.devices.groups[0]
    if not layout.offload or group.host_memory_bytes is None:
        return None
    each = max(pricer.host_bytes(layout))
    needed, there = each * group.devices_per_node, group.host_memory_bytes
    if needed <= there:
        return None
    return (
        f"offloading {' and '.join(layout.offload)} takes {each:,} bytes of host memory a rank,"
        f" {needed:,} bytes ({format_bytes(needed)}) a node of {group.devices_per_node},"
        f" {needed - there:,} more than its {there:,} bytes ({format_bytes(there)})"
    )
