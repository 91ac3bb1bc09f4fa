"""DeepSpeed's JSON."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shardwright.planner.exporters.deepspeed import to_deepspeed
from shardwright.specs import InputError, OptimizerSpec, Recompute, TrainingSpec
from tests.planner.exporters.jobs import job_of


def config(kind: str = "llama", **given: Any) -> dict[str, Any]:
    found = to_deepspeed(job_of(kind, **given))
    return dict(json.loads(found.files["ds_config.json"]))


def refusal(**given: Any) -> str:
    with pytest.raises(InputError) as caught:
        to_deepspeed(job_of(**given))
    return str(caught.value)


def training(**changes: Any) -> TrainingSpec:
    return TrainingSpec(**{"global_batch": 64, "seq_len": 4096, **changes})


def test_batch_and_zero() -> None:
    found = config(dp=8, micro_batch=2, zero=2)
    assert found["train_batch_size"] == 64
    assert found["train_micro_batch_size_per_gpu"] == 2
    assert found["gradient_accumulation_steps"] == 4
    assert found["zero_optimization"]["stage"] == 2
    assert found["bf16"] == {"enabled": True}
    assert found["optimizer"]["type"] == "AdamW"


def test_offload_and_tensor_parallelism() -> None:
    found = config(dp=4, tp=2, zero=3, offload=("optimizer", "parameters"))
    assert found["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert found["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert found["tensor_parallel"] == {"autotp_size": 2}


def test_precisions() -> None:
    assert config(dp=2, training=training(precision="fp16"))["fp16"] == {"enabled": True}
    pure = config(dp=2, zero=1, training=training(precision="bf16-pure"))
    assert pure["bf16"]["bf16_optimizer_states"] is True
    assert "need ZeRO" in refusal(dp=2, training=training(precision="bf16-pure"))
    assert "has no mxfp8" in refusal(dp=2, training=training(precision="mxfp8"))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"pp": 2}, "pipeline parallelism"),
        ({"cp": 2}, "context parallelism"),
        ({"tp": 2, "sequence_parallel": True}, "whole sequences"),
        ({"tp": 8}, "4 key-value heads"),
        ({"dp": 8, "zero": 3, "zero_shard_degree": 4}, "over all 8"),
        ({"dp": 8, "zero": 3, "reshard_after_forward": False}, "frees weights"),
        ({"dp": 8, "offload": ("optimizer",)}, "sharded optimizer"),
        ({"dp": 8, "zero": 2, "offload": ("parameters",)}, "ZeRO 3 only"),
        ({"dp": 8, "offload": ("activations",)}, "cpu_checkpointing"),
        ({"recompute": Recompute(policy="selective")}, "every layer"),
        ({"training": training(optimizer=OptimizerSpec(name="adafactor"))}, "adafactor"),
        ({"training": training(moment_dtype="bf16")}, "moments"),
        ({"loss_chunks": 2}, "2 pieces"),
    ],
)  # fmt: skip
def test_what_it_does_not_have(given: dict[str, Any], word: str) -> None:
    assert word in refusal(**given)


def test_recomputation_is_said_to_be_code(tmp_path: Path) -> None:
    found = to_deepspeed(job_of(dp=16, zero=3, recompute=Recompute(policy="full")))
    assert any("gradient_checkpointing" in note for note in found.notes)
    for name in ("train.sh", "train.sbatch"):
        (tmp_path / name).write_text(found.files[name])
        subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)
    assert '--deepspeed "$HERE/ds_config.json"' in found.files["train.sh"]
