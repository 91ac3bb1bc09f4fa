"""A job as torchtitan's TOML configuration, with its model and launch files."""

from __future__ import annotations

from typing import Any

from shardwright.planner.exporters.exported import FIRST_STEPS, Exported, Findings, Job
from shardwright.planner.exporters.launch_files import (
    Launch,
    refuse_uneven_nodes,
    sbatch_script,
    torchrun_script,
)
from shardwright.planner.exporters.megatron.parallel import refuse_what_is_ours
from shardwright.planner.exporters.megatron.training import refuse_partial_training
from shardwright.planner.exporters.torchtitan.facts import MODULE, VERSIONS
from shardwright.planner.exporters.torchtitan.layout import checkpointing, parallelism
from shardwright.planner.exporters.torchtitan.model import TitanModel, module_file, titan_model
from shardwright.planner.exporters.torchtitan.text import toml_text
from shardwright.specs import InputError, Precision

CONFIG = "train.toml"


def to_torchtitan(job: Job, target_version: str | None = None) -> Exported:
    """A configuration, the model's file where it has sizes of its own, and launch files.

    Raises:
        InputError: a release that reads no such file, or a job that it cannot express.
    """
    version, findings = version_of(target_version), Findings()
    label = f"torchtitan {version}"
    refuse_what_is_ours(job.layout, findings, "torchtitan")
    if job.layout.stage_meshes is not None:
        findings.require(label)
    refuse_partial_training(job.training, findings, "torchtitan")
    refuse_uneven_nodes(job.cluster, findings)
    model = titan_model(job, findings)
    tables = _tables(job, model, version, findings)
    findings.require(label)
    assert model is not None
    if not job.states_steps:
        findings.note(
            f"length: the plan states no number of tokens; {FIRST_STEPS} steps to begin with"
        )
    findings.note(
        "data: torchtitan's own sample and tokenizer; give --training.dataset and"
        " --model.hf_assets_path behind train.sh"
    )
    heading = f"{label}: {job.model.name}"
    config = toml_text(tables, heading=heading, notes=findings.notes)
    files = {CONFIG: config, **({module_file(): model.module} if model.module else {})}
    return Exported(
        target="torchtitan",
        version=version,
        files={**files, **_launch_files(job, heading, findings)},
        notes=tuple(findings.notes),
        environment=dict(job.environment),
    )


def version_of(name: str | None) -> str:
    """A release whose TOML is known; raises `InputError`."""
    text = (name or VERSIONS[0]).strip().lower().removeprefix("v")
    if text in VERSIONS:
        return text
    raise InputError(
        f"torchtitan {name} is not known to read such a file",
        why="releases from 0.3.0 on are configured in Python" if text >= "0.3" else None,
        fix=f"choose one of {', '.join(VERSIONS)}",
    )


def _tables(
    job: Job, model: TitanModel | None, version: str, findings: Findings
) -> dict[str, dict[str, Any]]:
    """Every table in the order of `JobConfig`."""
    converters, quantize = _converters(job, findings)
    is_custom = model is not None and model.module is not None
    return {
        "job": {"description": f"{job.model.name}, planned"},
        "metrics": {"log_freq": 1},
        "model": {
            "name": model.name if model else None,
            "flavor": model.flavor if model else None,
            "converters": converters or None,
        },
        "optimizer": _optimizer(job, findings),
        "lr_scheduler": _schedule(job),
        "training": _training(job, version, findings),
        "parallelism": parallelism(job, model.family if model else None, findings),
        "activation_checkpoint": checkpointing(job.layout, findings),
        "compile": {"enable": job.layout.compile or job.software.compile},
        **quantize,
        "experimental": {"custom_import": MODULE if is_custom else None},
        "debug": {"seed": job.training.seed or None} if version != "0.2.0" else {},
    }


def _optimizer(job: Job, findings: Findings) -> dict[str, Any]:
    one = job.training.optimizer
    if one.name != "adamw":
        findings.refuse("optimizer", f"torchtitan has no optimizer {one.name}", "optimizer = adamw")
    if job.training.dtypes.moment != "fp32" and job.training.precision is not Precision.BF16_PURE:
        findings.refuse(
            "moment_dtype", "torchtitan keeps moments in the dtype of the weights",
            "moment_dtype = fp32",
        )  # fmt: skip
    return {
        "name": "AdamW", "lr": one.learning_rate, "beta1": one.beta1, "beta2": one.beta2,
        "eps": one.epsilon, "weight_decay": one.weight_decay,
        "implementation": "fused" if job.software.fused_optimizer else "foreach",
    }  # fmt: skip


