"""A job as the YAML configuration of Hugging Face accelerate: DDP, FSDP or hybrid FSDP.

Read from release 1.15.0: ``accelerate/commands/config/config_args.py``, ``commands/launch.py``,
``utils/dataclasses.py`` (FullyShardedDataParallelPlugin), ``parallelism_config.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwright.planner.exporters.exported import Exported, Findings, Job
from shardwright.planner.exporters.launch_files import (
    MASTER_PORT,
    Launch,
    accelerate_script,
    comment,
    nodes_of,
    refuse_uneven_nodes,
)
from shardwright.planner.exporters.megatron.parallel import refuse_what_is_ours
from shardwright.planner.exporters.megatron.training import refuse_partial_training
from shardwright.planner.exporters.trainer import (
    CHECKPOINTING,
    SCRIPT,
    refuse_code_parallelism,
    trainer_options,
    version_in,
)
from shardwright.specs import Precision

VERSIONS = ("1.15.0",)
CONFIG = "accelerate.yaml"
_PRECISIONS = {Precision.BF16: "bf16", Precision.FP16: "fp16", Precision.FP32: "no"}


def to_accelerate(job: Job, target_version: str | None = None) -> Exported:
    """``accelerate.yaml`` and a launch file for a script that uses accelerate or transformers.

    Raises:
        InputError: the job has parallelism beyond data parallelism, or else is not there.
    """
    version, findings = version_in(VERSIONS, target_version, "accelerate"), Findings()
    label = f"accelerate {version}"
    refuse_what_is_ours(job.layout, findings, "accelerate")
    if job.layout.stage_meshes is not None:
        findings.require(label)
    refuse_partial_training(job.training, findings, "accelerate's configuration")
    refuse_uneven_nodes(job.cluster, findings)
    refuse_code_parallelism(job.layout, findings, "accelerate's configuration", has_tensor=False)
    config = _config(job, findings)
    findings.require(label)
    heading = f"{label}: {job.model.name}"
    launch = Launch.of(
        job,
        heading=f"{heading}; {SCRIPT} is your script with transformers' Trainer",
        program=(SCRIPT,),
        environment=dict(job.environment),
        groups={"TRAINER": list(_trainer(job))},
        notes=findings.notes,
        beside=(CONFIG,),
    )
    return Exported(
        target="accelerate",
        version=version,
        files={
            CONFIG: yaml_text(config, heading=heading, notes=findings.notes),
            "train.sh": accelerate_script(launch, CONFIG),
        },
        notes=tuple(findings.notes),
        environment=dict(job.environment),
    )


def _trainer(job: Job) -> Iterator[tuple[str, ...]]:
    """FSDP recomputes by its own option, and Trainer refuses both at once."""
    for option in trainer_options(job):
        if option[0] != "--gradient_checkpointing" or job.layout.zero == 0:
            yield option


def _config(job: Job, findings: Findings) -> dict[str, Any]:
    layout = job.layout
    num_nodes, per_node = nodes_of(job)
    precision = _PRECISIONS.get(job.training.precision)
    if precision is None:
        findings.refuse(
            "precision", f"accelerate's configuration has no {job.training.precision} without"
            " settings of a further library", "precision = bf16",
        )  # fmt: skip
    _check_training(job, findings)
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if layout.zero else "MULTI_GPU",
        "mixed_precision": precision or "bf16",
        "num_machines": num_nodes,
        "num_processes": num_nodes * per_node,
        "machine_rank": 0,
        "main_process_port": MASTER_PORT,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
    }
    if layout.zero:
        found["fsdp_config"] = _fsdp(job, findings)
    elif layout.offload:
        findings.refuse("offload", "accelerate offloads only what FSDP shards", "zero = 3")
    if layout.zero and layout.zero_shard_degree < layout.dp:
        found["parallelism_config"] = _hybrid(job, findings)
    if layout.compile:
        found["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    _check_recompute(job, findings)
    return found


def _check_training(job: Job, findings: Findings) -> None:
    dtypes, layout = job.training.dtypes, job.layout
    mixed = dtypes.parameter in ("bf16", "fp16") and layout.zero
    if mixed and dtypes.gradient == "fp32":
        findings.note(
            f"gradients: FSDP under accelerate reduces them in {dtypes.parameter} and sums them in"
            " fp32; the plan reduces them in fp32. Its script can pass a mixed_precision_policy"
        )
    elif dtypes.gradient not in ("fp32", dtypes.parameter):
        findings.refuse(
            "gradient_dtype", f"gradients in {dtypes.gradient}", "gradient_dtype = fp32"
        )
    if not layout.zero and dtypes.parameter in ("bf16", "fp16"):
        findings.note(f"precision: autocast computes in {dtypes.parameter} from fp32 weights")
    if dtypes.moment != "fp32":
        findings.refuse(
            "moment_dtype", "the optimizer's state is that of the script", "moment_dtype = fp32"
        )
    if job.training.optimizer.name != "adamw":
        findings.note(
            f"optimizer: the script chooses it; give --optim for {job.training.optimizer.name}"
        )


def _fsdp(job: Job, findings: Findings) -> dict[str, Any]:
    """The second FSDP for ZeRO 3; the first one's SHARD_GRAD_OP for ZeRO 2."""
    layout = job.layout
    if layout.zero == 1:
        findings.refuse(
            "zero", "FSDP shards gradients with the optimizer's state, or nothing",
            "zero = 2, or zero = 3",
        )  # fmt: skip
    if layout.offload and set(layout.offload) != {"optimizer", "parameters"}:
        findings.refuse(
            "offload", "FSDP offloads weights and optimizer together, or nothing",
            "offload = optimizer+parameters",
        )  # fmt: skip
    found: dict[str, Any] = {
        "fsdp_version": 2 if layout.zero == 3 else 1,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": bool(layout.offload),
        "fsdp_activation_checkpointing": all(e.policy == "full" for e in layout.recompute),
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
    }
    if layout.zero == 3:
        return {**found, "fsdp_reshard_after_forward": layout.reshard_after_forward}
    findings.note("zero: SHARD_GRAD_OP also shards weights between steps, which costs no memory")
    return {
        **found,
        "fsdp_sharding_strategy": "SHARD_GRAD_OP",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_use_orig_params": True,
        "fsdp_sync_module_states": True,
    }


