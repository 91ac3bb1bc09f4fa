"""A job as Megatron-LM's command line, checked against its own rules."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.planner.exporters.exported import Exported, Findings, Job
from shardwright.planner.exporters.launch_files import (
    Launch,
    refuse_uneven_nodes,
    sbatch_script,
    torchrun_script,
)
from shardwright.planner.exporters.megatron.arguments import Arguments, Option
from shardwright.planner.exporters.megatron.checks.rules import broken_argument_rules
from shardwright.planner.exporters.megatron.environment import compute_capability, environment_of
from shardwright.planner.exporters.megatron.model import model_options
from shardwright.planner.exporters.megatron.parallel import (
    grid_options,
    offload_options,
    recompute_options,
    refuse_compiling,
    refuse_what_is_ours,
    sharding_options,
)
from shardwright.planner.exporters.megatron.stages import stage_options
from shardwright.planner.exporters.megatron.training import (
    batch_options,
    data_options,
    optimizer_options,
    precision_options,
    refuse_partial_training,
    seed_options,
    software_options,
)
from shardwright.planner.exporters.megatron.versions import version_of
from shardwright.planner.exporters.rules import broken_rules

SCRIPT = "pretrain_gpt.py"


def to_megatron(job: Job, target_version: str | None = None) -> Exported:
    """Arguments, environment and launch files of one of Megatron-LM's generations.

    Raises:
        InputError: the generation is not known, or cannot express the job; every reason at once.
    """
    version, findings = version_of(target_version), Findings()
    label = f"Megatron-LM ({version.rules.version})"
    refuse_what_is_ours(job.layout, findings, "Megatron-LM")
    if job.layout.stage_meshes is not None:
        findings.require(label)  # its degrees are not those of one grid
    refuse_compiling(job.layout, findings, "Megatron-LM")
    refuse_uneven_nodes(job.cluster, findings)
    refuse_partial_training(job.training, findings, "Megatron-LM")
    findings.refused += broken_rules(version.rules, job.layout, job.model, job.training)
    groups: dict[str, list[Option]] = {
        "MODEL": model_options(job, version, findings),
        "PARALLEL": [
            *grid_options(job, version, findings),
            *stage_options(job, version, findings),
            *sharding_options(job, version, findings),
            *recompute_options(job, version, findings),
            *offload_options(job, version, findings),
        ],
        "TRAINING": [
            *batch_options(job),
            *precision_options(job, version, findings),
            *optimizer_options(job, version, findings),
            *software_options(job, version),
            *seed_options(job, findings),
        ],
        "DATA": list(data_options(job, findings)),
    }
    environment = environment_of(job, findings)
    findings.require(label)
    arguments = Arguments(tuple(option for group in groups.values() for option in group))
    findings.refused += broken_argument_rules(
        arguments,
        world=job.layout.world,
        environment=environment,
        capability=compute_capability(job.cluster.accelerator.name),
        version=version,
    )
    findings.require(label)
    return Exported(
        target="megatron-lm",
        version=version.name,
        files=_files(job, groups, environment, findings, label),
        notes=tuple(findings.notes),
        arguments=arguments.options,
        environment=environment,
    )


def _files(
    job: Job,
    groups: Mapping[str, list[Option]],
    environment: Mapping[str, str],
    findings: Findings,
    label: str,
) -> dict[str, str]:
    launch = Launch.of(
        job,
        program=(SCRIPT,),
        groups=groups,
        environment=environment,
        notes=findings.notes,
        heading=f"{label}: {job.model.name}; run it in Megatron-LM's folder",
    )
    return {"train.sh": torchrun_script(launch), "train.sbatch": sbatch_script(launch)}
