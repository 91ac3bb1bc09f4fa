"""DeepSpeed's JSON, of several years."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.export_jobs import exported_jobs
from shardwright.planner.importers.deepspeed import read_deepspeed
from shardwright.planner.importers.reading import Reading
from shardwright.specs import InputError


def read(fields: Any, tmp_path: Path, world: int | None = None) -> Reading:
    path = tmp_path / "ds.json"
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return read_deepspeed(path, world=world)


def test_zero_3_with_offload(tmp_path: Path) -> None:
    found = read(
        {
            "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
            "zero_optimization": {
                "stage": 3, "offload_optimizer": {"device": "cpu"},
                "offload_param": {"device": "none"}, "zero_quantized_weights": True,
            },
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "elasticity": {},
        },
        tmp_path,
    )  # fmt: skip
    assert found.choices["zero"] == 3
    assert found.choices["offload"] == "optimizer"
    assert found.gpus == 32
    assert found.stated["dp"] == 32
    assert found.stated["precision"] == "bf16"
    assert found.stated["global_batch"] == 256
    words = " ".join(found.unread)
    assert "field elasticity" in words
    assert "zero_quantized_weights" in words


def test_what_is_left_to_the_script(tmp_path: Path) -> None:
    found = read(
        {
            "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
            "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "cpu_offload": True},
        },
        tmp_path, world=8,
    )  # fmt: skip
    assert found.choices["zero"] == 2
    assert found.choices["offload"] == "optimizer"
    assert found.stated["precision"] is None
    assert found.gpus == 8


def test_older_words(tmp_path: Path) -> None:
    assert read({"zero_optimization": True}, tmp_path).choices["zero"] == 1
    found = read({"bfloat16": {"enabled": True}, "tensor_parallel": {"autotp_size": 4},
                  "zero_optimization": {"stage": 3, "mics_shard_size": 8}}, tmp_path)  # fmt: skip
    assert found.stated["precision"] == "bf16"
    assert found.choices["tp"] == 4
    assert found.choices["zero_shard_degree"] == 8
    assert read({"fp16": {"enabled": True}}, tmp_path).stated["precision"] == "fp16"
    assert read({"train_batch_size": 8}, tmp_path).stated["precision"] == "fp32"


def test_contradictions(tmp_path: Path) -> None:
    both = read({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, tmp_path)
    assert both.conflicts == ("bf16 and fp16 are both enabled",)
    odd = read({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 1}, tmp_path)  # fmt: skip
    assert odd.conflicts
    other = read({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
                  "gradient_accumulation_steps": 1}, tmp_path, world=16)  # fmt: skip
    assert "of 8 ranks, not 16" in other.conflicts[0]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ("[", "is no JSON"),
        ("[]", "no configuration of DeepSpeed"),
        ({"a": 1}, "no configuration of DeepSpeed"),
        ({"train_batch_size": 0}, "not a count"),
        ({"zero_optimization": {"stage": 7}}, "stage is 7"),
        ({"zero_optimization": 3}, "no object"),
    ],
)
def test_wrong_files_give_one_clear_line(fields: Any, word: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(fields, tmp_path)
    assert word in str(caught.value)


def test_exported_plans_come_back(tmp_path: Path) -> None:
    for job, exported in exported_jobs("deepspeed", 20, seed=2):
        found = read(exported.files["ds_config.json"], tmp_path)
        assert found.gpus == job.layout.world
        assert not found.conflicts
        for name in ("tp", "micro_batch", "num_microbatches", "zero"):
            assert found.choices.get(name, 1) == getattr(job.layout, name)
        assert found.choices.get("offload", "none") == "+".join(job.layout.offload) or "none"
