"""Reading profiles: monotone hulls, interpolation in logarithms, grids of curves, parameters.

A curve's points are stored raw. Pricing reads them through the monotone regression of their
logarithms (no size may cost less than a smaller one, so noise is averaged, not believed), between
points along a power law, above the last at its rate, below the first at its time.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Point
from shardwright.specs import InputError


def monotone(values: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to ``values`` in squares (pool adjacent violators).

    >>> monotone([1.0, 3.0, 2.0, 4.0])
    [1.0, 2.5, 2.5, 4.0]
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (first, n_first), (second, n_second) = pools[-2], pools[-1]
            count = n_first + n_second
            pools[-2:] = [((first * n_first + second * n_second) / count, count)]
    return [value for value, count in pools for _ in range(count)]


@dataclass(frozen=True, slots=True)
class SizeCurve:
    """Seconds by size, non-decreasing in the size."""

    sizes: tuple[float, ...]
    log_sizes: tuple[float, ...]
    log_seconds: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[Point]) -> SizeCurve:
        """The monotone hull of measured points; points of one size count once, as their mean."""
        by_size: dict[float, list[float]] = {}
        for point in points:
            by_size.setdefault(point.x, []).append(math.log(point.median_s))
        sizes = tuple(sorted(by_size))
        means = [sum(by_size[x]) / len(by_size[x]) for x in sizes]
        return cls(sizes, tuple(math.log(x) for x in sizes), tuple(monotone(means)))

    def log_at(self, size: float) -> float:
        """The logarithm of the seconds that ``size`` takes."""
        if size <= self.sizes[0]:
            return self.log_seconds[0]
        log_size = math.log(size)
        if size >= self.sizes[-1]:
            return self.log_seconds[-1] + log_size - self.log_sizes[-1]
        right = bisect_right(self.sizes, size)
        x0, x1 = self.log_sizes[right - 1], self.log_sizes[right]
        y0, y1 = self.log_seconds[right - 1], self.log_seconds[right]
        return y0 + (y1 - y0) * (log_size - x0) / (x1 - x0)

    def seconds(self, size: float) -> float:
        return math.exp(self.log_at(size))


@dataclass(frozen=True, slots=True)
class CurveGrid:
    """Curves over a grid of two shape extents, such as n and k of a matrix product.

    ``size_of(a, b)`` is the curve's x for one unit of the third extent (for a matrix product:
    2 x n x k FLOPs per row), so every corner is read at the same third extent.
    """

    curves: Mapping[tuple[int, int], SizeCurve]
    axes: tuple[tuple[int, ...], tuple[int, ...]]
    size_of: Callable[[int, int], int]

    @classmethod
    def of(
        cls, curves: Mapping[tuple[int, int], SizeCurve], size_of: Callable[[int, int], int]
    ) -> CurveGrid:
        axes = tuple(tuple(sorted({key[axis] for key in curves})) for axis in (0, 1))
        return cls(curves, (axes[0], axes[1]), size_of)

    def seconds(self, a: int, b: int, units: int) -> float:
        """Seconds for extents ``a`` and ``b`` and ``units`` of the third.

        Between grid lines along power laws in a and b; beyond the largest at its rate.
        """
        log_seconds = 0.0
        for (corner_a, weight_a), (corner_b, weight_b) in itertools.product(
            _neighbours(self.axes[0], a), _neighbours(self.axes[1], b)
        ):
            log_seconds += weight_a * weight_b * self._corner(corner_a, corner_b, units)
        inside = self.size_of(min(a, self.axes[0][-1]), min(b, self.axes[1][-1]))
        return math.exp(log_seconds) * self.size_of(a, b) / inside

    def _corner(self, a: int, b: int, units: int) -> float:
        """Log seconds at a grid point, or from the nearest measured one where it is missing."""
        curve = self.curves.get((a, b))
        if curve is not None:
            return curve.log_at(self.size_of(a, b) * units)
        key = min(self.curves, key=lambda at: (_distance(at, (a, b)), at))
        scale = self.size_of(a, b) / self.size_of(*key)
        return self.curves[key].log_at(self.size_of(*key) * units) + math.log(scale)


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    """How far apart two grid points are, in factors of e."""
    return sum(abs(math.log(a / b)) for a, b in zip(one, other, strict=True))


def _neighbours(axis: tuple[int, ...], value: int) -> tuple[tuple[int, float], ...]:
    """The grid lines around ``value`` with their weights in a logarithmic interpolation."""
    if value <= axis[0]:
        return ((axis[0], 1.0),)
    if value >= axis[-1]:
        return ((axis[-1], 1.0),)
    right = bisect_right(axis, value)
    low, high = axis[right - 1], axis[right]
    weight = math.log(value / low) / math.log(high / low)
    return ((low, 1.0 - weight), (high, weight)) if weight else ((low, 1.0),)


def shape_class(curve: Curve) -> tuple[str, dict[str, int]]:
    """Split ``matmul/forward@n=256,k=64`` into its operation and its extents."""
    op, _, text = curve.op.partition("@")
    pairs = (part.partition("=") for part in text.split(",") if part)
    return op, {name: int(value) for name, _, value in pairs}


class ParameterTable:
    """The named numbers of a profile that formulas read."""

    def __init__(self, profile: HardwareProfile, values: Mapping[str, float] | None = None) -> None:
        """``values``: in place of the profile's own, where given."""
        self._profile_name = profile.devices.name
        own = {parameter.name: parameter.value for parameter in profile.parameters}
        self._values = own if values is None else values

    def __getitem__(self, name: str) -> float:
        """Raises `InputError` where the profile measured no curve and states no such number."""
        if name in self._values:
            return self._values[name]
        raise InputError(
            f"the profile of {self._profile_name} can price no such operation:"
            f" it has neither a measured curve nor the parameter {name}",
            fix="profile the machine again, or add the parameter to the file",
        )

    def get(self, name: str) -> float | None:
        return self._values.get(name)
