"""The measurement from a rank's point of view: phase after phase, in step with all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwright.hardware_profiles.device import allocated_memory_bytes
from shardwright.hardware_profiles.measure.attention import attention_curves
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.collectives import collective_curves
from shardwright.hardware_profiles.measure.elementwise import elementwise_curves, launch_curves
from shardwright.hardware_profiles.measure.matmul import matmul_curves
from shardwright.hardware_profiles.measure.sharing import sharing_curves
from shardwright.hardware_profiles.profile import Curve, Parameter


@dataclass(frozen=True, slots=True)
class Phase:
    """What is measured, what share of the time it gets, and who measures."""

    doing: str
    share: float
    curves: Callable[[Bench, float], Iterator[Curve]]
    all_ranks: bool = False
    """All ranks take part; otherwise the first of each set that shares cores measures, all at the
    same time, as nodes are busy in training, and the others stay idle. Rank 0's figures count:
    where nodes are containers of one machine, they slow each other down as they will."""


PHASES = (
    Phase("launches", 0.01, launch_curves),
    Phase("matrix products", 0.35, matmul_curves),
    Phase("attention", 0.10, attention_curves),
    Phase("element-wise operations", 0.22, elementwise_curves),
    Phase("ranks that share cores", 0.10, sharing_curves, all_ranks=True),
    Phase("collectives", 0.22, collective_curves, all_ranks=True),
)


def run_phases(bench: Bench) -> None:
    """Measure everything; to be called by every rank of the initialised world."""
    bench.barrier()
    bench.send_parameter(
        Parameter(
            name="process_memory_bytes", value=allocated_memory_bytes(bench.device), unit="B",
            kind="measured", fitted_from="a rank with its groups made and no tensors yet",
        )
    )  # fmt: skip
    done = 0.0
    for phase in PHASES:
        bench.begin(phase.doing, done, phase.share)
        if phase.all_ranks or bench.measures_alone:
            for curve in phase.curves(bench, phase.share * bench.plan.budget_s):
                bench.send_curve(curve)
                bench.report_progress()
        bench.barrier()
        done += phase.share
    bench.begin("done", 1.0, 0.0)
