"""The text of bounds: ``tp<=4,pp>=2,micro_batch<=2,peak_memory<=70GiB``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from shardwright.planner.layout_text import ALIASES, DEGREES, unknown_name
from shardwright.planner.problem import PEAK_MEMORY, Bound, ChoiceValue
from shardwright.specs import InputError
from shardwright.specs.units import format_bytes, parse

BOUNDABLE = (*DEGREES, "micro_batch", "num_microbatches", "zero", "loss_chunks", PEAK_MEMORY)
"""What has an order and is searched, or follows from what is."""

_BOUND = re.compile(r"\s*(\w+)\s*(<=|>=|==|=|<|>)\s*(\S.*?)\s*")


def parse_bounds(text: str) -> tuple[Bound, ...]:
    """``tp<=4,pp>=2`` as bounds, in the order in which they are written.

    Raises:
        InputError: a part that is no bound, a name that has no order, an impossible value, or two
            bounds that leave nothing between them.
    """
    parts = filter(None, (part.strip() for part in text.split(",")))
    bounds = tuple(_parse_bound(part) for part in parts)
    for low in bounds:
        for high in bounds:
            if low.name == high.name and low.sign == ">=" and high.sign == "<=":
                _check_order(low, high)
    return bounds


def _parse_bound(part: str) -> Bound:
    match = _BOUND.fullmatch(part)
    if match is None or match[2] not in ("<=", ">="):
        raise InputError(
            f"{part!r} is not a bound", fix="write name<=value or name>=value, such as tp<=4,pp>=2"
        )
    name = ALIASES.get(match[1], match[1])
    if name not in BOUNDABLE:
        raise unknown_name(match[1], BOUNDABLE, what="number of a layout that can be bounded")
    sign: Literal["<=", ">="] = "<=" if match[2] == "<=" else ">="
    if name == PEAK_MEMORY:
        return _parse_memory(part, sign, match[3])
    if not (match[3].isascii() and match[3].isdigit() and len(match[3]) <= 9):
        raise InputError(f"{part!r} bounds {name} by no count", fix=f"write {name}{sign}4")
    return Bound(name, sign, int(match[3]))


def _parse_memory(part: str, sign: str, text: str) -> Bound:
    if sign == ">=":
        raise InputError(
            f"{part!r} asks for a layout that needs more memory than it could",
            fix=f"write {PEAK_MEMORY}<=70GiB",
        )
    value = parse(text, "bytes")
    if value <= 0:
        raise InputError(f"{part!r} leaves no memory", fix=f"write {PEAK_MEMORY}<=70GiB")
    return Bound(PEAK_MEMORY, "<=", value)


def _check_order(low: Bound, high: Bound) -> None:
    if low.value > high.value:
        raise InputError(
            f"no {low.name} is both >= {low.value:g} and <= {high.value:g}",
            fix=f"raise the upper bound to {low.value:g}, or lower the other to {high.value:g}",
        )


def bounds_in_words(bounds: Iterable[Bound]) -> str:
    """``tp <= 4, peak_memory <= 70.0 GiB``."""
    return ", ".join(
        f"{bound.name} {bound.sign} {format_bytes(bound.value)}"
        if bound.name == PEAK_MEMORY
        else str(bound)
        for bound in bounds
    )


def bounds_text(bounds: Iterable[Bound]) -> str:
    """What `parse_bounds` reads."""
    return ",".join(f"{bound.name}{bound.sign}{bound.value:.15g}" for bound in bounds)


def nothing_between(bounds: Sequence[Bound], values: Iterable[ChoiceValue]) -> InputError:
    """The error for bounds on one name that no value of the space keeps, with the nearest."""
    name = bounds[0].name
    known = sorted(value for value in set(values) if isinstance(value, int))
    shown = ", ".join(map(str, known[:12])) + (", ..." if len(known) > 12 else "")
    broken = next((b for b in bounds if not any(map(b.allows, known))), bounds[0])
    close = sorted(known, key=lambda value: (abs(value - broken.value), value))[:2]
    return InputError(
        f"no layout has {bounds_in_words(bounds)}",
        why=f"with what else was asked, {name} is one of: {shown}",
        fix=f"bound {name} so that {' or '.join(map(str, sorted(close)))} is left",
    )
