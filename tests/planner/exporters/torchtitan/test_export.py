"""Whole configurations, by release."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from shardwright.planner.exporters.torchtitan.export import version_of
from shardwright.specs import InputError, OptimizerSpec, TrainingSpec
from tests.planner.exporters.torchtitan.titans import config, exported, refusal


def training(**changes: Any) -> TrainingSpec:
    return TrainingSpec(**{"global_batch": 64, "seq_len": 4096, **changes})


def test_releases() -> None:
    assert version_of(None) == "0.2.2"
    assert version_of("v0.2.0") == "0.2.0"
    with pytest.raises(InputError, match="configured in Python"):
        version_of("0.3.0")
    seeded = training(seed=7)
    assert config(training=seeded, dp=2, zero=3)["debug"]["seed"] == 7
    old = config(version="0.2.0", training=seeded, dp=2, zero=3)
    assert old["training"]["seed"] == 7
    assert "debug" not in old


def test_files_and_what_they_start(tmp_path: Path) -> None:
    found = exported(dp=16, zero=3)
    assert list(found.files) == ["train.toml", "planned_model.py", "train.sh", "train.sbatch"]
    for name, text in found.files.items():
        (tmp_path / name).write_text(text)
    for name in ("train.sh", "train.sbatch"):
        subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)
    fake = tmp_path / "torchrun"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$PYTHONPATH" "$@"\n')
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": "0", "MASTER_ADDR": "a"}
    done = subprocess.run(
        ["bash", str(tmp_path / "train.sh")], capture_output=True, text=True, check=True, env=env,
        cwd="/",
    )  # fmt: skip
    words = done.stdout.splitlines()
    assert words[0] == str(tmp_path), "the model beside it can be imported"
    assert words[-2:] == ["--job.config_file", str(tmp_path / "train.toml")]


def test_optimizer_and_schedule() -> None:
    one = OptimizerSpec(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=5, clip_norm=None)
    found = config(training=training(optimizer=one), dp=2, zero=3)
    assert found["optimizer"]["lr"] == 1e-3
    assert found["lr_scheduler"]["min_lr_factor"] == pytest.approx(0.1)
    assert found["training"]["max_norm"] == float("inf")
    assert "no optimizer muon" in refusal(
        training=training(optimizer=OptimizerSpec(name="muon")), dp=2, zero=3
    )


def test_precisions() -> None:
    assert config(training=training(precision="fp32"), dp=2, zero=3)["training"][
        "mixed_precision_param"] == "float32"  # fmt: skip
    eight = config(training=training(precision="fp8-tensor"), dp=2, zero=3)
    assert eight["model"]["converters"] == ["quantize.linear.float8"]
    assert eight["quantize"]["linear"]["float8"]["recipe_name"] == "tensorwise"
    mx = config(training=training(precision="mxfp8"), dp=2, zero=3)
    assert mx["model"]["converters"] == ["quantize.linear.mx"]
    pure = config(training=training(precision="bf16-pure"), dp=2, zero=3)
    assert pure["training"]["dtype"] == "bfloat16"
    assert "does not train in fp16" in refusal(training=training(precision="fp16"), dp=2, zero=3)
    assert "fp8-block" in refusal(training=training(precision="fp8-block"), dp=2, zero=3)
    assert "reduces gradients in fp32" in refusal(
        training=training(gradient_dtype="bf16"), dp=2, zero=3
    )


def test_offload_and_compile() -> None:
    found = config(dp=2, zero=3, offload=("optimizer", "parameters"), compile=True)
    assert found["training"]["enable_cpu_offload"] is True
    assert found["compile"]["enable"] is True


def test_every_refusal_at_once() -> None:
    words = refusal("gpt2", tp=3, dp=2, zero=1, loss_chunks=2)
    for part in ("2 pieces", "none of llama3", "always splits", "not by ZeRO 1", "heads"):
        assert part in words
