"""What an operation costs on one rank: measured curves where there are any, else a roofline.

Measured (`CurveGrid`): matrix products by form (forward, input gradient, weight gradient), n, k and
rows; attention by direction, head dim and sequence length; element-wise operations by their own
name, else by their bytes on the generic curve. Curves measured with several ranks busy at once
say how much slower each kind gets then.

Formula, for hardware known from datasheets alone: the larger of arithmetic (with tile and wave
quantisation) and memory time, plus the launches. Every number comes from the profile's parameters,
whose names `hardware_profiles.catalogue` lists.
"""

from __future__ import annotations

import math
from collections import defaultdict

from shardwright.cost_models.blocks.operations import Attention, Elementwise, Matmul, dtype_bytes
from shardwright.cost_models.curves import CurveGrid, ParameterTable, SizeCurve, shape_class
from shardwright.hardware_profiles.profile import Curve, HardwareProfile
from shardwright.specs import InputError, SoftwareSpec
from shardwright.specs.training import DType

ComputeOperation = Matmul | Attention | Elementwise

COMPUTE_RATIO = "correction.compute_ratio"
"""Parameter: time of operations in training steps over that of the same ones measured alone. A
trial finds it; absent: 1."""

MATMUL_FORMS = ("forward", "input_gradient", "weight_gradient")
"""What the last part of a `Matmul`'s name may be; any other is priced as ``forward``."""


class ComputeModel:
    """Prices operations on one rank of a profiled or catalogued cluster.

    Raises:
        InputError: the profile neither measured an operation's dtype nor knows its peak.
    """

    def __init__(self, profile: HardwareProfile, software: SoftwareSpec) -> None:
        curves = [curve for curve in profile.curves if curve.group_shape == (1, 1)]
        alone = [curve for curve in curves if curve.concurrency == 1]
        self._profile_name = profile.devices.name
        self._matmuls = _grids(alone, "matmul", ("n", "k"))
        self._attentions = _grids(alone, "attention", ("head_dim", "seq"))
        self._elementwise = _named_curves(alone)
        self._generic = {
            dtype: curve for (op, dtype), curve in self._elementwise.items() if op == "elementwise"
        }
        self._sharing = CoreSharing(curves)
        self._roofline = Roofline(profile, software)
        self._ratio = ParameterTable(profile).get(COMPUTE_RATIO) or 1.0
        self._cache: dict[tuple[ComputeOperation, int], float] = {}

    def seconds(self, operation: ComputeOperation, busy_ranks: int = 1) -> float:
        """Wall time of one operation while ``busy_ranks`` ranks of the node compute at once."""
        key = (operation, busy_ranks)
        cached = self._cache.get(key)
        if cached is None:
            cached = self._cache[key] = self._ratio * self._price(operation, busy_ranks)
        return cached

    def _price(self, operation: ComputeOperation, busy_ranks: int) -> float:
        assert busy_ranks >= 1, busy_ranks
        match operation:
            case Matmul():
                alone = self._matmul(operation)
                return alone * self._sharing.slowdown("matmul", busy_ranks, operation.flops)
            case Attention():
                alone = self._attention(operation)
                return alone * self._sharing.slowdown("attention", busy_ranks, operation.flops)
            case Elementwise():
                alone = self._elementwise_seconds(operation)
                size = operation.num_bytes
                return alone * self._sharing.slowdown("elementwise", busy_ranks, size)

    def _matmul(self, matmul: Matmul) -> float:
        grid = self._matmuls.get((f"matmul/{matmul_form(matmul)}", matmul.dtype))
        if grid is None:
            return self._roofline.matmul(matmul)
        return matmul.batch * grid.seconds(matmul.n, matmul.k, matmul.m)

    def _attention(self, attention: Attention) -> float:
        direction = "backward" if attention.backward else "forward"
        grid = self._attentions.get((f"attention/{direction}", attention.dtype))
        if grid is None:
            return self._roofline.attention(attention)
        seq = max(1, round(math.sqrt(attention.seq_q * attention.seq_kv)))
        return grid.seconds(attention.head_dim, seq, attention.batch * attention.heads)

    def _elementwise_seconds(self, operation: Elementwise) -> float:
        named = self._elementwise.get((f"elementwise/{operation.name}", operation.dtype))
        if named is not None:
            return named.seconds(operation.num_bytes)
        generic = self._generic.get(operation.dtype) or next(iter(self._generic.values()), None)
        if generic is None:
            return self._roofline.elementwise(operation)
        further_launches = (operation.kernels - 1) * generic.seconds(0)
        return generic.seconds(operation.num_bytes) + further_launches


class CoreSharing:
    """How much slower an operation gets while several ranks of a node compute at once."""

    def __init__(self, curves: list[Curve]) -> None:
        """Of ``curves`` those count that are named ``shared/{kind}``."""
        self._ratios: dict[tuple[str, int], list[tuple[SizeCurve, SizeCurve]]] = defaultdict(list)
        shared = [curve for curve in curves if curve.op.startswith("shared/")]
        alone = {(c.op, c.dtype): SizeCurve.of(c.points) for c in shared if c.concurrency == 1}
        for curve in shared:
            kind = curve.op.partition("/")[2]
            pair = SizeCurve.of(curve.points), alone[curve.op, curve.dtype]
            self._ratios[kind, curve.concurrency].append(pair)
        self._measured = {
            kind: sorted(busy for of, busy in self._ratios if of == kind)
            for kind, _ in self._ratios
        }

    def slowdown(self, kind: str, busy_ranks: int, size: float) -> float:
        """Time with ``busy_ranks`` busy over time alone; 1 where sharing was not measured.

        Beyond the most ranks measured the cores are fully shared: in proportion to the ranks.
        """
        measured = self._measured.get(kind)
        if busy_ranks == 1 or not measured:
            return 1.0
        below = max(busy for busy in measured if busy <= busy_ranks)
        above = min((busy for busy in measured if busy >= busy_ranks), default=None)
        low = self._ratio(kind, below, size)
        if above is None:
            return low * busy_ranks / below
        if above == below:
            return low
        share = (busy_ranks - below) / (above - below)
        return low + share * (self._ratio(kind, above, size) - low)

    def _ratio(self, kind: str, busy_ranks: int, size: float) -> float:
        """The mean over the measured shapes, each read no further than its own sizes."""
        if busy_ranks == 1:
            return 1.0
        logs = []
        for shared, alone in self._ratios[kind, busy_ranks]:
            inside = min(max(size, shared.sizes[0]), shared.sizes[-1])
            logs.append(shared.log_at(inside) - alone.log_at(inside))
        return max(1.0, math.exp(sum(logs) / len(logs)))


