"""Prices, powers and failure rates: each with its source, none invented."""

from __future__ import annotations

import re

import pytest

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.economics import power_of, price_of, reliability_facts


def test_a_node_with_its_own_price_has_that_one() -> None:
    price = price_of(catalogue.node("aws-p5.48xlarge"))
    assert price is not None
    assert (price.usd_per_gpu_hour, price.low_usd_per_gpu_hour) == (6.88, 6.88)
    assert "2025-06" in price.source


def test_without_one_the_middle_of_dated_offers_stands_in() -> None:
    price = price_of(catalogue.node("dgx-h100"))
    assert price is not None
    offers = sorted(
        row.usd_per_gpu_hour
        for row in catalogue.prices()
        if row.accelerator == "h100-sxm5-80gb" and row.price_kind.startswith("on-demand")
    )
    assert price.low_usd_per_gpu_hour == offers[0]
    assert price.high_usd_per_gpu_hour == offers[-1]
    assert offers[0] < price.usd_per_gpu_hour < offers[-1]
    assert f"median of {len(offers)} dated offers" in price.source
    assert len(re.findall(r"20\d\d", price.source)) >= 2


def test_a_price_that_the_user_wrote_is_named_as_such() -> None:
    group = catalogue.node("aws-p5.48xlarge").model_copy(update={"usd_per_gpu_hour": 2.0})
    price = price_of(group)
    assert price is not None
    assert (price.usd_per_gpu_hour, price.source) == (2.0, "as stated for aws-p5.48xlarge")


def test_no_price_where_nobody_offers_the_accelerator() -> None:
    assert price_of(catalogue.node("mtt-s5000-8gpu")) is None


def test_the_host_draws_what_the_node_does_beyond_its_devices() -> None:
    power = power_of(catalogue.node("dgx-h100"))
    assert power is not None
    assert power.host_watts is not None
    assert power.device_watts == 700
    assert power.host_watts == pytest.approx(10200 / 8 - 700)
    assert "host's share" in power.source


def test_an_unstated_host_is_said_and_not_guessed() -> None:
    power = power_of(catalogue.node("aws-p5.48xlarge"))
    assert power is not None
    assert power.host_watts is None
    assert "not stated" in power.source


def test_no_power_where_the_vendor_states_no_limit() -> None:
    assert power_of(catalogue.node("mtt-s5000-8gpu")) is None


def test_no_host_draws_less_than_nothing() -> None:
    for slug in catalogue.list_nodes():
        power = power_of(catalogue.node(slug))
        assert power is None or (power.host_watts or 0) >= 0


def test_the_failure_rate_is_that_of_llama_3() -> None:
    facts = reliability_facts()
    assert facts.device_mtbf_s == pytest.approx(16384 * 54 * 86400 / 419, rel=1e-4)
    assert "419" in facts.device_mtbf_source
    assert (facts.checkpoint_s, facts.restart_s) == (40, 660)