def _hybrid(job: Job, findings: Findings) -> dict[str, Any]:
    """Copies of the weights beside shards of them."""
    layout = job.layout
    if layout.zero != 3:
        findings.refuse(
            "zero_shard_degree", f"accelerate shards over {layout.zero_shard_degree} of"
            f" {layout.dp} ranks under ZeRO 3 only", f"zero_shard_degree = {layout.dp}",
        )  # fmt: skip
    return {
        "parallelism_config_dp_replicate_size": layout.dp // layout.zero_shard_degree,
        "parallelism_config_dp_shard_size": layout.zero_shard_degree,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
    }


def _check_recompute(job: Job, findings: Findings) -> None:
    layout = job.layout
    policies = {entry.policy for entry in layout.recompute}
    whole = all(entry.num_layers is None for entry in layout.recompute)
    if policies == {"none"} or (policies == {"full"} and whole and layout.zero):
        return
    if policies == {"full"} and whole:
        findings.note(CHECKPOINTING)
        return
    findings.refuse(
        "recompute", "accelerate recomputes every layer or none",
        "recompute = full, or recompute = none",
    )  # fmt: skip


def yaml_text(config: Mapping[str, Any], *, heading: str, notes: Sequence[str]) -> str:
    """A mapping of plain values and of such mappings; JSON's strings are YAML's, too."""
    lines = list(comment(heading))
    for note in notes:
        lines += comment(f"  {note}")
    for key, value in config.items():
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [f"  {inner}: {_scalar(item)}" for inner, item in value.items()]
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """``no`` is a word here, which YAML would read as false."""
    if isinstance(value, str) and value.replace("_", "").isalpha() and value.lower() not in (
        "no", "yes", "on", "off", "true", "false", "null", "y", "n",
    ):  # fmt: skip
        return value
    return json.dumps(value)
