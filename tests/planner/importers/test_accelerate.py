"""accelerate's YAML and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.export_jobs import exported_jobs
from shardwright.planner.importers.accelerate import read_accelerate
from shardwright.planner.importers.reading import Reading
from shardwright.specs import InputError

FSDP = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_offload_params: true
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_activation_checkpointing: true
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
use_cpu: false
"""


def read(text: str, tmp_path: Path, world: int | None = None) -> Reading:
    path = tmp_path / "accelerate.yaml"
    path.write_text(text)
    return read_accelerate(path, world=world)


def test_fsdp(tmp_path: Path) -> None:
    found = read(FSDP, tmp_path)
    assert found.choices == {
        "zero": 3, "zero_shard_degree": 8, "offload": "optimizer+parameters", "recompute": "full",
    }  # fmt: skip
    assert (found.gpus, found.nodes, found.gpus_per_node) == (16, 2, 8)
    assert found.stated["precision"] == "bf16"
    assert found.stated["dp"] == 16


@pytest.mark.parametrize(
    ("strategy", "zero"),
    [("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 0), ("1", 3), ("2", 2)],
)
def test_strategies(strategy: str, zero: int, tmp_path: Path) -> None:
    assert read(FSDP.replace("HYBRID_SHARD", strategy), tmp_path).choices["zero"] == zero


def test_the_second_fsdp(tmp_path: Path) -> None:
    text = FSDP.replace("fsdp_sharding_strategy: HYBRID_SHARD",
                        "fsdp_version: 2\n  fsdp_reshard_after_forward: false")  # fmt: skip
    found = read(text + "dynamo_config:\n  dynamo_backend: INDUCTOR\n"
                 "parallelism_config:\n  parallelism_config_dp_shard_size: 4\n"
                 "  parallelism_config_dp_replicate_size: 2\n"
                 "  parallelism_config_tp_size: 2\n", tmp_path)  # fmt: skip
    assert found.choices["reshard_after_forward"] is False
    assert found.choices["zero_shard_degree"] == 4
    assert found.choices["tp"] == 2
    assert found.choices["compile"] is True
    assert found.stated["dp"] == 8


def test_json_and_other_kinds(tmp_path: Path) -> None:
    deep = {"distributed_type": "DEEPSPEED", "num_processes": 8, "mixed_precision": "fp16",
            "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 4,
                                 "offload_optimizer_device": "cpu"}}  # fmt: skip
    found = read(json.dumps(deep), tmp_path)
    assert found.choices == {"zero": 3, "num_microbatches": 4, "offload": "optimizer"}
    mega = {"distributed_type": "MEGATRON_LM", "megatron_lm_config": {
        "megatron_lm_tp_degree": 2, "megatron_lm_pp_degree": 2,
        "megatron_lm_sequence_parallelism": "true",
        "megatron_lm_use_distributed_optimizer": "true"}}  # fmt: skip
    found = read(json.dumps(mega), tmp_path, world=8)
    assert found.choices == {"tp": 2, "pp": 2, "zero": 1, "sequence_parallel": True}
    assert read("distributed_type: MULTI_GPU\nnum_processes: 4\n", tmp_path).choices == {}
    file = read("distributed_type: DEEPSPEED\ndeepspeed_config:\n"
                "  deepspeed_config_file: ds.json\n", tmp_path)  # fmt: skip
    assert any("ds.json" in word for word in file.unread)


def test_contradictions(tmp_path: Path) -> None:
    assert read(FSDP.replace("16", "15"), tmp_path).conflicts
    assert read(FSDP, tmp_path, world=8).conflicts


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is no JSON"),
        ("", "no configuration of accelerate"),
        ("a: 1\n", "no configuration of accelerate"),
        ("distributed_type: FSDP\nnum_processes: many\n", "not a count"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 9\n", "zero_stage"),
    ],
)
def test_wrong_files_give_one_clear_line(text: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(text, tmp_path)
    assert word in str(caught.value)


def test_exported_plans_come_back(tmp_path: Path) -> None:
    for job, exported in exported_jobs("accelerate", 20, seed=3):
        found = read(exported.files["accelerate.yaml"], tmp_path)
        layout = job.layout
        assert found.gpus == layout.world
        assert not found.conflicts
        assert found.choices.get("zero", 0) == layout.zero
        assert found.choices.get("compile", False) == layout.compile
        if layout.zero == 3:
            assert found.choices["reshard_after_forward"] == layout.reshard_after_forward
            assert found.choices.get("zero_shard_degree", layout.dp) == layout.zero_shard_degree
        offload = "+".join(sorted(layout.offload)) or "none"
        assert found.choices.get("offload", "none") == offload
