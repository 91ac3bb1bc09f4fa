"""What varies: ``gpus=64,128,256``, ``gpus=64..1024:64``, ``inter_node_bandwidth=50%,100%,200%``.

| name | values |
|---|---|
| model, cluster, precision, optimizer, gradient_dtype, trainable, stack | as for the options |
| gpus, nodes, layers | counts |
| seq_len, global_batch, tokens | counts; 8k = 8192, 15T = 15e12 |
| flops, memory, memory_bandwidth, intra_node_bandwidth, inter_node_bandwidth | of the cluster's \
own: 50%, 200%, 1.5x; or what it shall be: 100GiB, 400GB/s |
| every choice of a layout (tp, pp, micro_batch, zero, ...) | as in ``--fix`` |
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.planner.layout_text import ALIASES, NAMES, unknown_name
from shardwright.specs.errors import InputError
from shardwright.specs.units import Dimension, parse

MOST_POINTS = 100_000
COUNTED = ("gpus", "nodes", "layers", "seq_len", "global_batch", "tokens")
"""Parameters whose values are whole numbers, so that ranges of them can be written."""
WORDS = ("model", "cluster", "precision", "optimizer", "gradient_dtype", "trainable", "stack")
SCALED: dict[str, Dimension] = {
    "flops": "flops_per_s",
    "memory": "bytes",
    "memory_bandwidth": "bytes_per_s",
    "intra_node_bandwidth": "bytes_per_s",
    "inter_node_bandwidth": "bytes_per_s",
}
"""Quantities of the cluster, with the dimension of what they may be set to."""
CHOICES = NAMES
PARAMETERS = (*COUNTED, *WORDS, *SCALED, *CHOICES)

_OTHER_NAMES = {
    **ALIASES, "gpu": "gpus", "batch": "global_batch", "sequence": "seq_len",
    "num_layers": "layers", "flops_per_s": "flops",
}  # fmt: skip
_RANGE = re.compile(r"([^.:]+)\.\.([^.:]+)(?::(x?)([^:]+))?")
_FACTOR = re.compile(r"([0-9]*\.?[0-9]+)(%|x)")


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter and the values that it takes, as text, in the order given."""

    name: str
    values: tuple[str, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether each value has a positive number, all in one unit, so that it has slopes."""
        if len({self.name in SCALED and factor_of(value) is None for value in self.values}) > 1:
            return False
        return all((number_of(self.name, value) or 0) > 0 for value in self.values)


def parse_vary(text: str) -> Axis:
    """``name=value,value`` or ``name=first..last[:step]`` (``:x2`` doubles).

    Raises:
        InputError: no name or an unknown one; no value, one that cannot be read, or one twice.
    """
    name, equals, values = text.partition("=")
    if not equals:
        raise InputError(
            f"{text!r} does not say what varies", fix="write name=values, such as gpus=64,128,256"
        )
    parts = [part.strip() for part in _split(values) if part.strip()]
    return axis_of(name.strip(), parts)


def axis_of(name: str, values: Iterable[object]) -> Axis:
    """The axis of a parameter and values given as text or Python values; raises `InputError`."""
    known = _OTHER_NAMES.get(name, name)
    if known not in PARAMETERS:
        raise unknown_name(name, [*PARAMETERS, *_OTHER_NAMES], what="parameter that can vary")
    found: list[str] = []
    for value in values:
        found += _expanded(known, str(value).strip())
    if not found:
        raise InputError(f"{name} has no values", fix=f"write {name}=VALUE,VALUE,...")
    value, times = Counter(found).most_common(1)[0]
    if times > 1:
        raise InputError(f"{name} = {value} is given {times} times", fix="give it once")
    for value in found:
        _check(known, value)
    return Axis(known, tuple(found))


def axes_of(given: Iterable[str] | Mapping[str, Iterable[object]]) -> tuple[Axis, ...]:
    """Several axes, each of another parameter; raises `InputError`."""
    if isinstance(given, Mapping):
        axes = tuple(
            axis_of(name, [values] if isinstance(values, str | int | float) else values)
            for name, values in given.items()
        )
    else:
        axes = tuple(parse_vary(text) for text in given)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"{name} is varied {names.count(name)} times",
                fix=f"write {name} once, with all values",
            )
    if {"gpus", "nodes"} <= set(names):
        raise InputError("gpus and nodes both vary", fix="vary one of the two")
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        raise InputError(
            f"that makes {count:,} points, more than {MOST_POINTS:,}", fix="vary less at once"
        )
    return axes


def product(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Every combination, the last axis fastest; one empty combination where nothing varies."""
    names = [axis.name for axis in axes]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def number_of(name: str, value: str) -> float | None:
    """A value as a number, percentages as fractions; None for words."""
    if name in SCALED:
        factor = factor_of(value)
        return parse(value, SCALED[name]) if factor is None else factor
    if name in COUNTED:
        return parse(value, "count")
    return float(value) if value.isascii() and value.isdigit() else None


def factor_of(value: str) -> float | None:
    """``50%`` as 0.5, ``2x`` as 2; None for what is no multiple of the cluster's own."""
    match = _FACTOR.fullmatch(value)
    if match is None:
        return None
    return float(match[1]) / (100 if match[2] == "%" else 1)


def _split(values: str) -> list[str]:
    """At commas, but not inside an inline cluster's own options (``h100:8x2,inter=400GB/s``)."""
    parts: list[str] = []
    for part in values.split(","):
        is_option = bool(parts) and re.fullmatch(r"\s*(memory|intra|inter)=.*", part)
        parts[-1:] = [f"{parts[-1]},{part}"] if is_option else [*parts[-1:], part]
    return parts


def _expanded(name: str, value: str) -> list[str]:
    """The values of a range, both ends included where steps reach them; other text as it is."""
    match = _RANGE.fullmatch(value)
    if match is None or name in WORDS:
        return [value]
    if name in SCALED or not (name in COUNTED or match[1].isdigit()):
        raise InputError(f"{name} = {value}: a range needs whole numbers", fix="list its values")
    first, last = (_count(name, match[part]) for part in (1, 2))
    step = 1 if match[4] is None else _count(name, match[4])
    times = match[3] == "x"
    if last < first or (times and step < 2):
        raise InputError(
            f"{name} = {value} is no range", fix="write first..last:step, such as 64..1024:64"
        )
    counts: list[int] = []
    at = first
    while at <= last and len(counts) <= MOST_POINTS:
        counts.append(at)
        at = at * step if times else at + step
    return [str(count) for count in counts]


def _count(name: str, text: str) -> int:
    value = parse(text.strip(), "count")
    if value < 1 or value != int(value):
        raise InputError(f"{name} = {text} is not a count", fix="write a whole number from 1")
    return int(value)


def _check(name: str, value: str) -> None:
    """Refuse a value that can be seen to be wrong without a model or a cluster."""
    if name in COUNTED:
        _count(name, value)
    elif name in SCALED:
        number = number_of(name, value)
        if number is None or not 0 < number < math.inf:
            raise InputError(
                f"{name} = {value} is not possible", fix="write a part such as 50%, or 200%"
            )
