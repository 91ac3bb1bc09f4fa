"""Seconds of one unit of work: device and host side by side, communication shown or hidden."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.cost_models.stacks.layers import Work
from shardwright.cost_models.stacks.links import Links
from shardwright.cost_models.stacks.operations import (
    FlashAttention,
    Message,
    Operation,
    Product,
    Traffic,
)
from shardwright.cost_models.stacks.rates import DeviceRates

_PIECEWISE = frozenset({"all_gather", "reduce_scatter"})
"""Collectives around a split product that can run piece by piece, beside the product's pieces."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """One pass over a unit of work."""

    compute_s: float = 0.0
    tp_s: float = 0.0
    """Exposed, of tensor parallelism."""
    cp_s: float = 0.0
    ep_s: float = 0.0
    kernels: float = 0.0
    """Launched by the host."""

    @property
    def total_s(self) -> float:
        return self.compute_s + self.tp_s + self.cp_s + self.ep_s

    def plus(self, other: Seconds, times: int = 1) -> Seconds:
        """This and ``times`` the other."""
        return Seconds(
            self.compute_s + times * other.compute_s,
            self.tp_s + times * other.tp_s,
            self.cp_s + times * other.cp_s,
            self.ep_s + times * other.ep_s,
            self.kernels + times * other.kernels,
        )


@dataclass(frozen=True, slots=True)
class WorkSeconds:
    """The passes of one unit of work."""

    forward: Seconds
    backward_input: Seconds
    backward_weight: Seconds
    again: Seconds
    """Recomputation."""


class WorkPricer:
    """Prices units of work for one grid of ranks."""

    def __init__(
        self,
        rates: DeviceRates,
        links: Links,
        groups: dict[str, tuple[int, int]],
        hidden_fraction: float,
        *,
        overlap_tensor_parallel: bool = False,
    ) -> None:
        """``hidden_fraction``: of communication that can run beside computation, what does.

        ``overlap_tensor_parallel``: whether the gathering and scattering around products that are
        split over tensor-parallel ranks can. An all-reduce needs the whole product.
        """
        self._rates, self._links, self._groups = rates, links, groups
        self._hidden = hidden_fraction
        self._piecewise = _PIECEWISE if overlap_tensor_parallel else frozenset[str]()

    def price(self, work: Work) -> WorkSeconds:
        """Every pass of one micro-batch."""
        return WorkSeconds(
            self._pass(work.forward),
            self._pass(work.backward_input),
            self._pass(work.backward_weight),
            self._pass(work.again) if work.again else Seconds(),
        )

    def _pass(self, operations: tuple[Operation, ...]) -> Seconds:
        rates = self._rates
        products = attention = traffic = kernels = 0.0
        shown = {"tp": 0.0, "cp": 0.0, "ep": 0.0, "etp": 0.0}
        hideable = {"tp": 0.0, "cp": 0.0, "ep": 0.0, "etp": 0.0}
        for op in operations:
            kind = type(op)
            if kind is Product:
                products += rates.product(op)  # type: ignore[arg-type]
                kernels += 1
            elif kind is Traffic:
                traffic += rates.traffic(op)  # type: ignore[arg-type]
                kernels += op.kernels  # type: ignore[union-attr]
            elif kind is FlashAttention:
                attention += rates.attention(op)  # type: ignore[arg-type]
                kernels += 1
            else:
                assert isinstance(op, Message)
                size, stride = self._groups[op.axis]
                if op.axis == "ep":
                    seconds = self._links.dispatch(
                        op.num_bytes, size, stride, op.copies, op.most_domains
                    )
                else:
                    seconds = self._links.seconds(op.kind, op.num_bytes, size, stride)
                overlaps = op.overlaps or (op.axis == "tp" and op.kind in self._piecewise)
                (hideable if overlaps else shown)[op.axis] += seconds
                kernels += 1
        if hideable["cp"]:
            shown["cp"] += self._exposed(hideable["cp"], attention)
        if hideable["tp"]:
            shown["tp"] += self._exposed(hideable["tp"], products)
        compute = products + attention + traffic
        return Seconds(compute, shown["tp"], shown["cp"], shown["ep"] + shown["etp"], kernels)

    def _exposed(self, seconds: float, window_s: float) -> float:
        hidden = self._hidden * min(seconds, window_s)
        return seconds - hidden
