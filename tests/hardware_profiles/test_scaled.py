"""More of one thing changes that thing alone, and prices follow."""

from __future__ import annotations

import pytest

from shardwright.cost_models.pricing import stack_model
from shardwright.hardware_profiles.groups import group_profile
from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Point
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.scaled import QUANTITIES, Quantity, is_used, scaled
from shardwright.hardware_profiles.stacks import stack_facts, stack_parameters
from shardwright.planner.layouts import layout_of
from shardwright.planner.problem import Problem
from shardwright.specs import TrainingSpec
from shardwright.specs.sources import resolve_model

TWO_NODES = resolve_cluster("dgx-h100:2")


def facts(profile: HardwareProfile) -> dict[Quantity, float]:
    (group,) = profile.devices.groups
    device = group.accelerator
    assert group.inter_node is not None
    return {
        "flops_per_s": device.peak_flops_per_s["bf16"],
        "memory_bandwidth": device.memory_bandwidth_bytes_per_s,
        "memory": device.usable_memory_bytes,
        "intra_node_bandwidth": group.intra_node.bandwidth_bytes_per_s,
        "inter_node_bandwidth": group.inter_node.bandwidth_bytes_per_s,
    }


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_one_thing_changes_and_no_other(quantity: Quantity) -> None:
    before, after = facts(TWO_NODES), facts(scaled(TWO_NODES, quantity, 2.0))
    for name, value in before.items():
        assert after[name] == value * (2 if name == quantity else 1)


def test_each_group_of_several_keeps_its_clock() -> None:
    mixed = resolve_cluster("dgx-a100-80gb:1+dgx-1v-32gb:1,between=10Gbit/s")
    twice = scaled(mixed, "memory_bandwidth", 2.0)
    for index in range(2):
        before, after = (
            stack_parameters("generic", group_profile(profile, index))["clock.sustained_ratio"]
            for profile in (mixed, twice)
        )
        assert before == after
    line = scaled(mixed, "inter_node_bandwidth", 2.0).devices
    assert line.between_groups_total_bytes_per_s == 2.5e9


@pytest.mark.parametrize("quantity", [q for q in QUANTITIES if q != "memory"])
def test_more_of_anything_is_never_slower(quantity: Quantity) -> None:
    training = TrainingSpec(global_batch=64, seq_len=4096)
    software = stack_facts("generic").software
    model = resolve_model("llama-3-8b")
    layout = layout_of(
        Problem(model, training, TWO_NODES, software),
        {"tp": 4, "pp": 1, "dp": 4, "sequence_parallel": True, "zero": 1},
    )
    steps_s = [
        stack_model(model, training, scaled(TWO_NODES, quantity, factor), software).step_time_s(
            layout
        )
        for factor in (0.5, 1.0, 2.0)
    ]
    assert steps_s == sorted(steps_s, reverse=True)
    assert steps_s[0] > steps_s[2]
    same = stack_model(model, training, TWO_NODES, software).step_time_s(layout)
    assert steps_s[1] == same


@pytest.mark.parametrize(
    ("op", "group_shape", "quantity"),
    [
        ("matmul/forward@n=64,k=64", (1, 1), "flops_per_s"),
        ("attention/forward@head_dim=64,seq=128", (1, 1), "flops_per_s"),
        ("elementwise/rms_norm", (1, 1), "memory_bandwidth"),
        ("all_reduce", (2, 1), "intra_node_bandwidth"),
        ("all_reduce", (2, 2), "inter_node_bandwidth"),
    ],
)
def test_measured_seconds_are_divided(
    op: str, group_shape: tuple[int, int], quantity: Quantity
) -> None:
    curve = Curve(
        quantity="bytes", op=op, dtype="fp32", group_shape=group_shape,
        points=(Point(1.0, 2e-3, 1e-4, 3),),
    )  # fmt: skip
    measured = TWO_NODES.model_copy(update={"curves": (curve,)})
    for each in QUANTITIES:
        (found,) = scaled(measured, each, 2.0).curves
        expected = 1e-3 if each == quantity else 2e-3
        assert found.points[0].median_s == expected


def test_what_a_cluster_does_not_have_is_not_used() -> None:
    alone, node = resolve_cluster("dgx-h100", gpus=1), resolve_cluster("dgx-h100")
    assert not is_used(alone.devices, "intra_node_bandwidth")
    assert is_used(node.devices, "intra_node_bandwidth")
    assert not is_used(node.devices, "inter_node_bandwidth")
    assert is_used(TWO_NODES.devices, "inter_node_bandwidth")
