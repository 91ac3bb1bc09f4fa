"""Ports, and which of them a job's traffic takes."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.topology.adapters import (
    fabric_ports,
    rate_bytes_per_s,
    read_ports,
)
from shardwright.hardware_profiles.topology.readings import AdapterPort


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", 50e9),
        ("100000Mb/s", 12.5e9),
        ("100.0 Gbps (128)", 12.5e9),
        ("56", 7e9),
        ("Unknown!", None),
        ("", None),
    ],
)
def test_rates(text: str, rate: float | None) -> None:
    assert rate_bytes_per_s(text) == rate


def port(rate: float, layer: str = "InfiniBand", state: str = "Active") -> AdapterPort:
    return AdapterPort("mlx5_0", state, rate, layer)


def test_slower_and_idle_ports_are_not_the_fabric() -> None:
    fast, idle = port(50e9), port(50e9, state="Down")
    assert fabric_ports([port(12.5e9, "Ethernet"), fast, idle, fast]) == (fast, fast)
    assert fabric_ports([idle]) == ()


def test_infiniband_comes_first_unless_it_is_slower() -> None:
    native, roce = port(50e9), port(50e9, "Ethernet")
    assert fabric_ports([roce, native]) == (native,)
    assert fabric_ports([port(7e9), roce, roce]) == (roce, roce)


def test_other_texts_tell_of_no_adapter() -> None:
    assert read_ports("nothing here") is None
