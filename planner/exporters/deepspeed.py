"""A job as DeepSpeed's JSON configuration.

Read from release 0.19.8: ``deepspeed/runtime/config.py``, ``runtime/zero/config.py``,
``runtime/tensor_parallel/config.py``. Its configuration says batch, precision, ZeRO, optimizer and
tensor parallelism; pipelines, expert and sequence parallelism are code of the training script.
"""

from __future__ import annotations

import json
from typing import Any

from shardwright.planner.exporters.exported import Exported, Findings, Job
from shardwright.planner.exporters.launch_files import (
    Launch,
    refuse_uneven_nodes,
    sbatch_script,
    torchrun_script,
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
from shardwright.specs.bodies import AttentionBlock, LatentAttentionBlock

VERSIONS = ("0.19.8",)
CONFIG = "ds_config.json"
_OPTIMIZERS = {"adamw": "AdamW", "adamw-8bit": None, "adafactor": None, "muon": "Muon", "sgd": None}


def to_deepspeed(job: Job, target_version: str | None = None) -> Exported:
    """``ds_config.json`` and launch files for a script that uses DeepSpeed or transformers.

    Raises:
        InputError: the job has parallelism that is code, not configuration, or else is not there.
    """
    version, findings = version_in(VERSIONS, target_version, "DeepSpeed"), Findings()
    label = f"DeepSpeed {version}"
    refuse_what_is_ours(job.layout, findings, "DeepSpeed")
    if job.layout.stage_meshes is not None:
        findings.require(label)
    refuse_partial_training(job.training, findings, "DeepSpeed's configuration")
    refuse_uneven_nodes(job.cluster, findings)
    refuse_code_parallelism(job.layout, findings, "DeepSpeed's configuration", has_tensor=True)
    config = _config(job, findings)
    _note_checkpointing(job, findings)
    findings.require(label)
    files = {CONFIG: json.dumps(config, indent=2) + "\n", **_launch_files(job, label, findings)}
    return Exported(
        target="deepspeed",
        version=version,
        files=files,
        notes=tuple(findings.notes),
        environment=dict(job.environment),
    )


def _config(job: Job, findings: Findings) -> dict[str, Any]:
    layout, one = job.layout, job.training.optimizer
    found: dict[str, Any] = {
        "train_batch_size": job.training.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches,
        "gradient_clipping": one.clip_norm or 0.0,
        "zero_optimization": _zero(job, findings),
        **_precision(job, findings),
        "optimizer": _optimizer(job, findings),
        "scheduler": _schedule(job),
    }
    if layout.tp > 1:
        _check_tensor(job, findings)
        found["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.compile:
        found["compile"] = {"deepcompile": False}
        findings.note("compile: call engine.compile() in the script, or pass --torch_compile")
    return found


def _check_tensor(job: Job, findings: Findings) -> None:
    tp = job.layout.tp
    if job.layout.sequence_parallel:
        findings.refuse(
            "sequence_parallel", "DeepSpeed's tensor parallelism keeps norms on whole sequences",
            "sequence_parallel = false",
        )  # fmt: skip
    for layer in {layer: None for layer in job.model.decoder.layers()}:
        for body in (branch.body for branch in layer.branches):
            if isinstance(body, AttentionBlock):
                counts = (body.num_heads, body.num_kv_heads)
            elif isinstance(body, LatentAttentionBlock):
                counts = (body.num_heads, body.num_heads)
            else:
                continue
            if any(count % tp for count in counts):
                findings.refuse(
                    "tp", f"{counts[0]} heads and {counts[1]} key-value heads do not both divide"
                    f" over tp = {tp}",
                )  # fmt: skip


def _zero(job: Job, findings: Findings) -> dict[str, Any]:
    layout = job.layout
    ranks = layout.dp * layout.cp
    found: dict[str, Any] = {"stage": layout.zero}
    if layout.zero and layout.zero_shard_degree != ranks:
        findings.refuse(
            "zero_shard_degree", f"DeepSpeed shards over all {ranks} data-parallel ranks, not over"
            f" {layout.zero_shard_degree}", f"zero_shard_degree = {ranks}",
        )  # fmt: skip
    if layout.zero == 3 and not layout.reshard_after_forward:
        findings.refuse(
            "reshard_after_forward", "ZeRO 3 of DeepSpeed frees weights after a layer's forward"
            " pass, but for the few that it may keep", "reshard_after_forward = true",
        )  # fmt: skip
    if layout.zero:
        found["overlap_comm"] = job.software.overlap_gradients
        found["contiguous_gradients"] = True
        found["reduce_scatter"] = True
    if "optimizer" in layout.offload:
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if layout.zero == 0:
            findings.refuse("offload", "DeepSpeed offloads a sharded optimizer only", "zero = 1")
    if "parameters" in layout.offload:
        found["offload_param"] = {"device": "cpu", "pin_memory": True}
        if layout.zero != 3:
            findings.refuse("offload", "DeepSpeed offloads weights under ZeRO 3 only", "zero = 3")
    if "activations" in layout.offload:
        findings.refuse(
            "offload", "activations are offloaded by code of the script (cpu_checkpointing)",
            "offload without activations",
        )  # fmt: skip
    return found


def _precision(job: Job, findings: Findings) -> dict[str, Any]:
    """Weights in 16 bits with an fp32 copy, or all in fp32; gradients are summed in 32 bits."""
    training = job.training
    dtypes, precision = training.dtypes, training.precision
    found: dict[str, Any] = {}
    if precision is Precision.BF16_PURE:
        found["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True,
                         "bf16_optimizer_states": True}  # fmt: skip
        if job.layout.zero == 0:
            findings.refuse(
                "zero", "bf16 weights without a copy need ZeRO in DeepSpeed", "zero = 1"
            )
        return {**found, "data_types": {"grad_accum_dtype": "bf16"}}
    if precision not in (Precision.BF16, Precision.FP16, Precision.FP32):
        findings.refuse(
            "precision", f"DeepSpeed's configuration has no {precision}", "precision = bf16"
        )
    found["bf16"] = {"enabled": dtypes.parameter == "bf16"}
    found["fp16"] = {"enabled": precision is Precision.FP16}
    if dtypes.gradient not in ("fp32", "bf16", "fp16"):
        findings.refuse(
            "gradient_dtype", f"gradients in {dtypes.gradient}", "gradient_dtype = fp32"
        )
    if dtypes.moment != "fp32":
        findings.refuse(
            "moment_dtype", f"DeepSpeed keeps moments in fp32, not {dtypes.moment}",
            "moment_dtype = fp32",
        )  # fmt: skip
    found["data_types"] = {"grad_accum_dtype": dtypes.gradient}
    found["communication_data_type"] = dtypes.gradient
    return found


def _optimizer(job: Job, findings: Findings) -> dict[str, Any]:
    one = job.training.optimizer
    name = _OPTIMIZERS[one.name]
    if name is None:
        findings.refuse("optimizer", f"DeepSpeed has no optimizer {one.name}", "optimizer = adamw")
    params: dict[str, Any] = {"lr": one.learning_rate, "weight_decay": one.weight_decay}
    if one.name == "adamw":
        params |= {"betas": [one.beta1, one.beta2], "eps": one.epsilon}
    return {"type": name or "AdamW", "params": params}


def _schedule(job: Job) -> dict[str, Any]:
    one = job.training.optimizer
    total = one.decay_steps or job.num_steps
    return {
        "type": "WarmupCosineLR",
        "params": {
            "total_num_steps": total,
            "warmup_num_steps": max(2, min(one.warmup_steps, total - 1)),
            "warmup_min_ratio": 0.0,
            "cos_min_ratio": min(1.0, one.min_learning_rate / one.learning_rate),
        },
    }


def _note_checkpointing(job: Job, findings: Findings) -> None:
    """Recomputation is code, too; all or nothing is what scripts can switch."""
    policies = {entry.policy for entry in job.layout.recompute}
    everywhere = all(
        entry.num_layers in (None, stage.num_layers)
        for entry, stage in zip(job.layout.recompute, job.layout.stages, strict=True)
    )
    if policies == {"full"} and everywhere:
        findings.note(CHECKPOINTING)
    elif policies != {"none"}:
        findings.refuse(
            "recompute", "scripts recompute every layer (gradient checkpointing) or none",
            "recompute = full, or recompute = none",
        )  # fmt: skip


def _launch_files(job: Job, label: str, findings: Findings) -> dict[str, str]:
    launch = Launch.of(
        job,
        heading=f"{label}: {job.model.name}; {SCRIPT} is your script with transformers' Trainer",
        program=(SCRIPT, "--deepspeed", CONFIG),
        environment=dict(job.environment),
        groups={"TRAINER": list(trainer_options(job))},
        notes=findings.notes,
        beside=(CONFIG,),
    )
    return {"train.sh": torchrun_script(launch), "train.sbatch": sbatch_script(launch)}
