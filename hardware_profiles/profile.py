"""`HardwareProfile`: what was measured or is stated about a cluster, raw, with its sources.

Curves are stored as measured; pricing uses a monotone hull of them, and a measured curve wins over
a formula. A catalogue entry is a profile without curves, whose parameters come from datasheets.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, model_validator

from shardwright.specs import ClusterSpec, SoftwareSpec, Spec
from shardwright.specs.cluster import Provenance
from shardwright.specs.ranges import MOST_DEVICES, Degree, PositiveSeconds, Seconds
from shardwright.specs.training import DType

_DIVISORS = re.compile(r"efficiency|gain$|ratio$|tile|num_sm")
"""Parameters that times are divided by; other times, bytes and fractions may be nothing."""

PROFILE_VERSION: Final = "shardwright.profile/1"


class Point(NamedTuple):
    """One measured size: the median of ``n`` timings and their spread (interquartile range)."""

    x: Annotated[float, Field(gt=0, le=1e24)]
    median_s: PositiveSeconds
    spread_s: Seconds
    n: Annotated[int, Field(gt=0)]


class Curve(Spec):
    """Seconds by size for one operation.

    ``quantity`` says what ``x`` is: ``flops`` (matmul, attention), ``bytes`` (element-wise, input
    bytes per rank of collectives) or ``launches`` (launch overhead).
    """

    quantity: Literal["flops", "bytes", "launches"]
    op: Annotated[
        str,
        Field(pattern=r"^[a-z_]+(/[a-z0-9_.]+)*(@[a-z_]+=[1-9]\d{0,9}(,[a-z_]+=[1-9]\d{0,9})*)?$"),
    ]
    """``matmul``, ``attention``, ``elementwise/rms_norm``, ``all_reduce``, ``send_recv`` ...; a
    shape class after ``@`` where it matters: ``matmul/weight_gradient@k=256``."""
    dtype: DType
    group_shape: tuple[Degree, Degree] = (1, 1)
    """(ranks per node, nodes) of one group."""
    concurrency: Degree = 1
    """How many such ranks (compute) or groups (collectives) were busy at once on a node."""
    points: tuple[Point, ...] = Field(min_length=1)


class Parameter(Spec):
    """One number that pricing reads by name, with its unit and where it came from."""

    name: str
    value: float = Field(ge=0, le=1e24)
    unit: str
    kind: Provenance
    fitted_from: str
    """Measurement, datasheet or paper."""
    spread: Annotated[float, Field(gt=0, le=100)] | None = None
    """Standard deviation of its logarithm (of its log-odds for fractions), where estimated."""

    @model_validator(mode="after")
    def _divisors_are_not_zero(self) -> Parameter:
        if _DIVISORS.search(self.name) and self.value < 1e-6:
            raise ValueError(f"{self.name} = {self.value:g} is too small: times are divided by it")
        return self


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
    num_ranks: Annotated[int, Field(ge=0, le=MOST_DEVICES)] = 0
    """Ranks that took part in the measurement; 0 for a catalogue entry."""
    software: SoftwareSpec | None = None
    """The software on whose runs it was calibrated: its parameters of software (``stack.*``,
    ``layer.*``) and its band hold for that framework alone. Null: it speaks for none."""

    @property
    def tie_ratio(self) -> float:
        """Predicted steps up to this multiple of the best cannot be told apart from it.

        The parameter ``tie.ratio``; absent: 1, the profile states no such spread.
        """
        return next((p.value for p in self.parameters if p.name == "tie.ratio"), 1.0)

    @model_validator(mode="after")
    def _shared_curves_have_their_base(self) -> HardwareProfile:
        shared = [
            curve
            for curve in self.curves
            if curve.op.startswith("shared/") and curve.group_shape == (1, 1)
        ]
        alone = {(curve.op, curve.dtype) for curve in shared if curve.concurrency == 1}
        for curve in shared:
            if (curve.op, curve.dtype) not in alone:
                raise ValueError(
                    f"{curve.op} in {curve.dtype} has a curve for {curve.concurrency} busy ranks,"
                    " but none for one alone"
                )
        return self

    def parameter(self, name: str) -> float:
        """The value of a parameter; `KeyError` names the profile where it is missing."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter.value
        raise KeyError(f"profile {self.devices.name} has no parameter {name}")
