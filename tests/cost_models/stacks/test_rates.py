"""Rates of single operations: roofs, monotony, and shapes that tiles do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwright.cost_models.stacks.operations import FlashAttention, Product, Traffic
from shardwright.cost_models.stacks.parameters import device_rates
from shardwright.cost_models.stacks.rates import DeviceRates
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import GENERIC, stack_parameters
from shardwright.specs import SoftwareSpec, TrainingSpec

PROFILE = resolve_cluster("dgx-h100:1")
RATES: DeviceRates = device_rates(
    PROFILE, TrainingSpec(global_batch=1, seq_len=1024), SoftwareSpec(framework=GENERIC),
    stack_parameters(GENERIC, PROFILE),
)  # fmt: skip
BIG = Product(8192, 8192, 8192)


def test_no_product_beats_the_device() -> None:
    for n in (64, 1000, 4096, 16384):
        op = Product(n, n, n)
        assert RATES.product(op) >= op.flops / RATES.matmul_flops_per_s * RATES.compute_ratio


def test_large_products_come_near_it() -> None:
    best = BIG.flops / RATES.matmul_flops_per_s * RATES.compute_ratio
    assert best < RATES.product(BIG) < 1.15 * best


def larger(axis: str, size: int) -> Product:
    changes: dict[str, Any] = {axis: size}
    return BIG._replace(**changes)


@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_larger_products_never_take_less(axis: str) -> None:
    """At multiples of the largest tile. Between these a ragged edge may choose other tiles."""
    sizes = [256 * n for n in range(1, 40)]
    found = [RATES.product(larger(axis, size)) for size in sizes]
    assert found == sorted(found)


def test_a_ragged_edge_costs_more_than_it_computes() -> None:
    even, ragged = Product(4096, 4096, 4096), Product(4096 + 8, 4096, 4096)
    assert RATES.product(ragged) / RATES.product(even) > ragged.flops / even.flops


def test_thin_products_are_held_up_by_memory() -> None:
    thin = Product(1, 8192, 8192)
    moved = 2.0 * 8192 * 8192
    assert RATES.product(thin) > moved / RATES.memory_bytes_per_s


def test_the_wide_dtype_is_slower_where_matmuls_are_narrow() -> None:
    narrow = replace(RATES, matmul_flops_per_s=2 * RATES.compute_flops_per_s, matmul_bytes=1)
    assert narrow.product(BIG) < narrow.product(BIG._replace(width="compute"))
    assert RATES.product(BIG) == RATES.product(BIG._replace(width="compute"))


@pytest.mark.parametrize("field", ["matmul_flops_per_s", "memory_bytes_per_s"])
def test_a_better_device_is_never_slower(field: str) -> None:
    operations = [BIG, Product(4096, 512, 64, 8), Product(1, 4096, 4096)]
    better = replace(RATES, **{field: 2 * getattr(RATES, field)})
    for op in operations:
        assert better.product(op) <= RATES.product(op)


def flash(**changes: Any) -> FlashAttention:
    return FlashAttention(1, 32, 4096, 4096, 128, 128, 0.5, backward=False)._replace(**changes)


def test_attention_does_its_flops_at_most_at_its_rate() -> None:
    for backward, rate in (
        (False, RATES.attention_forward_flops_per_s),
        (True, RATES.attention_backward_flops_per_s),
    ):
        op = flash(backward=backward)
        assert RATES.attention(op) > op.flops / rate * RATES.attention_ratio


def test_short_sequences_are_less_efficient() -> None:
    def rate(length: int) -> float:
        op = flash(seq_q=length, seq_kv=length)
        return op.flops / (RATES.attention(op) - RATES.gap_s)

    found = [rate(length) for length in (512, 2048, 8192, 32768)]
    assert found == sorted(found)


def test_element_wise_work_is_bytes_over_bandwidth() -> None:
    found = RATES.traffic(Traffic(3e9)) - RATES.traffic(Traffic(0.0))
    assert found == pytest.approx(3e9 * RATES.traffic_ratio / RATES.memory_bytes_per_s)


@pytest.mark.parametrize(
    ("field", "op"),
    [("compute_ratio", BIG), ("attention_ratio", flash()), ("traffic_ratio", Traffic(1e9))],
)
def test_software_stretches_its_own_kind(
    field: str, op: Product | FlashAttention | Traffic
) -> None:
    def took(rates: DeviceRates) -> float:
        if isinstance(op, Product):
            return rates.product(op)
        return rates.traffic(op) if isinstance(op, Traffic) else rates.attention(op)

    slow = replace(RATES, **{field: 2 * getattr(RATES, field)})
    assert took(slow) == pytest.approx(2 * took(RATES), rel=0.02)
