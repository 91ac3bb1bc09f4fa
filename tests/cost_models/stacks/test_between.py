"""Traffic between node groups: the narrowest part of the way, with its latency."""

from __future__ import annotations

import pytest

from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.between import Trunks
from shardwright.hardware_profiles.groups import group_profile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import SoftwareSpec, TrainingSpec
from shardwright.specs.sources import resolve_model

GIGABIT = 1e9 / 8


def trunks(text: str) -> tuple[Trunks, float, float]:
    """With the efficiency and the ratio that both of its groups have."""
    profile = resolve_cluster(text)
    training = TrainingSpec(global_batch=8, seq_len=1024, precision="fp16")
    models = [
        stack_model(
            resolve_model("gpt2"), training, group_profile(profile, index),
            SoftwareSpec(framework="generic"),
        ).parameters
        for index in range(len(profile.devices.groups))
    ]  # fmt: skip
    efficiency = min(one["collective_efficiency.inter_node"] for one in models)
    ratio = max(one["stack.collective_ratio"] for one in models)
    return Trunks(profile.devices, models), efficiency, ratio


def test_the_line_limits_what_many_devices_send() -> None:
    found, efficiency, _ = trunks("dgx-a100-80gb:2+dgx-a100-80gb:1,between=10Gbit/s")
    assert found.bytes_per_s({0: 16, 1: 8}) == pytest.approx(10 * GIGABIT * efficiency)


def test_without_a_line_the_devices_that_send_limit() -> None:
    found, efficiency, _ = trunks("dgx-a100-80gb:2+dgx-a100-80gb:1")
    one, two = found.bytes_per_s({0: 1, 1: 1}), found.bytes_per_s({0: 2, 1: 2})
    assert two == pytest.approx(2 * one)
    link = resolve_cluster("dgx-a100-80gb:2").devices.groups[0].inter_node
    assert link is not None
    assert one == pytest.approx(link.bandwidth_bytes_per_s * efficiency)


def test_a_message_waits_for_others_on_its_way() -> None:
    found, efficiency, ratio = trunks("dgx-a100-80gb:1+dgx-1v-32gb:1,between=10Gbit/s,latency=5ms")
    counts = {0: 8, 1: 8}
    alone, shared = found.message_s(1e9, counts), found.message_s(1e9, counts, 2)
    wire_s = 1e9 / (10 * GIGABIT * efficiency) * ratio
    assert alone == pytest.approx(5e-3 + wire_s)
    assert shared == pytest.approx(5e-3 + 2 * wire_s)


def test_an_exchange_is_a_ring_over_sets_of_replicas() -> None:
    found, efficiency, ratio = trunks("dgx-a100-80gb:1+dgx-1v-32gb:1,between=10Gbit/s,latency=5ms")
    counts = {0: 8, 1: 8}
    wire_s = 1e9 / (10 * GIGABIT * efficiency) * ratio
    assert found.exchange_s(1e9, counts, 1) == 0.0
    assert found.exchange_s(1e9, counts, 2) == pytest.approx(2 * 5e-3 + wire_s)
    assert found.exchange_s(1e9, counts, 3) == pytest.approx(4 * 5e-3 + 4 / 3 * wire_s)
