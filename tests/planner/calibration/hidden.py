"""Steps of a machine whose numbers are hidden from whoever calibrates."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import GENERIC, fitted, stack_parameters
from shardwright.planner.calibration.runs import job_of_step
from shardwright.planner.validation.results import Job
from shardwright.planner.validation.stack_fits import local_free
from shardwright.specs import Layout, ModelSpec, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import read_model

BELIEF = {one.name: one for one in local_free(f"stack:{GENERIC}", fitted())} | {
    one.name: one for one in local_free("device:h100-sxm5-80gb", fitted())
}
"""What the catalogue believes of unknown software on this accelerator."""
FASTER = ("clock.sustained_ratio", "stack.hidden_fraction")
"""Numbers that make steps shorter where they are larger."""
HIDDEN = {
    name: one.value(one.scaled(one.centre) + (-1.0 if name in FASTER else 1.0) * one.spread)
    for name, one in BELIEF.items()
}
"""Each one standard deviation slower than what is believed: wherever that moves, so do these."""

SOFTWARE = SoftwareSpec(framework=GENERIC)
TRAINING = TrainingSpec(global_batch=128, seq_len=4096)

TAUGHT: tuple[dict[str, Any], ...] = (
    {"tp": 1, "dp": 16, "zero": 1},
    {"tp": 2, "dp": 8, "zero": 1, "sequence_parallel": True},
    {"tp": 4, "dp": 4, "zero": 1, "sequence_parallel": True},
    {"tp": 8, "dp": 2, "zero": 1, "sequence_parallel": True},
    {"tp": 1, "dp": 16, "zero": 3},
    {"tp": 1, "dp": 16, "zero": 3, "micro_batch": 2},
    {"tp": 4, "dp": 4, "zero": 1, "micro_batch": 2, "sequence_parallel": True},
    {"tp": 8, "dp": 1, "pp": 2, "sequence_parallel": True},
    {"tp": 2, "dp": 2, "pp": 4, "sequence_parallel": True},
    {"tp": 16, "dp": 1, "sequence_parallel": True},
)
OTHERS: tuple[dict[str, Any], ...] = (
    {"tp": 2, "dp": 8, "zero": 3, "micro_batch": 4, "sequence_parallel": True},
    {"tp": 8, "dp": 2, "zero": 1, "micro_batch": 4, "sequence_parallel": True},
    {"tp": 1, "dp": 4, "pp": 4},
    {"tp": 4, "dp": 2, "pp": 2, "micro_batch": 4, "sequence_parallel": True},
    {"tp": 1, "dp": 16, "zero": 2, "micro_batch": 4},
)


@functools.cache
def model() -> ModelSpec:
    return read_model("llama-3.1-8b").spec


@functools.cache
def cluster() -> HardwareProfile:
    return resolve_cluster("dgx-h100:2")


def layouts(choices: Sequence[dict[str, Any]]) -> list[Layout]:
    return [Layout.of(model(), TRAINING, **chosen) for chosen in choices]


def machine() -> StackModel:
    """The machine with its hidden numbers."""
    values = stack_parameters(GENERIC, cluster()) | HIDDEN
    return StackModel(model(), TRAINING, cluster(), SOFTWARE, values)


def runs(choices: Sequence[dict[str, Any]], software: SoftwareSpec = SOFTWARE) -> list[Job]:
    """Measured steps of these layouts, said to be of a software."""
    made = machine()
    return [
        job_of_step(
            name=f"run-{index}", model=model(), training=TRAINING, profile=cluster(),
            software=software, layout=layout, step_time_s=made.step_time_s(layout),
        )
        for index, layout in enumerate(layouts(choices))
    ]  # fmt: skip
