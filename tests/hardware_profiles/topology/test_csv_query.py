"""Comma-separated queries without titles: columns by what they look like."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.topology.csv_query import read_csv


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("0, NVIDIA L4, 23034, 72.00", ("NVIDIA L4", 23034, None)),
        ("A100-SXM4-80GB, 81920 MiB, 8.0, 580.105.08", ("A100-SXM4-80GB", 81920, None)),
        ("0, 42 %, 32768 MiB, 99 MiB, 71, 189.65 W, 250.00 W, 250.00 W", (None, 32768, 250.0)),
        ("NVIDIA H200, 143771 MiB, 88.10 W, 700.00 W", ("NVIDIA H200", 143771, 700.0)),
        ("Tesla V100-SXM2-32GB", ("Tesla V100-SXM2-32GB", None, None)),
        ("00000000:0F:00.0, Tesla T4, 15360 MiB", ("Tesla T4", 15360, None)),
    ],
)
def test_a_row_without_titles(line: str, row: tuple[str | None, int | None, float | None]) -> None:
    (found,) = read_csv(line)
    assert tuple(found.as_json().values()) == row


@pytest.mark.parametrize(
    "text",
    ["GPU0     X      NV4     0,2,4,6,8,10    0", "a, b, c", "| 1 | 2 MiB |", "1, 2", ""],
)
def test_other_texts_hold_no_devices(text: str) -> None:
    assert read_csv(text) == ()


@pytest.mark.parametrize(
    ("slot", "rate"),
    [("5, 16", 16 * 3.938e9), ("4, 8", 8 * 1.969e9), ("[N/A], 16", None), ("9, 16", None)],
)
def test_slots(slot: str, rate: float | None) -> None:
    (row,) = read_csv(f"name, pcie.link.gen.max, pcie.link.width.max\nNVIDIA L40S, {slot}\n")
    assert row.host_bytes_per_s == rate
