"""`TrainingSpec` of Megatron-LM's arguments."""

from __future__ import annotations

from typing import Any

from shardwright.planner.importers.megatron.arguments import Arguments
from shardwright.specs import InputError, OptimizerSpec, Precision, TrainingSpec
from shardwright.specs.ranges import MOST_SEQUENCES, MOST_TOKENS
from shardwright.specs.training import DType

_FP8 = {
    "delayed": Precision.FP8_DELAYED, "tensorwise": Precision.FP8_TENSOR,
    "blockwise": Precision.FP8_BLOCK, "mxfp8": Precision.MXFP8,
}  # fmt: skip
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon",
               "dist_muon": "muon", "adaptive_muon": "muon"}  # fmt: skip
_DTYPES: dict[str, DType] = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}


def fp8_format(arguments: Arguments) -> str | None:
    """``e4m3`` or ``hybrid``; None where products are not in fp8."""
    for flag, name in (("fp8-hybrid", "hybrid"), ("fp8-e4m3", "e4m3")):
        if arguments.has(flag):
            return name
    return arguments.text("fp8-format")


def stated_precision(arguments: Arguments) -> str | None:
    """``bf16``, ``fp16``, ``bf16+fp8:e4m3:mxfp8``; None where no option says anything."""
    base = next((name for name in ("bf16", "fp16") if arguments.has(name)), None)
    kind = fp8_format(arguments)
    if kind is not None:
        recipe = arguments.text("fp8-recipe") or "delayed"
        return f"{base or 'fp32'}+fp8:{kind}:{recipe}"
    if arguments.has("fp4-format"):
        return f"{base or 'fp32'}+fp4:{arguments.text('fp4-format')}"
    return base


def precision_of(arguments: Arguments) -> tuple[Precision, str | None]:
    """The precision, and what of it has no counterpart here."""
    if arguments.has("bf16") and arguments.has("fp16"):
        raise InputError("both --bf16 and --fp16 are given", fix="give one of the two")
    if arguments.has("fp4-format"):
        return Precision.NVFP4, None
    if fp8_format(arguments) is not None:
        recipe = arguments.text("fp8-recipe") or "delayed"
        note = None if recipe in _FP8 else f"--fp8-recipe {recipe}: read as tensorwise"
        return _FP8.get(recipe, Precision.FP8_TENSOR), note
    for flag, found in (("bf16", Precision.BF16), ("fp16", Precision.FP16)):
        if arguments.has(flag):
            return found, None
    return Precision.FP32, None


def training_of(
    arguments: Arguments, *, dp: int | None, assumed: dict[str, str], unread: list[str]
) -> TrainingSpec | None:
    """The training; None where batch or sequence length are not known.

    ``dp``: data-parallel ranks, for the batch where only micro-batches are given: then it is
    micro-batch x dp. What is assumed and what cannot be read is added to the last two.
    """
    batch, seq_len = global_batch(arguments, dp), sequence_length(arguments)
    if batch is None or seq_len is None:
        return None
    if not arguments.has("global-batch-size"):
        assumed["global_batch"] = f"{batch} (micro-batch x dp)"
    precision, note = precision_of(arguments)
    if note is not None:
        unread.append(note)
    if stated_precision(arguments) is None:
        assumed["precision"] = "fp32 (neither --bf16 nor --fp16 is given)"
    if arguments.has("rampup-batch-size"):
        unread.append("--rampup-batch-size: read as the full batch from the first step")
    return TrainingSpec(
        global_batch=batch, seq_len=seq_len, precision=precision,
        optimizer=optimizer_of(arguments, unread),
        gradient_dtype=_gradient_dtype(arguments, precision), moment_dtype=_moment_dtype(arguments),
        token_budget=_token_budget(arguments, batch, seq_len),
        seed=arguments.whole("seed") or 0 if (arguments.whole("seed") or 0) >= 0 else 0,
    )  # fmt: skip


def global_batch(arguments: Arguments, dp: int | None) -> int | None:
    """Sequences per step: as stated, or micro-batch x dp."""
    stated = arguments.count("global-batch-size")
    if stated is None:
        micro = arguments.count("micro-batch-size")
        stated = None if micro is None or dp is None else micro * dp
    if stated is not None and stated > MOST_SEQUENCES:
        raise InputError(f"--global-batch-size is {stated}", fix="correct the script")
    return stated


def sequence_length(arguments: Arguments) -> int | None:
    """Tokens per sequence; of the encoder where there is one."""
    return arguments.count("seq-length") or arguments.count("encoder-seq-length")


def optimizer_of(arguments: Arguments, unread: list[str]) -> OptimizerSpec:
    """Name and numbers with Megatron-LM's defaults: beta2 0.999, weight decay 0.01."""
    name = arguments.text("optimizer") or "adam"
    known = _OPTIMIZERS.get(name.lower())
    if known is None:
        unread.append(f"--optimizer {name}: read as adamw")
    clip = arguments.number("clip-grad", 1.0)
    rate = arguments.number("lr", 0.0)
    values: dict[str, Any] = {
        "name": known or "adamw",
        "beta1": arguments.number("adam-beta1", 0.9),
        "beta2": arguments.number("adam-beta2", 0.999),
        "epsilon": arguments.number("adam-eps", 1e-8),
        "weight_decay": arguments.number("weight-decay", 0.01),
        "clip_norm": clip if clip > 0 else None,
        "warmup_steps": max(0, arguments.whole("lr-warmup-iters") or 0),
        "decay_steps": arguments.count("lr-decay-iters"),
    }
    if rate > 0:
        values |= {"learning_rate": rate, "min_learning_rate": arguments.number("min-lr", 0.0)}
    return OptimizerSpec.model_validate(values)


def _gradient_dtype(arguments: Arguments, precision: Precision) -> DType | None:
    """fp16 sums gradients in fp16 unless it is told otherwise, bf16 in fp32."""
    main = arguments.text("main-grads-dtype")
    if arguments.has("grad-reduce-in-bf16") or main == "bf16":
        return "bf16"
    if arguments.has("fp16") and not arguments.has("accumulate-allreduce-grads-in-fp32"):
        return "fp16"
    return None


def _moment_dtype(arguments: Arguments) -> DType | None:
    first = arguments.text("exp-avg-dtype")
    found = _DTYPES.get(first or "")
    return None if found in (None, "fp32") else found


def _token_budget(arguments: Arguments, batch: int, seq_len: int) -> int | None:
    """Of ``--train-tokens``, ``--train-samples`` or ``--train-iters``."""
    tokens = arguments.whole("train-tokens")
    samples, steps = arguments.whole("train-samples"), arguments.whole("train-iters")
    if tokens is None and samples is not None:
        tokens = samples * seq_len
    if tokens is None and steps is not None:
        tokens = steps * batch * seq_len
    return tokens if tokens is not None and 0 < tokens <= MOST_TOKENS else None
