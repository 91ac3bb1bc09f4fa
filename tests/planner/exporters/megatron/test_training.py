"""Batch, precision, optimizer, software and data."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import OptimizerSpec, SoftwareSpec, TrainingSpec
from tests.planner.exporters.megatron.exporting import arguments, exported, refusal


def training(**changes: Any) -> TrainingSpec:
    return TrainingSpec(**{"global_batch": 64, "seq_len": 4096, **changes})


def test_batch_and_length() -> None:
    found = arguments(dp=8, micro_batch=2, training=training(token_budget=10**9))
    assert found.number("--global-batch-size") == 64
    assert found.number("--micro-batch-size") == 2
    assert found.number("--train-iters") == 3815, "10^9 / (64 x 4096), up"
    assert found.number("--lr-decay-iters") == 3815


def test_a_plan_without_length_says_so() -> None:
    found = exported()
    assert ("--train-iters", "100") in found.arguments
    assert any(note.startswith("length") for note in found.notes)


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("bf16", {("--bf16",)}),
        ("fp16", {("--fp16",), ("--accumulate-allreduce-grads-in-fp32",)}),
        ("fp32", set()),
        ("fp8-delayed", {("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")}),
        ("fp8-tensor", {("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")}),
        ("fp8-block", {("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")}),
        ("mxfp8", {("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")}),
        ("nvfp4", {("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")}),
    ],
)
def test_precisions(precision: str, expected: set[tuple[str, ...]]) -> None:
    found = set(arguments(training=training(precision=precision)).options)
    said = {o for o in found if o[0][2:5] in ("bf1", "fp1", "fp8", "fp4", "acc", "gra")}
    assert said == expected


def test_precisions_that_a_version_lacks() -> None:
    assert "no option" in refusal(training=training(precision="bf16-pure"))
    assert "blockwise" in refusal(training=training(precision="fp8-block"), version="core_r0.9.0")
    assert "fp4" in refusal(training=training(precision="nvfp4"), version="core_r0.9.0")


def test_gradients_and_moments_in_fewer_bits() -> None:
    small = training(gradient_dtype="bf16", moment_dtype="bf16")
    found = arguments(training=small, dp=8, zero=1)
    assert found.has("--grad-reduce-in-bf16")
    assert found.text("--exp-avg-dtype") == "bf16"
    assert found.has("--use-precision-aware-optimizer")
    assert "sharded" in refusal(training=small, dp=8)
    assert "gradients in bf16" in refusal(training=small, dp=8, zero=1, version="core_r0.9.0")
    assert "gradients in fp16" in refusal(training=training(gradient_dtype="fp16"))


def test_optimizers() -> None:
    adam = OptimizerSpec(learning_rate=1e-3, min_learning_rate=1e-4, clip_norm=None)
    found = arguments(training=training(optimizer=adam))
    assert found.text("--optimizer") == "adam"
    assert found.text("--clip-grad") == "0"
    assert found.text("--lr") == "0.001"
    muon = training(optimizer=OptimizerSpec(name="muon"))
    assert arguments(training=muon).text("--optimizer") == "muon"
    assert "no optimizer muon" in refusal(training=muon, version="core_v0.15.0")
    for name in ("adafactor", "adamw-8bit"):
        assert f"no optimizer {name}" in refusal(training=training(optimizer={"name": name}))


def test_a_long_warm_up_is_cut_and_said() -> None:
    long = OptimizerSpec(warmup_steps=500)
    found = exported(training=training(optimizer=long))
    assert ("--lr-warmup-iters", "99") in found.arguments
    assert any(note.startswith("warm-up") for note in found.notes)


def test_partial_training_is_refused() -> None:
    assert "lora:16" in refusal(training=training(trainable="lora:16"))
    assert "smoothing" in refusal(training=training(label_smoothing=0.1))


def test_software() -> None:
    found = arguments()
    assert found.text("--attention-backend") == "flash"
    assert found.text("--hidden-dropout") == "0.0"
    assert arguments(version="core_r0.9.0").has("--use-flash-attn")
    assert arguments(version="core_r0.9.0").has("--use-mcore-models")
    plain = SoftwareSpec(attention_kernel="math", dropout=True, fused_accumulation=False,
                         fused_loss=True)  # fmt: skip
    other = arguments(software=plain)
    assert not other.has("--attention-backend")
    assert not other.has("--hidden-dropout")
    assert other.has("--no-gradient-accumulation-fusion")
    assert other.has("--cross-entropy-loss-fusion")
    late = SoftwareSpec(overlap_messages=False)
    assert arguments(pp=4, vpp=3, software=late).has("--no-overlap-p2p-communication")


def test_the_null_tokenizer_adds_a_token_so_one_less_is_asked_for() -> None:
    found = exported(tp=2)
    assert ("--vocab-size", "31999") in found.arguments
    assert not any(note.startswith("vocabulary") for note in found.notes), "32000 = 125 x 256"
    padded = exported(tp=4)
    assert any("padded to 32,256" in note for note in padded.notes)


def test_seeds_are_positive() -> None:
    assert ("--seed", "1") in exported().arguments
    assert ("--seed", "7") in exported(training=training(seed=7)).arguments
