"""Text with units to base units, and back."""

from __future__ import annotations

import pytest

from shardwright.specs import InputError
from shardwright.specs.units import (
    Dimension,
    format_bytes,
    format_flops,
    format_rate,
    format_seconds,
    format_seconds_band,
    parse,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GB", "bytes", 80e9),
        ("80GiB", "bytes", 80 * 2**30),
        ("1.5 TB", "bytes", 1.5e12),
        ("512", "bytes", 512),
        ("8 bit", "bytes", 1),
        ("400 GB/s", "bytes_per_s", 400e9),
        ("400 Gbit/s", "bytes_per_s", 50e9),
        ("400Gb/s", "bytes_per_s", 50e9),
        ("2 GiB/s", "bytes_per_s", 2**31),
        ("989 TFLOP/s", "flops_per_s", 989e12),
        ("1e3 GFLOPs", "flops", 1e12),
        ("2.5 us", "seconds", 2.5e-6),
        ("60 d", "seconds", 60 * 86400),
        ("1.2 kW", "watts", 1200),
        ("8k", "count", 8192),
        ("8K", "count", 8000),
        ("1.5T", "count", 1.5e12),
        ("  .5 ms ", "seconds", 5e-4),
    ],
)
def test_parse(text: str, dimension: Dimension, value: float) -> None:
    assert parse(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("80 GB", "seconds"),
        ("80 GB/s", "bytes"),
        ("80 GB", "bytes_per_s"),
        ("-1 GB", "bytes"),
        ("GB", "bytes"),
        ("1 2 GB", "bytes"),
        ("80 gb", "bytes"),
        ("nan", "seconds"),
        ("", "count"),
    ],
)
def test_parse_refuses_other_units_and_names_the_right_ones(
    text: str, dimension: Dimension
) -> None:
    with pytest.raises(InputError, match="is not a quantity in") as caught:
        parse(text, dimension)
    assert caught.value.fix is not None
    assert "write a number and one of" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(84_943_715_696), "79.1 GiB"),
        (format_bytes(512), "512 B"),
        (format_bytes(3 * 2**40), "3.0 TiB"),
        (format_bytes(2**10), "1.0 KiB"),
        (format_rate(450e9), "450 GB/s"),
        (format_flops(989e12), "989 TFLOP/s"),
        (format_flops(12), "12 FLOP/s"),
        (format_seconds(3.4217), "3.42 s"),
        (format_seconds(0.0172), "17.2 ms"),
        (format_seconds_band(3.42, (3.08, 3.76)), "3.42 s (3.08 - 3.76)"),
        (format_seconds_band(1.1, (0.9, 1.2)), "1.1 s (900 ms - 1.2)"),
        (format_seconds(4e-6), "4 us"),
        (format_seconds(7e-9), "7 ns"),
    ],
)
def test_format(text: str, expected: str) -> None:
    assert text == expected
