"""`HardwareProfile`: what was measured or is stated about a cluster, raw, with its sources.

Curves are stored as measured; pricing uses a monotone hull of them, and a measured curve wins over
a formula. A catalogue entry is a profile without curves, whose parameters come from datasheets.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from shardwright.specs import ClusterSpec, Spec
from shardwright.specs.cluster import Provenance
from shardwright.specs.training import DType

PROFILE_VERSION: Final = "shardwright.profile/1"


class Point(NamedTuple):
    """One measured size: the median of ``n`` timings and their spread (interquartile range)."""

    x: float
    median_s: float
    spread_s: float
    n: int


class Curve(Spec):
    """Seconds by size for one operation.

    ``quantity`` says what ``x`` is: ``flops`` (matmul, attention), ``bytes`` (element-wise, input
    bytes per rank of collectives) or ``launches`` (launch overhead).
    """

    quantity: Literal["flops", "bytes", "launches"]
    op: str
    """``matmul``, ``attention``, ``elementwise/rms_norm``, ``all_reduce``, ``send_recv`` ...; a
    shape class after ``@`` where it matters: ``matmul/weight_gradient@k=256``."""
    dtype: DType
    group_shape: tuple[PositiveInt, PositiveInt] = (1, 1)
    """(ranks per node, nodes) of one group."""
    concurrency: PositiveInt = 1
    """How many such ranks (compute) or groups (collectives) were busy at once on a node."""
    points: tuple[Point, ...]


class Parameter(Spec):
    """One number that pricing reads by name, with its unit and where it came from."""

    name: str
    value: float
    unit: str
    kind: Provenance
    fitted_from: str
    """Measurement, datasheet or paper."""


class ProfileProvenance(Spec):
    """Where, when and with what a profile was made."""

    created_at: str
    host: str
    software: dict[str, str]
    command: str | None = None


class HardwareProfile(Spec):
    """A cluster's description, its measured curves and its parameters."""

    version: Literal["shardwright.profile/1"] = PROFILE_VERSION
    provenance: ProfileProvenance
    devices: ClusterSpec
    curves: tuple[Curve, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    num_ranks: NonNegativeInt = 0
    """Ranks that took part in the measurement; 0 for a catalogue entry."""

    def parameter(self, name: str) -> float:
        """The value of a parameter; `KeyError` names the profile where it is missing."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter.value
        raise KeyError(f"profile {self.devices.name} has no parameter {name}")
