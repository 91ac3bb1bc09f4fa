"""Quantities at the edge: text such as ``80 GiB`` or ``989 TFLOP/s`` to base units, and back.

Inside the project every number is in base units (bytes, seconds, FLOPs, per second) and its name
says so. ``GB`` is 1e9 bytes and ``GiB`` is 2**30 bytes, always; bits are written ``bit`` or ``b``.
"""

from __future__ import annotations

import re
from typing import Literal

from shardwright.specs.errors import InputError

Dimension = Literal["bytes", "bytes_per_s", "flops", "flops_per_s", "seconds", "watts", "count"]

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def _units_of(dimension: Dimension) -> dict[str, float]:
    """Every accepted unit text of a dimension with its factor to the base unit."""
    if dimension == "seconds":
        return {
            "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0,
        }  # fmt: skip
    if dimension == "watts":
        return {"W": 1.0, "kW": 1e3, "MW": 1e6}
    if dimension == "count":
        return {"": 1.0, "k": 1024.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
    if dimension in ("bytes", "bytes_per_s"):
        sizes = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()}
        sizes |= {f"{prefix}B": float(factor) for prefix, factor in _BINARY.items()}
        bits = {f"{prefix}{bit}": factor / 8 for prefix, factor in _DECIMAL.items()
                for bit in ("b", "bit")}  # fmt: skip
        sizes |= bits
    else:
        sizes = {f"{prefix}FLOP": factor for prefix, factor in _DECIMAL.items()}
        sizes |= {f"{prefix}FLOPs": factor for prefix, factor in _DECIMAL.items()}
    if dimension.endswith("_per_s"):
        return {f"{unit}/s": factor for unit, factor in sizes.items()}
    return sizes


_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*")


def parse(text: str, dimension: Dimension) -> float:
    """The value of ``text`` in the base unit of ``dimension``.

    A bare number is already in base units. ``count`` reads ``8k`` as 8192 (sequence lengths) and
    ``8K`` as 8000.

    Raises:
        InputError: no number, or a unit of another dimension.
    """
    match = _QUANTITY.fullmatch(text)
    units = _units_of(dimension)
    if match and not match[2]:
        return float(match[1])
    if match and match[2] in units:
        return float(match[1]) * units[match[2]]
    known = ", ".join(unit for unit in units if unit)
    raise InputError(
        f"{text!r} is not a quantity in {dimension.replace('_per_s', ' per second')}",
        fix=f"write a number and one of: {known}",
    )


def format_bytes(num_bytes: float) -> str:
    """Memory for people, binary: ``79.1 GiB``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def _format_decimal(value: float, unit: str) -> str:
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def format_rate(bytes_per_s: float) -> str:
    """Bandwidth for people, decimal: ``450 GB/s``."""
    return _format_decimal(bytes_per_s, "B/s")


def format_flops(flops_per_s: float) -> str:
    """Arithmetic rate for people, decimal: ``989 TFLOP/s``."""
    return _format_decimal(flops_per_s, "FLOP/s")


def format_seconds(seconds: float) -> str:
    """Time for people: ``3.42 s``, ``17.2 ms``, ``4.0 us``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def format_seconds_band(seconds: float, band_s: tuple[float, float]) -> str:
    """``3.42 s (3.08 - 3.76)``; the band's ends with their own unit where it differs."""
    middle, *ends = (format_seconds(value) for value in (seconds, *band_s))
    low, high = (end.removesuffix(middle[middle.index(" ") :]) for end in ends)
    return f"{middle} ({low} - {high})"
