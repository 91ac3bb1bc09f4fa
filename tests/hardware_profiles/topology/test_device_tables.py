"""Boxes of devices: what the shared fixtures do not hold."""

from __future__ import annotations

from shardwright.hardware_profiles.topology.device_tables import read_device_table, read_link_rates
from tests.hardware_profiles.topology import samples

LONG = """\
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    MIG Mode
        Current                           : Enabled
    FB Memory Usage
        Total                             : 81920 MiB
        Used                              : 3 MiB
    GPU Power Readings
        Current Power Limit               : 400.00 W
"""


def test_the_long_form_of_nvidia_smi() -> None:
    found = read_device_table(LONG)
    assert found is not None
    kind, (row,) = found
    assert kind == "nvidia-smi -q"
    assert row.as_json() == {
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_mib": 81920,
        "power_w": 400.0,
    }
    assert row.is_sliced
    assert row.bus_id == "00000000:1B:00.0"


def test_slices_are_seen() -> None:
    assert all(device.is_sliced for device in samples.reading("box_h200_mig").devices)
    assert [d.is_sliced for d in samples.reading("names_only").devices] == [True, False]


def test_link_rates_are_of_the_first_device_with_links() -> None:
    text = "GPU 0: A (UUID: x)\n\t Link 0: <inactive>\nGPU 1: A (UUID: y)\n\t Link 0: 25 GB/s\n"
    assert read_link_rates(text) == (25e9,)
    assert read_link_rates("no links") == ()


def test_other_texts_list_no_devices() -> None:
    assert read_device_table("no devices") is None
