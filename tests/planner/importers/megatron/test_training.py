"""Batch, precision and optimizer with Megatron-LM's defaults."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.training import (
    global_batch,
    precision_of,
    stated_precision,
    training_of,
)
from shardwright.specs import Precision, TrainingSpec
from tests.planner.importers.megatron.scripts import arguments_of

BASE = "--micro-batch-size 2 --seq-length 1024 "


def trained(line: str, dp: int | None = 4) -> TrainingSpec:
    found = training_of(arguments_of(BASE + line), dp=dp, assumed={}, unread=[])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "stated", "precision"),
    [
        ("--bf16", "bf16", Precision.BF16), ("--fp16", "fp16", Precision.FP16),
        ("", None, Precision.FP32), ("--bf16 --fp8-hybrid", "bf16+fp8:hybrid:delayed",
                                     Precision.FP8_DELAYED),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "bf16+fp8:e4m3:blockwise",
         Precision.FP8_BLOCK),
        ("--bf16 --fp8-format hybrid --fp8-recipe tensorwise", "bf16+fp8:hybrid:tensorwise",
         Precision.FP8_TENSOR),
        ("--bf16 --fp4-format e2m1", "bf16+fp4:e2m1", Precision.NVFP4),
    ],
)  # fmt: skip
def test_precision(line: str, stated: str | None, precision: Precision) -> None:
    assert stated_precision(arguments_of(line)) == stated
    assert precision_of(arguments_of(line)) == (precision, None)


def test_gradients_are_summed_as_megatron_sums_them() -> None:
    assert trained("--bf16").dtypes.gradient == "fp32"
    assert trained("--bf16 --grad-reduce-in-bf16").dtypes.gradient == "bf16"
    assert trained("--fp16").dtypes.gradient == "fp16"
    assert trained("--fp16 --accumulate-allreduce-grads-in-fp32").dtypes.gradient == "fp32"


def test_the_batch_is_micro_batches_of_all_replicas_unless_it_is_stated() -> None:
    assert global_batch(arguments_of(BASE), 4) == 8
    assert global_batch(arguments_of(BASE), None) is None
    assert trained("--global-batch-size 96").global_batch == 96
    assert training_of(arguments_of("--micro-batch-size 2"), dp=4, assumed={}, unread=[]) is None


def test_optimizer_defaults_are_megatrons() -> None:
    one = trained("--bf16").optimizer
    assert (one.name, one.beta2, one.weight_decay, one.clip_norm) == ("adamw", 0.999, 0.01, 1.0)
    other = trained("--bf16 --optimizer sgd --lr 6e-5 --min-lr 6e-6 --clip-grad 0").optimizer
    assert (other.name, other.learning_rate, other.clip_norm) == ("sgd", 6e-5, None)


def test_the_budget_is_that_of_steps_or_samples() -> None:
    assert trained("--global-batch-size 8 --train-iters 10").token_budget == 10 * 8 * 1024
    assert trained("--global-batch-size 8 --train-samples 100").token_budget == 100 * 1024
    assert trained("--bf16 --exp-avg-dtype bf16").dtypes.moment == "bf16"