class Roofline:
    """Prices from datasheet peaks and the catalogue's parameters alone."""

    def __init__(self, profile: HardwareProfile, software: SoftwareSpec) -> None:
        self._device = profile.devices.accelerator
        self._parameters = ParameterTable(profile)
        self._graphs = software.cuda_graphs

    def matmul(self, matmul: Matmul) -> float:
        peak = self._peak(matmul.dtype)
        rate = peak * self._parameters[f"matmul_efficiency.{matmul.dtype}"]
        elements = matmul.m * matmul.k + matmul.k * matmul.n + matmul.m * matmul.n
        moved_bytes = matmul.batch * elements * dtype_bytes(matmul.dtype)
        arithmetic = matmul.flops / (rate * self._occupancy(matmul))
        return max(arithmetic, self._memory_s(moved_bytes)) + self._launch_s(1)

    def attention(self, attention: Attention) -> float:
        """The kernel skips the masked half, and its efficiency counts the other half only."""
        direction = "backward" if attention.backward else "forward"
        peak = self._peak(attention.dtype)
        rate = peak * self._parameters[f"attention_efficiency.{direction}"]
        needed_flops = attention.flops / (2 if attention.causal else 1)
        return needed_flops / rate + self._launch_s(1)

    def elementwise(self, operation: Elementwise) -> float:
        return self._memory_s(operation.num_bytes) + self._launch_s(operation.kernels)

    def _occupancy(self, matmul: Matmul) -> float:
        """The share of the last wave of tiles, and of the edge tiles, that is useful work."""
        tile_m, tile_n = self._parameters["matmul_tile_m"], self._parameters["matmul_tile_n"]
        work_groups = self._parameters.get("num_sm")
        tiles = matmul.batch * math.ceil(matmul.m / tile_m) * math.ceil(matmul.n / tile_n)
        computed = tiles if work_groups is None else math.ceil(tiles / work_groups) * work_groups
        return matmul.batch * matmul.m * matmul.n / (computed * tile_m * tile_n)

    def _peak(self, dtype: DType) -> float:
        peaks = self._device.peak_flops_per_s
        if dtype in peaks:
            return peaks[dtype]
        raise InputError(
            f"{self._device.name} has no known rate for {dtype} matrix products",
            why=f"its profile knows {', '.join(peaks) or 'none'}",
            fix=f"choose one of those precisions, or profile the machine in {dtype}",
        )

    def _memory_s(self, num_bytes: int) -> float:
        share = self._parameters["memory_bandwidth_efficiency"]
        return num_bytes / (self._device.memory_bandwidth_bytes_per_s * share)

    def _launch_s(self, kernels: int) -> float:
        """Graph launches replay a whole step at once: the host is out of the way."""
        return 0.0 if self._graphs else kernels * self._parameters["launch_overhead_s"]


def matmul_form(matmul: Matmul) -> str:
    """``forward``, ``input_gradient`` or ``weight_gradient``: the last part of the name.

    >>> matmul_form(Matmul("mlp.down.weight_gradient", m=8, n=8, k=8, dtype="fp32"))
    'weight_gradient'
    """
    last = matmul.name.rpartition(".")[2]
    return last if last in MATMUL_FORMS else MATMUL_FORMS[0]


def _grids(
    curves: list[Curve], kind: str, axes: tuple[str, str]
) -> dict[tuple[str, DType], CurveGrid]:
    """The curves of one kind as grids by operation and dtype."""
    found: dict[tuple[str, DType], dict[tuple[int, int], SizeCurve]] = defaultdict(dict)
    for curve in curves:
        op, extents = shape_class(curve)
        if op.partition("/")[0] == kind and set(extents) == set(axes):
            key = (extents[axes[0]], extents[axes[1]])
            found[op, curve.dtype][key] = SizeCurve.of(curve.points)
    return {key: CurveGrid.of(grid, _UNIT_FLOPS[key[0]]) for key, grid in found.items()}


def _named_curves(curves: list[Curve]) -> dict[tuple[str, DType], SizeCurve]:
    return {
        (curve.op, curve.dtype): SizeCurve.of(curve.points)
        for curve in curves
        if curve.op.partition("/")[0] == "elementwise"
    }


def _flops_per_row(n: int, k: int) -> int:
    return 2 * n * k


def _flops_per_head_forward(head_dim: int, seq: int) -> int:
    return Attention("", 1, 1, seq, seq, head_dim, True, False, "fp32").flops


def _flops_per_head_backward(head_dim: int, seq: int) -> int:
    return Attention("", 1, 1, seq, seq, head_dim, True, True, "fp32").flops


_UNIT_FLOPS = {
    **{f"matmul/{form}": _flops_per_row for form in MATMUL_FORMS},
    "attention/forward": _flops_per_head_forward,
    "attention/backward": _flops_per_head_backward,
}
