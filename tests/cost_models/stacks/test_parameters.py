from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.stacks.parameters import STACK_PARAMETERS, device_rates
from shardwright.cost_models.stacks.rates import DeviceRates
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import GENERIC, stack_parameters
from shardwright.specs import InputError, SoftwareSpec, TrainingSpec


def rates(
    cluster: str,
    precision: str = "bf16",
    software: dict[str, Any] | None = None,
    more: dict[str, float] | None = None,
) -> DeviceRates:
    profile = resolve_cluster(cluster)
    training = TrainingSpec.model_validate(
        {"global_batch": 1, "seq_len": 64, "precision": precision}
    )
    chosen = SoftwareSpec(framework=GENERIC, **(software or {}))
    return device_rates(
        profile, training, chosen, stack_parameters(GENERIC, profile) | (more or {})
    )


def test_at_most_six_numbers_describe_a_stack() -> None:
    assert len(STACK_PARAMETERS) <= 6
    assert set(STACK_PARAMETERS) <= stack_parameters(GENERIC, resolve_cluster("dgx-h100:1")).keys()


def test_a_faster_device_is_faster_in_everything() -> None:
    slow, fast = rates("dgx-a100-80gb:1"), rates("dgx-h100:1")
    for field in ("matmul_flops_per_s", "attention_forward_flops_per_s", "memory_bytes_per_s"):
        assert getattr(fast, field) > getattr(slow, field)


def test_fp8_speeds_up_large_products_alone() -> None:
    wide, narrow = rates("dgx-h100:1"), rates("dgx-h100:1", "fp8-tensor")
    assert narrow.matmul_flops_per_s > 1.5 * wide.matmul_flops_per_s
    assert narrow.compute_flops_per_s == wide.compute_flops_per_s
    assert (narrow.matmul_bytes, narrow.item_bytes) == (1, 2)


def test_products_in_mxfp8_are_slower_than_with_coarser_scales() -> None:
    coarse, fine = rates("dgx-b200:1", "fp8-tensor"), rates("dgx-b200:1", "mxfp8")
    assert fine.matmul_flops_per_s == pytest.approx(coarse.matmul_flops_per_s / 1.072)
    assert fine.compute_flops_per_s == coarse.compute_flops_per_s


def test_the_sustained_clock_slows_products_and_attention_but_not_memory() -> None:
    full, slow = (rates("dgx-h100:1", more={"clock.sustained_ratio": r}) for r in (1.0, 0.5))
    assert slow.matmul_flops_per_s == full.matmul_flops_per_s / 2
    assert slow.attention_backward_flops_per_s == full.attention_backward_flops_per_s / 2
    assert slow.memory_bytes_per_s == full.memory_bytes_per_s


def test_an_older_attention_kernel_is_slower() -> None:
    new, old = (rates("dgx-h100:1", software={"attention_kernel": k}) for k in ("flash", "flash-2"))
    assert old.attention_ratio >= new.attention_ratio


def test_devices_without_bf16_take_their_fp16_rate() -> None:
    found = rates("v100-sxm2-32gb:8x1", "fp16")
    assert found.matmul_flops_per_s > 0


def test_a_precision_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="has no known rate for fp8 matrix products") as caught:
        rates("dgx-a100-80gb:1", "fp8-tensor", more={"matmul_efficiency.fp8": 0.5})
    assert "its profile knows" in str(caught.value)
