"""``export(plan, "megatron-lm")``: a plan as files of other software."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.planner.exporters.accelerate import to_accelerate
from shardwright.planner.exporters.deepspeed import to_deepspeed
from shardwright.planner.exporters.exported import Exported, Job
from shardwright.planner.exporters.megatron.export import to_megatron
from shardwright.planner.exporters.torchtitan.export import to_torchtitan
from shardwright.specs import InputError, Plan

Exporter = Callable[[Job, "str | None"], Exported]

EXPORTERS: dict[str, Exporter] = {
    "megatron-lm": to_megatron,
    "torchtitan": to_torchtitan,
    "deepspeed": to_deepspeed,
    "accelerate": to_accelerate,
}
"""By the name that ``--to`` takes."""

ALIASES = {
    "megatron": "megatron-lm",
    "mt-megatronlm": "megatron-lm",
}
"""Other names; MT-MegatronLM is Megatron-LM's core r0.9.0."""

_IMPLIED_VERSIONS = {"mt-megatronlm": "core_r0.9.0"}


def export(plan: Plan, target: str, version: str | None = None) -> Exported:
    """The files with which ``target`` runs a plan; ``version``: of the target, default its newest.

    Raises:
        InputError: no such target or version, or it cannot express the plan: every reason at once.
    """
    return export_job(Job.of(plan), target, version)


def export_job(job: Job, target: str, version: str | None = None) -> Exported:
    """As `export`, of what a plan is made of."""
    name = target.strip().lower()
    version = version or _IMPLIED_VERSIONS.get(name)
    exporter = EXPORTERS.get(ALIASES.get(name, name))
    if exporter is None:
        raise InputError(
            f"{target!r} is no software that plans can be exported to",
            fix=f"choose one of {', '.join(EXPORTERS)}",
        )
    return exporter(job, version)
