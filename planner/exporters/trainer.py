"""What DeepSpeed and accelerate share: the script is the user's, with transformers' Trainer."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.specs import InputError, Layout

SCRIPT = "train.py"
"""The user's own; its options are fields of transformers' TrainingArguments."""
CHECKPOINTING = (
    "recompute: --gradient_checkpointing true recomputes every layer; without transformers' Trainer"
    " call model.gradient_checkpointing_enable()"
)


def version_in(versions: tuple[str, ...], given: str | None, target: str) -> str:
    """A release, or a prefix of one, of a target; raises `InputError`."""
    text = (given or versions[0]).strip().lower().removeprefix("v")
    for version in versions:
        if version == text or version.startswith(f"{text}."):
            return version
    raise InputError(
        f"the configuration of {target} {given} is not known",
        fix=f"choose one of {', '.join(versions)}",
    )


def refuse_code_parallelism(
    layout: Layout, findings: Findings, target: str, *, has_tensor: bool
) -> None:
    """Degrees that are code of the training script, not configuration."""
    code = [
        ("pp", "pipeline"), ("cp", "context"), ("ep", "expert"), ("etp", "expert tensor"),
    ]  # fmt: skip
    if not has_tensor:
        code.insert(0, ("tp", "tensor"))
    for name, words in code:
        degree = getattr(layout, name)
        if degree > 1:
            findings.refuse(
                name, f"{target} has no {words} parallelism ({name} = {degree}): that is code of"
                " the training script", f"{name} = 1",
            )  # fmt: skip


def trainer_options(job: Job) -> Iterator[tuple[str, ...]]:
    """Fields of transformers' TrainingArguments that repeat the plan's batch and schedule."""
    training, layout = job.training, job.layout
    one = training.optimizer
    yield ("--per_device_train_batch_size", str(layout.micro_batch))
    yield ("--gradient_accumulation_steps", str(layout.micro_batches))
    yield ("--max_steps", str(job.num_steps))
    yield ("--learning_rate", f"{one.learning_rate:g}")
    yield ("--weight_decay", f"{one.weight_decay:g}")
    yield ("--adam_beta1", f"{one.beta1:g}")
    yield ("--adam_beta2", f"{one.beta2:g}")
    yield ("--adam_epsilon", f"{one.epsilon:g}")
    yield ("--max_grad_norm", f"{one.clip_norm or 0:g}")
    yield ("--warmup_steps", str(min(one.warmup_steps, job.num_steps)))
    yield ("--lr_scheduler_type", "cosine")
    if training.dtypes.parameter in ("bf16", "fp16"):
        yield (f"--{training.dtypes.parameter}", "true")
    if all(entry.policy == "full" for entry in layout.recompute):
        yield ("--gradient_checkpointing", "true")
    if layout.compile:
        yield ("--torch_compile", "true")
    yield ("--seed", str(training.seed))