def _schedule(job: Job) -> dict[str, Any]:
    one = job.training.optimizer
    steps = one.decay_steps or job.num_steps
    return {
        "warmup_steps": min(one.warmup_steps, steps - 1),
        "total_steps": steps if one.decay_steps else None,
        "decay_type": "cosine",
        "min_lr_factor": min(1.0, one.min_learning_rate / one.learning_rate),
    }


def _training(job: Job, version: str, findings: Findings) -> dict[str, Any]:
    layout, training = job.layout, job.training
    count = layout.micro_batches
    offload = set(layout.offload)
    if offload not in (set(), {"optimizer", "parameters"}):
        findings.refuse(
            "offload", "torchtitan offloads weights and optimizer together, or nothing",
            "offload = optimizer+parameters",
        )  # fmt: skip
    elif offload and layout.zero == 0:
        findings.refuse("offload", "torchtitan offloads only what fully_shard shards", "zero = 3")
    found: dict[str, Any] = {
        "local_batch_size": layout.micro_batch * (count if layout.pp > 1 else 1),
        "global_batch_size": training.global_batch,
        "seq_len": training.seq_len,
        "max_norm": training.optimizer.clip_norm or float("inf"),
        "steps": job.num_steps,
        "enable_cpu_offload": bool(offload),
        **_dtypes(job, findings),
    }
    if version == "0.2.0" and training.seed:
        found["seed"] = training.seed
    per_step = layout.dp * layout.micro_batch * count
    if per_step != training.global_batch:
        findings.refuse(
            "batch", f"dp x micro_batch x num_microbatches = {per_step} is not global_batch ="
            f" {training.global_batch}",
        )  # fmt: skip
    return found


def _dtypes(job: Job, findings: Findings) -> dict[str, Any]:
    training = job.training
    dtypes, is_pure = training.dtypes, training.precision is Precision.BF16_PURE
    if dtypes.parameter not in ("bf16", "fp32"):
        findings.refuse(
            "precision", f"torchtitan does not train in {training.precision}", "precision = bf16"
        )
    if dtypes.gradient != "fp32" and not is_pure:
        findings.refuse(
            "gradient_dtype", f"torchtitan reduces gradients in fp32, not {dtypes.gradient}",
            "gradient_dtype = fp32",
        )  # fmt: skip
    if is_pure:
        findings.note("gradients: summed in bf16 as planned, but reduced in fp32")
    elif dtypes.parameter == "bf16" and job.layout.zero == 0:
        findings.note("precision: without fully_shard, autocast computes in bf16 from fp32 weights")
    return {
        "dtype": "bfloat16" if is_pure else "float32",
        "mixed_precision_param": "bfloat16" if dtypes.parameter == "bf16" else "float32",
        "mixed_precision_reduce": "float32",
    }


def _converters(job: Job, findings: Findings) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Quantised products: torchao's float8, scaled by tensor, and mx."""
    precision = job.training.precision
    if precision is Precision.FP8_TENSOR:
        return ["quantize.linear.float8"], {
            "quantize.linear.float8": {
                "recipe_name": "tensorwise",
                "filter_fqns": ["output"],
            }
        }
    if precision is Precision.MXFP8:
        return ["quantize.linear.mx"], {"quantize.linear.mx": {"recipe_name": "mxfp8_cublas"}}
    if job.training.dtypes.matmul not in ("bf16", "fp32"):
        findings.refuse(
            "precision", f"torchtitan has float8 by tensor and mx, not {precision}",
            "precision = fp8-tensor",
        )  # fmt: skip
    return [], {}


def _launch_files(job: Job, heading: str, findings: Findings) -> dict[str, str]:
    launch = Launch.of(
        job,
        heading=f"{heading}; torchtitan must be installed",
        program=("-m", "torchtitan.train", "--job.config_file", CONFIG),
        environment=dict(job.environment),
        notes=findings.notes,
        beside=(CONFIG,),
    )
    return {"train.sh": torchrun_script(launch), "train.sbatch": sbatch_script(launch)}
